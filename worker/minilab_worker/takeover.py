"""Finds jobs whose worker is gone and puts them back at the head of their queues. It must not know how they are run.

A job goes on where its stream ends: whoever claims it reads prompt and published tokens in again, and exactness makes
the rest the same. So taking over is no more than giving back.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Hashable
from typing import Final

from minilab_gen.protocol import keys
from minilab_gen.protocol.jobs import OUR_WORKERS
from minilab_worker.holdings import Holding, Holdings
from minilab_worker.ledger import Ledger
from minilab_worker.tally import Tally

_log = logging.getLogger(__name__)

SWEEP_INTERVAL: Final = 1.0
"""Seconds between two looks at the books: what a takeover may come later than the end of a lease."""

_ATTEMPTS: Final = 3
"""Times that a job is given back if its record is being touched by others at that moment."""


class Takeover:
    """Looks through the books of the worker's queues, again and again."""

    def __init__(self, ledger: Ledger, lease: int, tally: Tally) -> None:
        self._ledger, self._lease, self._tally = ledger, lease, tally
        self._holdings = Holdings(ledger.connection, ledger.queues)
        self._first_seen: dict[Hashable, float] = {}
        self._next_sweep = 0.0

    def sweep_if_due(self) -> None:
        """Put back what nobody runs any more."""
        now = time.monotonic()
        if now < self._next_sweep:
            return
        self._next_sweep = now + SWEEP_INTERVAL
        seen: set[Hashable] = set()
        self._sweep_started(seen)
        self._sweep_unstarted(seen)
        self._first_seen = {what: since for what, since in self._first_seen.items() if what in seen}

    def wait_a_lease(self) -> None:
        """Leave everybody the time to renew his lease: Redis was away, and may have been for all."""
        self._next_sweep = time.monotonic() + self._lease

    def put_back(self, execution_ids: list[str]) -> None:
        """Return these jobs of our own to the heads of their queues, so that the first is the first in line again."""
        place = {execution_id: number for number, execution_id in enumerate(execution_ids)}
        mine = [holding for holding in self._holdings.all() if holding.execution_id in place]
        for holding in sorted(mine, key=lambda holding: place[holding.execution_id], reverse=True):
            if not any(self._holdings.put_back(holding, if_dead=False) for _ in range(_ATTEMPTS)):
                continue  # whoever looks for dead workers finds it
            _log.debug("%s: not finished, queued again", holding.job_id, extra={"job_id": holding.job_id})

    def _sweep_started(self, seen: set[Hashable]) -> None:
        holdings = self._holdings.all()
        alive = self._alive({holding.worker for holding in holdings})
        for holding in reversed(holdings):  # so that the first of them gets to the head of the queue at last
            if holding.worker == self._ledger.name:
                self._sweep_own(holding, seen)
            elif self._is_abandoned(holding, alive) and self._holdings.put_back(holding, if_dead=True):
                self._tally.taken_over += 1
                worker = holding.worker or "(unnamed)"
                extra = {"job_id": holding.job_id, "worker": worker}
                _log.warning("%s: its worker %s is gone, the job goes on", holding.job_id, worker, extra=extra)

    def _sweep_own(self, holding: Holding, seen: set[Hashable]) -> None:
        """An execution of ours that we know nothing of: its start was not answered, or Redis forgot its end."""
        if holding.execution_id in self._ledger.executions:
            return
        seen.add(holding.execution_id)
        if self._is_old(holding.execution_id, SWEEP_INTERVAL * 3):  # not one that is just being ended
            self._holdings.put_back(holding, if_dead=False)
            extra = {"job_id": holding.job_id}
            _log.warning("%s: started and not known here, the job is queued again", holding.job_id, extra=extra)

    def _sweep_unstarted(self, seen: set[Hashable]) -> None:
        for queue, job_id in self._holdings.unstarted():
            seen.add(job_id)
            if self._is_old(job_id, self._lease) and self._holdings.put_back_unstarted(queue, job_id):
                extra = {"job_id": job_id}
                _log.warning("%s: claimed and never started, the job is queued again", job_id, extra=extra)

    def _alive(self, workers: set[str]) -> set[str]:
        names = sorted(workers)
        held = self._ledger.connection.mget([keys.worker_lease(name) for name in names]) if names else []
        return {name for name, lease in zip(names, held, strict=True) if lease is not None}

    def _is_abandoned(self, holding: Holding, alive: set[str]) -> bool:
        """Ours die with their lease; an ordinary RQ worker is dead when RQ's heartbeat of the job has run out."""
        if not holding.worker or holding.worker.startswith(OUR_WORKERS):
            return holding.worker not in alive
        return holding.overdue

    def _is_old(self, what: Hashable, seconds: float) -> bool:
        now = time.monotonic()
        return now - self._first_seen.setdefault(what, now) >= seconds
