"""A job store in memory, with the interface of the real one, for the theorems about a job's life."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

import redis
from minilab_worker.job_store import Claim, Completion, QueuedJob, Renewal, StartedJob

from minilab_gen.protocol.events import EndEvent, Event
from minilab_gen.request import GenerationRequest

QUEUE: Final = "the-queue"


class MemoryQueue:
    """What all workers share: queued jobs, the worker of each started one, and how jobs ended."""

    def __init__(self) -> None:
        self.queued: deque[Claim] = deque()
        self.started: dict[str, Claim] = {}  # by execution id
        self.ended: dict[str, Completion] = {}
        self.leases: set[str] = set()
        self.streams: dict[str, list[Event]] = {}
        self.cancelled: set[str] = set()
        self.lock = threading.Lock()
        self._executions = 0

    def submit(self, job_id: str, request: GenerationRequest | None, **details: object) -> None:
        """Queue a job; ``details`` are fields of the claim to come."""
        job = StartedJob(job_id, "", QUEUE, "", job_id)
        self.queued.append(replace(Claim(job, request), **details))  # type: ignore[arg-type]

    def is_published(self, job_id: str) -> bool:
        """Whether a job's stream has its terminal entry."""
        stream = self.streams.get(job_id, [])
        return bool(stream) and isinstance(stream[-1], EndEvent)

    def new_execution(self) -> str:
        self._executions += 1
        return f"execution-{self._executions}"


class MemoryJobStore:
    """What one worker does with a :class:`MemoryQueue`."""

    def __init__(self, queue: MemoryQueue, worker: str = "minilab-memory") -> None:
        self._queue, self.worker = queue, worker
        self._is_away = False
        self.finishes = 0
        """Calls of :meth:`finish` that came through."""

    @contextmanager
    def away(self) -> Iterator[None]:
        """While entered, the store is unavailable."""
        self._is_away = True
        try:
            yield
        finally:
            self._is_away = False

    def open(self, on_stop: Callable[[str], None]) -> None:
        self._check()
        self._queue.leases.add(self.worker)

    def close(self) -> None:
        self._queue.leases.discard(self.worker)

    def claim(self, limit: int, wait: float) -> list[Claim]:
        self._check()
        if not self._queue.queued:
            time.sleep(wait)  # as the real one blocks, so that an idle worker leaves the interpreter to the others
        with self._queue.lock:
            return [self._start(self._queue.queued.popleft()) for _ in range(min(limit, len(self._queue.queued)))]

    def renew(self, jobs: Sequence[StartedJob]) -> Renewal:
        self._check()
        self._queue.leases.add(self.worker)
        stopped = tuple(job.job_id for job in jobs if job.job_id in self._queue.cancelled)
        return Renewal(len(self.owned(jobs)) == len(jobs), stopped)

    def owned(self, jobs: Sequence[StartedJob]) -> set[str]:
        self._check()
        return {job.execution_id for job in jobs if job.execution_id in self._queue.started}

    def finish(self, completions: Sequence[Completion]) -> set[str]:
        self._check()
        self.finishes += 1
        with self._queue.lock:
            owned = [each for each in completions if each.job.execution_id in self._queue.started]
            unpublished = {each.job.execution_id for each in owned if not self._queue.is_published(each.job.job_id)}
            for completion in owned:
                if completion.job.execution_id not in unpublished:
                    assert completion.job.job_id not in self._queue.ended, "a job ends once"
                    del self._queue.started[completion.job.execution_id]
                    self._queue.ended[completion.job.job_id] = completion
        return unpublished

    def survived(self, jobs: Sequence[StartedJob]) -> None:
        self._check()

    def alive(self, workers: set[str]) -> set[str]:
        self._check()
        return workers & self._queue.leases

    def started(self) -> list[StartedJob]:
        self._check()
        return [claim.job for claim in self._queue.started.values()]

    def unstarted(self) -> list[QueuedJob]:
        self._check()
        return []

    def requeue(self, job: StartedJob, *, if_expired: bool) -> bool:
        self._check()
        with self._queue.lock:
            if if_expired and job.worker in self._queue.leases:
                return False
            claim = self._queue.started.pop(job.execution_id, None)
            if claim is None:
                return False
            leases = claim.expired_leases + if_expired
            self._queue.queued.appendleft(replace(claim, expired_leases=leases))
            return True

    def requeue_unstarted(self, job: QueuedJob) -> bool:
        return False

    def trim(self) -> None:
        self._check()

    def _start(self, queued: Claim) -> Claim:
        job = replace(queued.job, execution_id=self._queue.new_execution(), worker=self.worker)
        stream = tuple(self._queue.streams.get(job.job_id, ()))
        claim = replace(queued, job=job, stream=stream, is_cancelled=job.job_id in self._queue.cancelled)
        self._queue.started[job.execution_id] = claim
        return claim

    def _check(self) -> None:
        if self._is_away:
            raise redis.ConnectionError("the store is away")
