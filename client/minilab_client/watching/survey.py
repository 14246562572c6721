"""What there is in RQ's records, in one round trip: queues, running and ended jobs, workers. Read-only.

However much waits or runs, it costs the same: lengths and the ends of lists.
"""

from __future__ import annotations

import contextlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import redis
from rq import Queue
from rq.job import Job
from rq.worker_registration import REDIS_WORKER_KEYS

from minilab_client.watching.snapshot import ModelLine
from minilab_gen.errors import RequestError
from minilab_gen.protocol import keys
from minilab_gen.protocol.jobs import queue_of

MOST_QUEUES: Final = 150
"""Queues that are looked into: those of 50 models, more than any service here has."""


@dataclass(frozen=True, slots=True)
class Ending:
    """A job that RQ's records say has ended."""

    ended_at: float
    """Unix time in seconds, as far as the records tell: within what others may have set as its time to live."""
    job_id: str
    state: str


@dataclass(frozen=True, slots=True)
class Survey:
    """What there is."""

    queues: tuple[str, ...]
    """The names of all our queues."""
    models: dict[str, ModelLine]
    running: tuple[str, ...]
    """Jobs that run: first those that were asked about and still do, then others."""
    endings: tuple[Ending, ...]
    """Newest first, each job once."""
    workers: tuple[str, ...]
    """RQ's keys of all workers, also of programs that are not ours."""


def survey(connection: redis.Redis, queues: Sequence[str], followed: Sequence[str], most: int, now: float) -> Survey:
    """Look into the first :data:`MOST_QUEUES` of these queues: at most ``most`` ids, 1 or more, from each list.

    ``followed`` are jobs that ran a while ago; ``now`` is by the server's clock. Raises what redis-py raises.
    """
    visited = queues[:MOST_QUEUES]
    with connection.pipeline(transaction=False) as pipeline:
        pipeline.smembers(Queue.redis_queues_keys)
        pipeline.smembers(REDIS_WORKER_KEYS)
        for job_id in followed:
            pipeline.hget(Job.key_for(job_id), "status")
        for name in visited:
            _ask(pipeline, queue_of(connection, name), most, now)
        answers = readable(pipeline.execute(raise_on_error=False))
    names = [text_of(key).removeprefix(Queue.redis_queue_namespace_prefix) for key in next(answers) or ()]
    workers = [text_of(key) for key in next(answers) or ()]
    still = [job_id for job_id in followed if next(answers) == b"started"]
    records = [_read(name, answers) for name in visited]
    return Survey(
        queues=tuple(sorted(name for name in names if keys.queue_parts(name))),
        models=_by_model(records),
        running=tuple(dict.fromkeys([*still, *(job_id for record in records for job_id in record.running)])),
        endings=_newest_first(end for record in records for end in record.endings),
        workers=tuple(sorted(workers)),
    )


def readable(answers: Iterable[Any]) -> Iterator[Any]:
    """The answers, with None for a key that was overwritten with another type. Raises every other error."""
    for answer in answers:
        if isinstance(answer, Exception):
            if not str(answer).startswith("WRONGTYPE"):
                raise answer
            yield None
        else:
            yield answer


def text_of(raw: bytes) -> str:
    return raw.decode(errors="replace")


@dataclass(frozen=True, slots=True)
class _QueueRecord:
    """What was found in one queue."""

    model: str
    figures: Counter[str]
    """By the names of the fields of a line."""
    running: tuple[str, ...]
    endings: tuple[Ending, ...]


_ENDINGS: Final = (("finished", keys.RETENTION), ("failed", keys.RETENTION), ("cancelled", 0))
"""How jobs may have ended by RQ's records, and how many seconds after the end lies the time that is written there."""


def _ask(pipeline: Any, queue: Queue, most: int, now: float) -> None:
    running, done = queue.started_job_registry.key, queue.finished_job_registry.key
    failed, cancelled = queue.failed_job_registry.key, queue.canceled_job_registry.key
    pipeline.llen(queue.key)
    pipeline.zcount(running, "-inf", "+inf")
    pipeline.zcount(done, now, "+inf")
    pipeline.zcount(failed, now, "+inf")
    pipeline.zcount(cancelled, now - keys.RETENTION, "+inf")
    pipeline.zrange(running, 0, most - 1)
    for registry in (done, failed, cancelled):
        pipeline.zrange(registry, -most, -1, withscores=True)


def _read(name: str, answers: Iterator[Any]) -> _QueueRecord:
    """Take as many answers as questions were asked about a queue."""
    parts = keys.queue_parts(name)
    assert parts is not None, name
    model, priority = parts
    figures = Counter({what: next(answers) or 0 for what in (priority, "running", "done", "failed", "cancelled")})
    running = _job_ids(member.partition(b":")[0] for member in next(answers) or ())
    endings = [
        Ending(score - later, job_id, state)
        for state, later in _ENDINGS
        for member, score in next(answers) or ()
        for job_id in _job_ids([member])
    ]
    return _QueueRecord(model, figures, tuple(running), tuple(endings))


def _job_ids(members: Iterable[bytes]) -> Iterator[str]:
    """Those that can be job ids."""
    for member in members:
        with contextlib.suppress(RequestError):
            yield keys.check_job_id(text_of(member))


def _newest_first(endings: Iterable[Ending]) -> tuple[Ending, ...]:
    found: dict[str, Ending] = {}
    for ending in sorted(endings, key=lambda ending: -ending.ended_at):
        found.setdefault(ending.job_id, ending)  # one that several registries hold counts as what it became last
    return tuple(found.values())


def _by_model(records: Iterable[_QueueRecord]) -> dict[str, ModelLine]:
    """One line for each model, the figures of its queues added up."""
    sums: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for record in records:
        sums[record.model].update(record.figures)
    return {model: ModelLine(model, **figures) for model, figures in sums.items()}
