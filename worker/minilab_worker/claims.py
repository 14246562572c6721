"""Claims waiting jobs and starts them in RQ's books, so that a crash at any point loses none.

It must not know about models or threads. An id goes from its queue to RQ's intermediate queue in one command, and
leaves that in the transaction that starts its job. Who stands still in between finds out by the watch on the job's
record: whoever gives a job back, starts or ends it touches that.
"""

from __future__ import annotations

import contextlib
import logging
import math
from dataclasses import dataclass
from typing import Any, Final

import redis
from rq.executions import Execution, ExecutionRegistry
from rq.job import Job, JobStatus
from rq.queue import Queue
from rq.worker import BaseWorker, WorkerStatus

from minilab_gen.errors import RequestError, StreamError, UnknownJobError
from minilab_gen.protocol import keys
from minilab_gen.protocol.clock import unix_time
from minilab_gen.protocol.connection import checked_answers
from minilab_gen.protocol.endings import settle
from minilab_gen.protocol.events import EndEvent, Event, decode_entry
from minilab_gen.protocol.jobs import check_record
from minilab_gen.protocol.streams import check_unbroken, publish

_log = logging.getLogger(__name__)

HEARTBEAT_TTL: Final = keys.RETENTION
"""Seconds that RQ believes in an execution without a heartbeat. RQ fails a job whose execution is older as soon as
anybody looks at its registry, ``rq info`` for instance. Ours must outlive their workers until another one comes: a
lease, where one is up, and a night, where none is. Who is dead is told by leases, so nothing waits for this."""

EQUAL_PATIENCE: Final = 300.0
"""Seconds for which a half-written stream waits for a worker whose model gives equal tokens: time to start one."""

_ENDED: Final = frozenset({JobStatus.FINISHED, JobStatus.FAILED, JobStatus.CANCELED, JobStatus.STOPPED})


@dataclass(frozen=True, slots=True)
class Claim:
    """A job that is now started in RQ's books, with what its stream and its cancel flag said at that moment."""

    job: Job
    execution: Execution
    stream: list[Event]
    cancelled: bool
    deaths: int
    """Workers that died while they ran it."""
    moment: float
    """When, in Unix time by the server's clock."""
    begun_by: str | None = None
    """The fingerprint of the model that began it and for which we have waited in vain; None if we may go on with it."""


@dataclass(frozen=True, slots=True)
class _Startable:
    """A job that this worker may start."""

    queue: Queue
    job: Job
    begun_by: str | None


@dataclass(frozen=True, slots=True)
class _Found:
    """A claimed id and what stands in Redis about its job."""

    queue: Queue
    job_id: str
    record: Any
    """RQ's hash, or the error that reading it gave."""
    is_ours: bool
    """Whether it is still in the intermediate queue."""
    is_held: bool
    """Whether some worker runs it already: the same id was queued twice."""
    is_half_written: bool
    """Whether its stream holds tokens and no end."""


class Claims:
    """Moves jobs from queues into the hands of one worker."""

    def __init__(self, worker: BaseWorker, lease: int, fingerprint: str) -> None:
        """``fingerprint`` is that of the worker's model: a half-written stream is continued by an equal one only."""
        self._worker, self._lease, self._fingerprint = worker, lease, fingerprint
        self._connection, self._queues, self._serializer = worker.connection, worker.queues, worker.serializer

    def claim(self, limit: int, wait: float) -> list[Claim]:
        """Start up to ``limit`` waiting jobs, high priority first; with none waiting, wait up to ``wait`` seconds."""
        moved = self._move(limit) or self._wait_for_one(wait)
        while moved:
            try:
                return self._start(moved)
            except redis.WatchError:  # somebody else touched one of them: look again
                continue
        return []

    def _move(self, limit: int) -> list[tuple[Queue, str]]:
        moved: list[tuple[Queue, str]] = []
        for queue in self._queues:
            if len(moved) == limit:
                break
            with self._connection.pipeline(transaction=False) as pipeline:
                for _ in range(limit - len(moved)):
                    pipeline.lmove(queue.key, queue.intermediate_queue_key)
                answers = pipeline.execute()
            moved += self._readable(queue, [answer for answer in answers if answer is not None])
        return moved

    def _readable(self, queue: Queue, moved: list[bytes]) -> list[tuple[Queue, str]]:
        """Moved entries as job ids. What cannot be one is dropped: no record can be behind it."""
        readable = []
        for entry in moved:
            try:
                readable.append((queue, keys.check_job_id(entry.decode("ascii", errors="replace"))))
            except RequestError as error:
                self._connection.lrem(queue.intermediate_queue_key, 1, entry)  # type: ignore[arg-type]
                _log.warning("%s: an entry was dropped: %s", queue.name, error)
        return readable

    def _wait_for_one(self, wait: float) -> list[tuple[Queue, str]]:
        """Block on the queue of normal priority; the others are looked at again after ``wait``."""
        if wait <= 0:
            return []
        queue = self._queues[len(self._queues) // 2]
        job_id: Any = self._connection.blmove(queue.key, queue.intermediate_queue_key, wait)  # type: ignore[arg-type]
        return self._readable(queue, [job_id]) if job_id is not None else []

    def _start(self, moved: list[tuple[Queue, str]]) -> list[Claim]:
        """Start those of the moved jobs that can be started. Raises redis.WatchError if one changed on the way."""
        with self._connection.pipeline() as pipeline:
            once = list({job_id: (queue, job_id) for queue, job_id in moved}.values())
            pipeline.watch(*(Job.key_for(job_id) for _, job_id in once))  # what changes from here on is noticed
            moment, seen = self._look_at(once)
            starts = [startable for found in seen if (startable := self._startable(found, moment)) is not None]
            if not starts:
                return []
            pipeline.multi()
            # With the lease, or a worker that has just stood still would seem dead as it starts these.
            pipeline.set(keys.worker_lease(self._worker.name), 1, ex=self._lease)
            self._worker.set_state(WorkerStatus.BUSY, pipeline=pipeline)
            executions = [self._start_in(pipeline, start.queue, start.job, moment) for start in starts]
            before = len(pipeline)
            for start in starts:
                pipeline.xrange(keys.token_stream(start.job.id))
                pipeline.exists(keys.cancel_flag(start.job.id))
                pipeline.get(keys.deaths(start.job.id))
            answers = checked_answers(pipeline.execute(raise_on_error=False)[before:])
        claims = []
        for start, execution, *answer in zip(starts, executions, *(answers[k::3] for k in range(3)), strict=True):
            entries, flagged, deaths = answer
            stream = self._stream_in(start.job, entries)
            died = int(_number(deaths))
            claims.append(Claim(start.job, execution, stream, bool(flagged), died, moment, start.begun_by))
        return claims

    def _start_in(self, pipeline: Any, queue: Queue, job: Job, moment: float) -> Execution:
        execution = Execution.create(job, HEARTBEAT_TTL, pipeline=pipeline, worker_name=self._worker.name)
        hold(pipeline, execution, moment)
        job.prepare_for_execution(self._worker.name, pipeline=pipeline)
        pipeline.hset(job.key, mapping={"origin": queue.name, keys.FINGERPRINT_FIELD: self._fingerprint})
        pipeline.hdel(job.key, keys.LEFT_FIELD)
        pipeline.persist(job.key)
        pipeline.lrem(queue.intermediate_queue_key, 1, job.id)
        return execution

    def _look_at(self, moved: list[tuple[Queue, str]]) -> tuple[float, list[_Found]]:
        """The server's time, and what stands in Redis about these jobs."""
        with self._connection.pipeline(transaction=False) as pipeline:
            for queue, job_id in moved:
                pipeline.hgetall(Job.key_for(job_id))
                pipeline.lpos(queue.intermediate_queue_key, job_id)
                pipeline.zrange(ExecutionRegistry(job_id, self._connection).key, 0, -1)
                pipeline.xrevrange(keys.token_stream(job_id), count=1)
            pipeline.time()
            *answers, moment = checked_answers(pipeline.execute(raise_on_error=False))
        found = []
        for (queue, job_id), record, place, executions, last in zip(
            moved, *(answers[k::4] for k in range(4)), strict=True
        ):
            is_held = self._is_held(queue, job_id, executions)
            found.append(_Found(queue, job_id, record, place is not None, is_held, _is_token(last)))
        return unix_time(moment), found

    def _is_held(self, queue: Queue, job_id: str, executions: list[bytes] | Exception) -> bool:
        if isinstance(executions, Exception):  # of another type: no execution can be in it, nor be put there
            why = "RQ's book of its executions is overwritten, it begins anew"
            _log.warning("%s: %s", job_id, why, extra={"job_id": job_id})
            self._connection.delete(ExecutionRegistry(job_id, self._connection).key)
            return False
        registry = queue.started_job_registry.key
        members = [f"{job_id}:{execution.decode()}" for execution in executions]
        return any(self._connection.zscore(registry, member) is not None for member in members)

    def _startable(self, found: _Found, moment: float) -> _Startable | None:
        """The job, if it is to be started; what else was found is put in order here."""
        if not found.is_ours:
            return None  # others gave it back to its queue while we stood still
        try:
            job = self._read(found)
        except RequestError as error:
            self._end_unread(found, str(error))
            return None
        except Exception as error:  # noqa: BLE001 - RQ raises whatever a damaged record makes it raise
            why = type(error).__name__  # its text may quote the record
            _log.warning("%s: the job's record cannot be read: %s", found.job_id, why, extra={"job_id": found.job_id})
            self._end_unread(found, "the job's record cannot be read")
            return None
        if job is None or found.is_held or job.get_status(refresh=False) in _ENDED:
            extra = {"job_id": found.job_id}
            _log.debug("%s: nothing to start, it has expired, ended or is running", found.job_id, extra=extra)
            if job is not None and not found.is_held:
                with contextlib.suppress(UnknownJobError):  # it has ended, and its tokens have expired
                    settle(self._connection, found.job_id)
            found.queue.intermediate_queue.remove(found.job_id)
            return None
        begun_by = self._begun_by_another(found)
        if begun_by is not None and not self._has_waited(found, moment):
            extra = {"job_id": found.job_id, "fingerprint": begun_by}
            _log.warning("%s: left to a worker of the model %s, which began it", found.job_id, begun_by, extra=extra)
            return None  # it stays where it is, until it counts as never started
        return _Startable(found.queue, job, begun_by)

    def _begun_by_another(self, found: _Found) -> str | None:
        """The fingerprint of a model whose half-written answer this worker's would continue with other tokens."""
        begun_by: bytes | None = found.record.get(keys.FINGERPRINT_FIELD.encode())
        if not found.is_half_written or begun_by in (None, self._fingerprint.encode()):
            return None
        return begun_by.decode(errors="replace")

    def _has_waited(self, found: _Found, moment: float) -> bool:
        """Whether a job has been left to another worker for as long as it may."""
        left_at: bytes | None = found.record.get(keys.LEFT_FIELD.encode())
        if left_at is None:
            self._connection.hsetnx(Job.key_for(found.job_id), keys.LEFT_FIELD, str(moment))
        return left_at is not None and moment - _number(left_at) > EQUAL_PATIENCE

    def _read(self, found: _Found) -> Job | None:
        if isinstance(found.record, Exception):
            raise found.record
        if not found.record:
            return None
        check_record(found.record)
        job = Job(found.job_id, connection=self._connection, serializer=self._serializer)
        job.restore(found.record)
        job.origin = found.queue.name  # where it was found, or its registries would be another queue's
        return job

    def _end_unread(self, found: _Found, why: str) -> None:
        end = EndEvent("error", 0, 0, error=why)
        publish(self._connection, [(found.job_id, end)], running_ttl=keys.RETENTION)
        self._connection.expire(Job.key_for(found.job_id), keys.RETENTION)
        found.queue.intermediate_queue.remove(found.job_id)

    def _stream_in(self, job: Job, entries: Any) -> list[Event]:
        """The events of a job's stream; one that is not whole is removed, since its tokens can be computed again."""
        try:
            return _events_in(entries)
        except StreamError:  # which may quote tokens
            _log.warning("%s: the stream is not whole, it begins anew", job.id, extra={"job_id": job.id})
            self._connection.delete(keys.token_stream(job.id))
            return []


def hold(pipeline: Any, execution: Execution, moment: float, *, xx: bool = False) -> None:
    """Write until when RQ is to believe in an execution, by the server's clock; RQ itself takes this machine's.

    Whoever looks at the registry, on whatever machine, fails jobs whose time is over. With ``xx`` only lengthen what is
    there.
    """
    registry, until = execution.job.started_job_registry.key, moment + HEARTBEAT_TTL
    pipeline.zadd(registry, {execution.composite_key: until}, xx=xx)
    # A minute longer, as RQ has it.
    pipeline.zadd(ExecutionRegistry(execution.job_id, execution.connection).key, {execution.id: until + 60}, xx=xx)


def _is_token(last: Any) -> bool:
    """Whether a stream's last entry, as XREVRANGE gives it, is a token and no end."""
    return isinstance(last, list) and bool(last) and b"end" not in last[0][1]


def _number(stored: Any) -> float:
    """A number that we stored; 0 for what is missing or somebody has overwritten."""
    try:
        number = float(stored)
    except (TypeError, ValueError):
        return 0.0
    return number if math.isfinite(number) else 0.0


def _events_in(entries: Any) -> list[Event]:
    """The events in XRANGE's answer. Raises StreamError where it is not a whole stream of ours."""
    if isinstance(entries, Exception):
        raise StreamError(str(entries))
    events = [decode_entry(entry) for entry in entries]
    check_unbroken(events, after=0)
    return events
