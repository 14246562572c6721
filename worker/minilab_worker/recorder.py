"""Records the ends of jobs in the store, in a thread of its own, those that come in meanwhile together.

RQ's bookkeeping must not stand between two tokens, nor wait behind a claim.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Sequence
from typing import Final

import redis

from minilab_worker.job_run import JobRun, JobState, JobTable
from minilab_worker.job_store import JobStore
from minilab_worker.outage import RedisOutage

_log = logging.getLogger(__name__)

_ENDS_SHARE: Final = 8
"""One end for so many jobs that the worker holds is waited for, so that few jobs wait for none."""
_LONGEST_WAIT: Final = 0.02
"""Seconds from the first of them: some steps of a small model. Its stream has told its readers of the end already."""


class Recorder:
    """Keeps ends until they are recorded, however long Redis is unavailable."""

    def __init__(self, store: JobStore, jobs: JobTable) -> None:
        self._store, self._jobs = store, jobs
        self._published: queue.SimpleQueue[JobRun | None] = queue.SimpleQueue()
        self.outage = RedisOutage("ends of jobs")
        self._thread = threading.Thread(target=self._main, name="recorder", daemon=True)
        self._is_closing = False
        self.failure: BaseException | None = None
        """What ended the recorder, if it was not closed."""

    def start(self) -> None:
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def add(self, runs: Sequence[JobRun]) -> None:
        """Have the ends of published jobs recorded."""
        for run in runs:
            self._published.put(run)

    def close(self) -> None:
        """Record what is there, unless Redis is unavailable, and end."""
        self._is_closing = True
        self._published.put(None)
        self._thread.join()

    def _main(self) -> None:
        try:
            while runs := self._next_ones():
                unpublished = self._record_all(runs)
                if unpublished is not None:
                    self._jobs.move([run for run in runs if run not in unpublished], JobState.RECORDED)
                    self._jobs.move(unpublished, JobState.ENDED)
        except BaseException as error:  # noqa: BLE001 - serve() raises it in the main thread
            self.failure = error

    def _next_ones(self) -> list[JobRun]:
        """The jobs that wait, at least one; none once the recorder is closed.

        One call records many for little more than one, so the more jobs run, the more ends are waited for, a moment.
        """
        runs: list[JobRun] = []
        give_up = float("inf")
        while self._jobs.used // _ENDS_SHARE > len(runs) or not runs or not self._published.empty():
            try:
                following = self._published.get(timeout=max(0.0, give_up - time.monotonic()) if runs else None)
            except queue.Empty:
                break
            if following is None:
                if runs:
                    self._published.put(None)  # to be found next time
                break
            runs.append(following)
            give_up = min(give_up, time.monotonic() + _LONGEST_WAIT)
        return runs

    def _record_all(self, runs: list[JobRun]) -> list[JobRun] | None:
        """Record ends, through outages; gives those to publish once more, None where the recorder is closed in one."""
        while True:
            try:
                unpublished = self._record(runs)
            except redis.RedisError as error:
                if self._is_closing:
                    return None  # the lease expires, and another worker finds these ends in the streams
                time.sleep(self.outage.pause_after(error))
            else:
                self.outage.is_over()
                return unpublished

    def _record(self, runs: list[JobRun]) -> list[JobRun]:
        try:
            unpublished = self._store.finish([run.completion() for run in runs])
        except redis.RedisError:
            raise
        except Exception:  # noqa: BLE001 - whatever RQ makes of a strange job must not end the others
            if len(runs) > 1:  # find the one that cannot be recorded
                return [again for run in runs for again in self._record([run])]
            job_id = runs[0].job_id
            _log.exception("%s: RQ cannot record the end", job_id, extra={"job_id": job_id})
            return []
        return [run for run in runs if run.job.execution_id in unpublished]
