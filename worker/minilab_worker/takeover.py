"""Finds started jobs whose worker's lease has expired and requeues them.

A job continues where its stream ends: whichever worker claims it reads prompt and published tokens in again, and
exactness makes the rest the same. So a takeover is no more than a requeue.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Hashable, Sequence
from typing import Final

from minilab_gen.protocol.jobs import OUR_WORKERS
from minilab_worker.job_run import JobTable
from minilab_worker.job_store import JobStore, StartedJob
from minilab_worker.telemetry.counters import Counters

_log = logging.getLogger(__name__)

SWEEP_INTERVAL: Final = 1.0
"""Seconds between two sweeps: what a takeover may come later than the end of a lease."""

_UNKNOWN_FOR: Final = 3 * SWEEP_INTERVAL
"""Seconds for which a started job of this worker may be unknown to it: not one that is just being recorded."""

_ATTEMPTS: Final = 3
"""Times that a job is requeued if its record is being changed by others at that moment."""


class Takeover:
    """Looks through the started jobs of the worker's queues, again and again."""

    def __init__(self, store: JobStore, jobs: JobTable, lease: int, counters: Counters) -> None:
        self._store, self._jobs, self._lease, self._counters = store, jobs, lease, counters
        self._first_seen: dict[Hashable, float] = {}
        self._next_sweep = 0.0

    def sweep_if_due(self) -> None:
        """Requeue the jobs that no worker runs any more."""
        now = time.monotonic()
        if now < self._next_sweep:
            return
        self._next_sweep = now + SWEEP_INTERVAL
        seen: set[Hashable] = set()
        self._sweep_started(seen)
        self._sweep_unstarted(seen)
        self._first_seen = {what: since for what, since in self._first_seen.items() if what in seen}

    def wait_a_lease(self) -> None:
        """Leave every worker the time to renew its lease: Redis was unavailable, and may have been for all."""
        self._next_sweep = time.monotonic() + self._lease

    def requeue(self, jobs: Sequence[StartedJob]) -> None:
        """Return these jobs of our own to the heads of their queues, so that the first is the first in line again."""
        for job in reversed(jobs):
            if not any(self._store.requeue(job, if_expired=False) for _ in range(_ATTEMPTS)):
                continue  # another worker finds it once the lease has expired
            _log.debug("%s: not finished, requeued", job.job_id, extra={"job_id": job.job_id})

    def _sweep_started(self, seen: set[Hashable]) -> None:
        started = self._store.started()
        alive = self._store.alive({job.worker for job in started})
        for job in reversed(started):  # so that the first of them gets to the head of the queue at last
            if job.worker == self._store.worker:
                self._sweep_own(job, seen)
            elif _is_abandoned(job, alive) and self._store.requeue(job, if_expired=True):
                self._counters.taken_over += 1
                worker = job.worker or "(unnamed)"
                extra = {"job_id": job.job_id, "worker": worker}
                _log.warning(
                    "%s: the lease of its worker %s has expired, the job is requeued", job.job_id, worker, extra=extra
                )

    def _sweep_own(self, job: StartedJob, seen: set[Hashable]) -> None:
        """A job of ours that we know nothing of: its start was not answered, or Redis forgot its end."""
        if self._jobs.holds(job.execution_id):
            return
        seen.add(job.execution_id)
        if self._is_old(job.execution_id, _UNKNOWN_FOR):
            self._store.requeue(job, if_expired=False)
            extra = {"job_id": job.job_id}
            _log.warning("%s: started and unknown to this worker, the job is requeued", job.job_id, extra=extra)

    def _sweep_unstarted(self, seen: set[Hashable]) -> None:
        for job in self._store.unstarted():
            seen.add(job.job_id)
            if self._is_old(job.job_id, self._lease) and self._store.requeue_unstarted(job):
                extra = {"job_id": job.job_id}
                _log.warning("%s: claimed and never started, the job is requeued", job.job_id, extra=extra)

    def _is_old(self, what: Hashable, seconds: float) -> bool:
        now = time.monotonic()
        return now - self._first_seen.setdefault(what, now) >= seconds


def _is_abandoned(job: StartedJob, alive: set[str]) -> bool:
    """Of ours, when the lease has expired; of an ordinary RQ worker, when RQ's heartbeats of the job have stopped."""
    if not job.worker or job.worker.startswith(OUR_WORKERS):
        return job.worker not in alive
    return job.is_overdue
