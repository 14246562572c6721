"""Two kinds of load on a worker, and what each lets one see. It must not know how the worker was started.

A backlog waits in the queue before the worker looks at it, and nobody reads the streams: so the service has the
processors to itself, and its tokens are counted from Redis's own statistics. In a closed loop as many clients as the
worker has places submit their next job when one has ended, and some follow their tokens: so the times are those
that a client sees while it, too, needs the processors.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import redis
from rq import Queue
from service import QUEUE, WorkerProcess

from minilab_gen.errors import MiniLabError
from minilab_gen.measurement import TokenClock
from minilab_gen.protocol import keys
from minilab_gen.protocol.events import EndEvent, decode_entry, entry_id
from minilab_gen.protocol.jobs import Submission, enqueue
from minilab_gen.request import GenerationRequest

_LOOK_EVERY: Final = 0.05
"""Seconds between two looks at the books, each of half a millisecond: one in a hundred of one core."""
_FOLLOWED: Final = 8
"""Streams that are read at a time, of however many jobs: enough to time, few enough to leave the processors free."""
_READ_MS: Final = 2
"""What one read of the streams waits, so that ended jobs are soon replaced."""


@dataclass(frozen=True, slots=True)
class Look:
    """What Redis says at one moment."""

    seconds: float
    waiting: int
    started: int
    finished: int
    tokens: int
    """Written to streams since the server started."""


class Books:
    """RQ's books of the queue, and Redis's count of stream entries."""

    def __init__(self, connection: redis.Redis, running: WorkerProcess) -> None:
        queue = Queue(QUEUE, connection=connection)
        self._connection, self._worker = connection, running
        self._waiting = queue.key
        self._registries = (
            queue.started_job_registry.key,
            queue.finished_job_registry.key,
            queue.failed_job_registry.key,
        )

    def look(self) -> Look:
        """Raises MiniLabError where a job has failed or the worker is gone: nothing measured is worth anything then."""
        self._worker.check_alive()
        with self._connection.pipeline(transaction=True) as pipeline:
            pipeline.llen(self._waiting)
            for registry in self._registries:
                pipeline.zcard(registry)
            pipeline.info("commandstats")
            waiting, started, finished, failed, statistics = pipeline.execute()
        if failed:
            raise MiniLabError(f"every job must finish, got {failed} failed ones")
        entries = statistics.get("cmdstat_xadd", {}).get("calls", 0)
        return Look(time.perf_counter(), waiting, started, finished, entries - finished)  # each job's end is an entry

    def finished(self) -> int:
        """Only the count of finished jobs, in one small command."""
        return int(self._connection.zcard(self._registries[1]))


def run_backlog(
    connection: redis.Redis, running: WorkerProcess, requests: Sequence[GenerationRequest], at_once: int
) -> tuple[int, float]:
    """Tokens and seconds of the steady part of a backlog: from when all places are taken to when none waits."""
    books = Books(connection, running)
    before = books.look()
    with running.standing_still():
        for request in requests:
            enqueue(connection, request, Submission())
    looks = [books.look()]
    while looks[-1].finished < before.finished + len(requests):
        time.sleep(_LOOK_EVERY)
        looks.append(books.look())
    full = next((place for place, look in enumerate(looks) if look.started >= at_once), 0)
    steady = [look for look in looks[full:] if look.waiting]
    first, last = (steady[0], steady[-1]) if len(steady) > 1 else (looks[0], looks[-1])
    return last.tokens - first.tokens, last.seconds - first.seconds


class ClosedLoop:
    """Clients that are ``at_once`` many: in one process, so that they cost little, and by what our clients use."""

    def __init__(self, connection: redis.Redis, running: WorkerProcess, at_once: int) -> None:
        self._connection, self._at_once = connection, at_once
        self._books = Books(connection, running)
        self._running = running
        self._followed: dict[str, str] = {}  # stream: the last entry seen
        self.clock = TokenClock()

    def run(self, requests: Sequence[GenerationRequest]) -> TokenClock:
        """Have every request answered; returns the times of the tokens that were followed."""
        to_come, submitted = deque(requests), 0
        before = self._books.look().finished
        while True:
            self._running.check_alive()
            ended = self._books.finished() - before
            if ended == len(requests) and not self._followed:
                break
            is_room = bool(to_come) and submitted - ended < self._at_once
            if is_room:  # one between two reads: submitting takes a millisecond, in which tokens come
                self._submit(to_come.popleft())
                submitted += 1
            self._read(block=None if is_room else _READ_MS)
        self._books.look()
        return self.clock

    def _submit(self, request: GenerationRequest) -> None:
        job_id = enqueue(self._connection, request, Submission())
        if len(self._followed) < _FOLLOWED:
            stream = keys.token_stream(job_id)
            self.clock.ask(stream)
            self._followed[stream] = entry_id(0)

    def _read(self, block: int | None) -> None:
        if not self._followed:
            time.sleep((block or 0) / 1000)
            return
        positions: Any = self._followed
        answer: Any = self._connection.xread(positions, block=block)
        now = time.perf_counter()
        for raw_stream, entries in answer or ():
            for entry in entries:
                self._take(raw_stream.decode(), decode_entry(entry), now)

    def _take(self, stream: str, event: Any, now: float) -> None:
        if isinstance(event, EndEvent):
            del self._followed[stream]
        else:
            self._followed[stream] = entry_id(event.number)
            self.clock.take(stream, now)
