"""Claims queued jobs and starts them in RQ's records, so that a crash at any point loses none.

One script takes ids from the queues and starts what can simply be started. What it leaves in the intermediate queue is
looked at here: :func:`inspect` decides and writes nothing, :meth:`Claims.apply` acts.
"""

from __future__ import annotations

import contextlib
import logging
import math
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from rq.job import Job
from rq.utils import now, utcformat
from rq.worker import BaseWorker

from minilab_gen.errors import StreamError, UnknownJobError
from minilab_gen.protocol import keys
from minilab_gen.protocol.endings import settle
from minilab_gen.protocol.events import EndEvent, Event
from minilab_gen.protocol.streams import decode_stream, publish
from minilab_worker import job_store
from minilab_worker.job_store import Claim, StartedJob
from minilab_worker.rq.job_record import UNREADABLE, RecordReader
from minilab_worker.rq.scripts import CLAIM
from minilab_worker.rq.started_jobs import owners_key, started_key

_log = logging.getLogger(__name__)

HEARTBEAT_TTL: Final = keys.RETENTION
"""Seconds that RQ believes in an execution without a heartbeat. RQ fails a job whose execution is older as soon as any
process looks at its registry, ``rq info`` for instance. Ours must outlive their workers until another one comes: a
lease, where one is up, and a night, where none is. Whether a worker is alive is decided by its lease, so nothing waits
for this."""

CLAIM_AT_ONCE: Final = 16
"""Jobs in one claim: enough to fill a worker in a few round trips, few enough not to delay their first tokens."""


@dataclass(frozen=True, slots=True)
class Obstacle:
    """An id in an intermediate queue whose job could not simply be started, and what stood in the way."""

    queue: int
    """The number of its queue, from 1."""
    entry: bytes
    why: str
    """As the script has it: no id, gone, expired, unreadable, overwritten, running, ended or begun."""
    begun_by: str = ""
    """The fingerprint of the model that began it, for ``begun``."""
    left_at: float | None = None
    """Unix time since when it has been left to a worker of that model."""
    found_at: float = 0.0
    """Unix time of this look; both by the server's clock."""

    @property
    def job_id(self) -> str:
        return self.entry.decode("ascii", errors="replace")


@dataclass(frozen=True, slots=True)
class _Started:
    """A job that the script has started, as it found it."""

    job: StartedJob
    record: dict[bytes, bytes]
    """RQ's hash, as it was before."""
    stream: list[Event] | None
    """None where it is not whole."""
    is_cancelled: bool
    expired_leases: int
    found_at: float
    """Unix time by the server's clock."""


_Given = tuple[bytes, int, bool]
"""A job that the script is to start from an intermediate queue: its id, the number of its queue, and whether it may
continue another model's output."""


class Action(Enum):
    """What to do about an obstacle."""

    IGNORE = "another worker has put it back into its queue"
    DROP = "take it out of the intermediate queue: there is nothing to start"
    SETTLE = "the same, once its stream has a terminal entry"
    REFUSE = "end its stream with an error and drop it"
    REPAIR = "delete RQ's registry of its executions and start it"
    LEAVE = "leave it to a worker of the model that began it"
    CONTINUE = "no such worker has come: start it, so that it can be ended"


def inspect(obstacle: Obstacle) -> Action:
    """What to do about an obstacle."""
    if obstacle.why == "begun":
        waited = 0.0 if obstacle.left_at is None else obstacle.found_at - obstacle.left_at
        return Action.CONTINUE if waited > job_store.FINGERPRINT_WAIT else Action.LEAVE
    return _ACTIONS[obstacle.why]


_ACTIONS: Final = {
    "gone": Action.IGNORE,
    "no id": Action.DROP,
    "expired": Action.DROP,
    "running": Action.DROP,
    "ended": Action.SETTLE,
    "unreadable": Action.REFUSE,
    "overwritten": Action.REPAIR,
}


class Claims:
    """Moves jobs from queues into the hands of one worker."""

    def __init__(self, worker: BaseWorker, lease: int, fingerprint: str) -> None:
        """``fingerprint`` is that of the worker's model: a half-written stream is continued by an equal one only."""
        self._worker, self._lease, self._fingerprint = worker, lease, fingerprint
        self._connection, self._queues = worker.connection, worker.queues
        self._records = RecordReader(worker.connection)
        self._script = worker.connection.register_script(CLAIM)
        self._keys = [keys.worker_lease(worker.name), worker.key, worker.executions_key]
        for queue in self._queues:
            self._keys += [queue.key, queue.intermediate_queue_key, started_key(queue.name)]

    def claim(self, limit: int, wait: float) -> list[Claim]:
        """Start up to ``limit`` queued jobs, high priority first; with none queued, wait up to ``wait`` seconds."""
        found = self._run(min(limit, CLAIM_AT_ONCE)) or self._run(0, self._wait_for_one(wait))
        if again := self.apply([one for one in found if isinstance(one, Obstacle)]):
            found += self._run(0, again)
        started = [one for one in found if isinstance(one, _Started)]
        for one in started:
            if one.stream is None:
                self._delete_stream(one.job.job_id)
        return [self._claim(one) for one in started]

    def apply(self, obstacles: Iterable[Obstacle]) -> list[_Given]:
        """Act on what was found; gives the jobs to start after all, as the script takes them."""
        again = []
        for obstacle in obstacles:
            action = inspect(obstacle)
            if action in (Action.REPAIR, Action.CONTINUE):
                if action is Action.REPAIR:
                    self._repair(obstacle)
                again.append((obstacle.entry, obstacle.queue, action is Action.CONTINUE))
            elif action is Action.LEAVE:
                self._leave(obstacle)
            elif action is not Action.IGNORE:
                self._drop(obstacle, action)
        return again

    def _run(self, limit: int, given: Sequence[_Given] = ()) -> list[_Started | Obstacle]:
        """Run the script over the queues, and over ``given`` jobs in an intermediate queue."""
        if not limit and not given:
            return []
        moment = now()
        words: list[Any] = [self._worker.name, self._lease, self._fingerprint, HEARTBEAT_TTL]
        words += [utcformat(moment), moment.timestamp(), secrets.token_hex(12), limit]
        for entry, queue, may_continue in given:
            words += [entry, queue, int(may_continue)]
        return [self._read(*answer) for answer in self._script(self._keys, words)]

    def _wait_for_one(self, wait: float) -> list[_Given]:
        """Block on the queue of normal priority; the others are looked at again after ``wait``."""
        if wait <= 0:
            return []
        number = len(self._queues) // 2
        queue = self._queues[number]
        entry: Any = self._connection.blmove(queue.key, queue.intermediate_queue_key, wait)  # type: ignore[arg-type]
        return [] if entry is None else [(entry, number + 1, False)]

    def _read(self, queue: int, entry: bytes, why: bytes, fields: list[bytes], *more: Any) -> _Started | Obstacle:
        """One answer of the script."""
        if why != b"started":
            begun_by, left_at = fields or (None, None)
            since = None if left_at is None else _number(left_at)
            return Obstacle(
                queue, entry, why.decode(), (begun_by or b"").decode(errors="replace"), since, float(more[0])
            )
        job_id, (execution_id, stream, is_cancelled, expired_leases, started_at, found_at) = entry.decode(), more
        name = self._queues[queue - 1].name
        execution = (job_id, execution_id.decode(), name, self._worker.name, owners_key(job_id), float(started_at))
        record = dict(zip(fields[::2], fields[1::2], strict=True))
        events = _whole_stream(stream)
        return _Started(
            StartedJob(*execution), record, events, bool(is_cancelled), int(_number(expired_leases)), float(found_at)
        )

    def _claim(self, started: _Started) -> Claim:
        contents = self._records.read(started.job.job_id, started.record, started.found_at)
        stream = tuple(started.stream or ())
        begun_by = started.record.get(keys.FINGERPRINT_FIELD.encode(), b"").decode(errors="replace")
        is_half_written = bool(stream) and not isinstance(stream[-1], EndEvent)
        return Claim(
            job=started.job,
            request=contents.request,
            refusal=contents.refusal,
            stream=stream,
            timeout=contents.timeout,
            submitted_at=contents.submitted_at,
            has_expired=contents.has_expired,
            is_cancelled=started.is_cancelled,
            expired_leases=started.expired_leases,
            begun_by=begun_by if is_half_written and begun_by not in ("", self._fingerprint) else None,
        )

    def _delete_stream(self, job_id: str) -> None:
        """Its tokens can be computed again."""
        _log.warning("%s: the stream is not whole, it begins anew", job_id, extra={"job_id": job_id})
        self._connection.delete(keys.token_stream(job_id))

    def _repair(self, obstacle: Obstacle) -> None:
        """Its registry of executions is of another type: no execution can be in it, nor be put there."""
        why = "RQ's registry of its executions is overwritten, it begins anew"
        _log.warning("%s: %s", obstacle.job_id, why, extra={"job_id": obstacle.job_id})
        self._connection.delete(owners_key(obstacle.job_id))

    def _leave(self, obstacle: Obstacle) -> None:
        """It stays in the intermediate queue until it counts as never started."""
        job_id, begun_by = obstacle.job_id, obstacle.begun_by
        extra = {"job_id": job_id, "fingerprint": begun_by}
        _log.warning("%s: left to a worker of the model %s, which started it", job_id, begun_by, extra=extra)
        if obstacle.left_at is None:
            self._connection.hsetnx(Job.key_for(job_id), keys.LEFT_FIELD, str(obstacle.found_at))

    def _drop(self, obstacle: Obstacle, action: Action) -> None:
        job_id, queue = obstacle.job_id, self._queues[obstacle.queue - 1]
        _log.debug("%s: nothing to start: %s", job_id, obstacle.why, extra={"job_id": job_id})
        if action is Action.SETTLE:
            with contextlib.suppress(UnknownJobError, StreamError):  # it has ended, and its tokens have expired
                settle(self._connection, job_id)
        if action is Action.REFUSE:
            _log.warning("%s: %s", job_id, UNREADABLE, extra={"job_id": job_id})
            end = EndEvent("error", 0, 0, error=UNREADABLE)
            publish(self._connection, [(job_id, end)], running_ttl=keys.RETENTION)
            self._connection.expire(Job.key_for(job_id), keys.RETENTION)
        self._connection.lrem(queue.intermediate_queue_key, 1, obstacle.entry)  # type: ignore[arg-type]


def _whole_stream(answer: Any) -> list[Event] | None:
    try:
        return decode_stream(answer)
    except StreamError:  # which may quote tokens
        return None


def _number(stored: Any) -> float:
    """A number that we stored; 0 for what is missing or was overwritten."""
    try:
        number = float(stored)
    except (TypeError, ValueError):
        return 0.0
    return number if math.isfinite(number) else 0.0
