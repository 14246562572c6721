"""The jobs that Redis knows of, newest first, found without reading the records of all. It must not change any of them.

RQ tidies a registry when it is read, and takes a job whose worker is late for a failed one; that is left to workers.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Any, Final

import redis
from rq import Queue
from rq.job import Job
from rq.registry import BaseRegistry

from minilab_gen.protocol import keys
from minilab_gen.protocol.connection import checked_answers
from minilab_gen.protocol.events import EndEvent, Event, JobState
from minilab_gen.protocol.jobs import decided, queue_of, state_named
from minilab_gen.protocol.keys import Priority
from minilab_gen.protocol.streams import last_event

PAGE: Final = 1000
"""Jobs looked at in one round trip."""

WINDOW: Final = 1000
"""Jobs of one queue that are put in order together. Queues hold their jobs as submitted and registries as ended, which
is nearly the same. So the order is right as long as no job has overtaken more than these of its own queue."""

_ROWS: Final = 100
"""Jobs whose state and tokens are read in one round trip."""

OnUnreadable = Callable[[str], None]
"""Called with the id of a job whose record cannot be read."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which jobs are asked for; None is any."""

    state: JobState | None = None
    model: str | None = None
    priority: Priority | None = None
    since: datetime | None = None
    """With its zone: only jobs submitted then or later."""


@dataclass(frozen=True, slots=True)
class JobRow:
    """A job in the list."""

    job_id: str
    state: JobState
    model: str
    priority: Priority
    tokens: int
    end: str | None
    created: str
    """When it was submitted, in ISO 8601 with the zone."""


@dataclass(frozen=True, slots=True, order=True)
class _Submitted:
    """A job by the time of its submission."""

    created: datetime
    job_id: str
    queue: str


@dataclass(frozen=True, slots=True)
class _Source:
    """A list or sorted set of RQ's in which jobs stand, the newest last."""

    queue: str
    key: str
    is_list: bool
    is_sampled: bool = False
    """Only its last page counts, since most of what stands there is not wanted."""

    def count_in(self, pipeline: Any) -> None:
        if self.is_list:
            pipeline.llen(self.key)
        else:
            pipeline.zcount(self.key, "-inf", "+inf")

    def pages(self, connection: redis.Redis) -> Iterator[list[str]]:
        """The ids in it, from the last to the first."""
        read = connection.lrange if self.is_list else connection.zrange
        last = -1
        while True:
            members: Any = read(self.key, last - PAGE + 1, last)
            if not members:
                return
            # Of an execution, only its job. Whatever is no job id is no job.
            yield [member.decode().partition(":")[0] for member in reversed(members) if member.isascii()]
            last -= PAGE
            if self.is_sampled:
                return


def newest_jobs(connection: redis.Redis, wanted: Wanted, on_unreadable: OnUnreadable) -> Iterator[JobRow]:
    """The jobs that are wanted, newest first. Records are read as rows are taken, a few thousand ahead at most."""
    found = _in_order(connection, wanted, on_unreadable)
    while chunk := list(islice(found, _ROWS)):
        for row in _rows(connection, chunk, on_unreadable):
            if wanted.state in (None, row.state):
                yield row


def our_queues(connection: redis.Redis) -> list[Queue]:
    """The queues of all models in which a job has ever been, by name."""
    names = sorted(queue.name for queue in Queue.all(connection=connection))
    return [queue_of(connection, name) for name in names if keys.queue_parts(name)]


def _in_order(connection: redis.Redis, wanted: Wanted, on_unreadable: OnUnreadable) -> Iterator[_Submitted]:
    sources = _sources(connection, wanted)
    ordered = [_newest_first(connection, source, on_unreadable) for source in sources]
    seen: set[str] = set()
    for found in heapq.merge(*ordered, reverse=True):
        if wanted.since is not None and found.created < wanted.since:
            return
        if found.job_id not in seen:  # a job may go from one source to another meanwhile
            seen.add(found.job_id)
            yield found


def _sources(connection: redis.Redis, wanted: Wanted) -> list[_Source]:
    """Where jobs that are wanted may stand, without the sources that are empty."""
    sources = [
        source
        for queue in our_queues(connection)
        if _is_wanted(queue.name, wanted)
        for source in _sources_of(queue, wanted.state)
    ]
    with connection.pipeline(transaction=False) as pipeline:
        for source in sources:
            source.count_in(pipeline)
        counts = pipeline.execute()
    return [source for source, count in zip(sources, counts, strict=True) if count]


def _is_wanted(queue: str, wanted: Wanted) -> bool:
    ours = keys.queue_parts(queue)
    return ours is not None and wanted.model in (None, ours[0]) and wanted.priority in (None, ours[1])


def _sources_of(queue: Queue, state: JobState | None) -> list[_Source]:
    registries: dict[JobState, list[BaseRegistry]] = {
        "queued": [queue.deferred_job_registry, queue.scheduled_job_registry],
        "started": [queue.started_job_registry],
        "finished": [queue.finished_job_registry],
        "failed": [queue.failed_job_registry],
        "cancelled": [queue.canceled_job_registry],
    }
    wanted = registries.values() if state is None else [registries[state]]
    sources = [_Source(queue.name, registry.key, is_list=False) for group in wanted for registry in group]
    if state in ("finished", "failed", "cancelled"):  # one that has ended, and RQ does not know it yet
        sources.append(_Source(queue.name, queue.started_job_registry.key, is_list=False))
    if state in (None, "queued"):
        sources.append(_Source(queue.name, queue.key, is_list=True))
    if state == "cancelled":  # an ordinary RQ worker records a job that was told to stop as a failed one
        sources.append(_Source(queue.name, queue.failed_job_registry.key, is_list=False, is_sampled=True))
    return sources


def _newest_first(connection: redis.Redis, source: _Source, on_unreadable: OnUnreadable) -> Iterator[_Submitted]:
    """The jobs of one source, put in order within a window that moves over them."""
    held: list[_Submitted] = []
    for page in source.pages(connection):
        held = sorted([*held, *_submitted(connection, source, page, on_unreadable)])
        while len(held) > WINDOW:
            yield held.pop()
    yield from reversed(held)


def _submitted(
    connection: redis.Redis, source: _Source, job_ids: list[str], on_unreadable: OnUnreadable
) -> Iterator[_Submitted]:
    """When these jobs were submitted; those that have expired are left out."""
    with connection.pipeline(transaction=False) as pipeline:
        for job_id in job_ids:
            pipeline.hget(Job.key_for(job_id), "created_at")
        answers = checked_answers(pipeline.execute(raise_on_error=False))
    for job_id, answer in zip(job_ids, answers, strict=True):
        try:
            if answer is not None:
                yield _Submitted(_moment(answer), keys.check_job_id(job_id), source.queue)
        except ValueError:  # or a RequestError, which is one
            on_unreadable(job_id)


def _moment(answer: Any) -> datetime:
    """The time in RQ's record of a job. Raises ValueError for what is none."""
    moment = datetime.fromisoformat(answer.decode("ascii", errors="replace") if isinstance(answer, bytes) else "")
    if moment.tzinfo is None:
        raise ValueError("the time has no zone")
    return moment


def _rows(connection: redis.Redis, chunk: list[_Submitted], on_unreadable: OnUnreadable) -> Iterator[JobRow]:
    with connection.pipeline(transaction=False) as pipeline:
        for found in chunk:
            pipeline.hget(Job.key_for(found.job_id), "status")
            pipeline.xrevrange(keys.token_stream(found.job_id), count=1)
        answers = checked_answers(pipeline.execute(raise_on_error=False))
    for found, status, last in zip(chunk, answers[::2], answers[1::2], strict=True):
        if status is None:  # it has expired since
            continue
        state = state_named(status.decode("ascii", errors="replace")) if isinstance(status, bytes) else None
        if state is None:
            on_unreadable(found.job_id)
        else:
            yield _row(found, state, last_event(last))


def _row(found: _Submitted, state: JobState, last: Event | None) -> JobRow:
    end = last if isinstance(last, EndEvent) else None
    ours = keys.queue_parts(found.queue)
    assert ours is not None, "jobs are looked for in our queues only"
    return JobRow(
        job_id=found.job_id,
        state=decided(state, end),
        model=ours[0],
        priority=ours[1],
        tokens=end.tokens if end is not None else last.number if last is not None else 0,
        end=end.reason if end is not None else None,
        created=found.created.isoformat(timespec="seconds"),
    )
