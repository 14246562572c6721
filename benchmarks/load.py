"""Two kinds of load on a worker, and what each lets one see.

A backlog waits in the queue before the worker looks at it, and no client reads the streams: so the service has the
processors to itself, and its tokens are counted from Redis's own statistics. In a closed loop there are as many
clients as the worker has slots, each submits its next job when one has ended, and some follow their tokens: so the
times are those that a client sees while it, too, needs the processors.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import redis
from follower import Follower
from rq import Queue
from service import QUEUE, WorkerProcess

from minilab_gen.errors import MiniLabError
from minilab_gen.measurement import TokenClock
from minilab_gen.protocol.submission import Submission, enqueue
from minilab_gen.request import GenerationRequest

_LOOK_EVERY: Final = 0.05
"""Seconds between two looks at the counts, each of half a millisecond: one in a hundred of one core."""
_ROOM_EVERY: Final = 0.002
"""Seconds between two looks for an ended job, which the next one replaces."""
_FOLLOWED: Final = 8
"""Streams that are followed at a time, about, of however many jobs: enough to time, few enough to cost little."""


@dataclass(frozen=True, slots=True)
class Look:
    """What Redis says at one moment."""

    seconds: float
    waiting: int
    started: int
    finished: int
    tokens: int
    """Written to streams since the server started."""


class QueueCounts:
    """RQ's counts of the jobs of a queue, and Redis's count of stream entries."""

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
        """Raises MiniLabError where a job has failed or the worker has exited: then nothing measured counts."""
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
        """Only the count of finished jobs, in one small command. Raises MiniLabError where the worker has exited."""
        self._worker.check_alive()
        return int(self._connection.zcard(self._registries[1]))


def run_backlog(
    connection: redis.Redis, running: WorkerProcess, requests: Sequence[GenerationRequest], at_once: int
) -> tuple[int, float]:
    """Tokens and seconds of the steady part of a backlog: from when all slots are in use to when none waits."""
    counts = QueueCounts(connection, running)
    before = counts.look()
    with running.standing_still():
        for request in requests:
            enqueue(connection, request, Submission())
    looks = [counts.look()]
    while looks[-1].finished < before.finished + len(requests):
        time.sleep(_LOOK_EVERY)
        looks.append(counts.look())
    full = next((number for number, look in enumerate(looks) if look.started >= at_once), 0)
    steady = [look for look in looks[full:] if look.waiting]
    first, last = (steady[0], steady[-1]) if len(steady) > 1 else (looks[0], looks[-1])
    return last.tokens - first.tokens, last.seconds - first.seconds


def run_closed_loop(
    connection: redis.Redis,
    running: WorkerProcess,
    requests: Sequence[GenerationRequest],
    at_once: int,
    follower: Follower,
) -> TokenClock:
    """Keep ``at_once`` jobs going until every request is answered; the times of the tokens that were followed."""
    counts = QueueCounts(connection, running)
    before = counts.look().finished
    follow_every = max(1, at_once // _FOLLOWED)
    for number, request in enumerate(requests):
        while number - (counts.finished() - before) >= at_once:
            time.sleep(_ROOM_EVERY)
        job_id = enqueue(connection, request, Submission())
        if number % follow_every == 0:
            follower.follow(job_id, time.perf_counter())
    while counts.look().finished - before < len(requests):
        time.sleep(_LOOK_EVERY)
    return follower.collect()
