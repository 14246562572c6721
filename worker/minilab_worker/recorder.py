"""Writes ends into RQ's books, in a thread of its own, those that come in meanwhile together.

It must not know about models or streams: what it is given has been published.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable

import redis

from minilab_worker.ledger import Closing, Ledger
from minilab_worker.patience import Patience
from minilab_worker.run import Run

_log = logging.getLogger(__name__)


class Recorder:
    """Keeps ends until they are recorded, however long Redis is away."""

    def __init__(self, ledger: Ledger, on_recorded: Callable[[int], None]) -> None:
        """``on_recorded`` is called with how many ends stand in the books now."""
        self._ledger, self._on_recorded = ledger, on_recorded
        self._closings: queue.SimpleQueue[Closing | None] = queue.SimpleQueue()
        self.patience = Patience("ends of jobs")
        self._thread = threading.Thread(target=self._main, name="recorder", daemon=True)
        self._leaving = False
        self.done = 0
        """Ends that are recorded."""
        self.failure: BaseException | None = None
        """What ended the recorder, if it was not closed."""

    def start(self) -> None:
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def add(self, runs: list[Run]) -> None:
        """Have the ends of runs recorded."""
        for run in runs:
            self._closings.put(_closing(run))

    def close(self) -> None:
        """Record what is there, unless Redis is away, and end."""
        self._leaving = True
        self._closings.put(None)
        self._thread.join()

    def _main(self) -> None:
        try:
            while closings := self._next_ones():
                self._insist(closings)
                self.done += len(closings)
                self._on_recorded(len(closings))
        except BaseException as error:  # noqa: BLE001 - serve() raises it in the main thread
            self.failure = error

    def _next_ones(self) -> list[Closing]:
        """All ends that are waiting, at least one; none once it is closed."""
        following = self._closings.get()
        closings: list[Closing] = []
        while following is not None:
            closings.append(following)
            if self._closings.empty():
                return closings
            following = self._closings.get()
        if closings:
            self._closings.put(None)  # to be found next time
        return closings

    def _insist(self, closings: list[Closing]) -> None:
        while True:
            try:
                self._record(closings)
            except redis.WatchError:
                continue  # one was touched on the way, by a heartbeat or a takeover
            except redis.RedisError as error:
                if self._leaving:
                    return  # the lease runs out, and others find these ends in the streams
                time.sleep(self.patience.failed(error))
            else:
                self.patience.succeeded()
                return

    def _record(self, closings: list[Closing]) -> None:
        try:
            self._ledger.record(closings)
        except redis.RedisError:
            raise
        except Exception:  # noqa: BLE001 - whatever RQ makes of a strange job must not end the others
            if len(closings) > 1:  # find the one that cannot be recorded
                for closing in closings:
                    self._record([closing])
                return
            job_id = closings[0].job.id
            _log.exception("%s: RQ cannot record the end", job_id, extra={"job_id": job_id})
            self._ledger.forget([closings[0].execution])


def _closing(run: Run) -> Closing:
    """What RQ is to record of an end."""
    end = run.end
    assert end is not None, "only a run that has ended is recorded"
    if end.succeeded:
        return Closing(run.job, run.execution, result=run.result())
    if end.reason == "cancelled":
        return Closing(run.job, run.execution)
    why = end.error or f"the job ran out of time while {end.phase}"
    return Closing(run.job, run.execution, failure=why)
