"""Jobs from the outside: submit and look at. Plain RQ jobs through RQ's public interface.

It must not know torch. How a job that no worker runs is ended: ``endings.py``.
"""

from __future__ import annotations

import json
import secrets
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import redis
from rq import Queue, Worker
from rq.exceptions import DeserializationError, InvalidJobOperation, NoSuchJobError
from rq.exceptions import DuplicateJobError as RqDuplicateJobError
from rq.job import Job, JobStatus
from rq.serializers import JSONSerializer

from minilab_gen.errors import DuplicateJobError, QueueFullError, RequestError, UnknownJobError
from minilab_gen.protocol import keys
from minilab_gen.protocol.clock import server_time
from minilab_gen.protocol.events import EndEvent, JobState
from minilab_gen.protocol.keys import Priority
from minilab_gen.protocol.streams import end_of, ends_of, stream_length
from minilab_gen.request import MAX_SEED, GenerationRequest, shown

EXPIRES_AT: Final = "expires_at"
"""Field of a job's meta: the Unix time, by the server's clock, after which it must not start."""

TTL: Final = "ttl"
"""Field of a job's meta: the seconds that it may wait, for a repeat of the same request."""

_SUBMISSION: Final = "submission"
"""Field of a job's meta: a random name of the call that submitted it."""

MAX_PAYLOAD_BYTES: Final = 2_000_000
"""Bytes of a job's record, and of its arguments once they are inflated: twelve for each id of the longest prompt, and
room for the rest. JSON of 100 MB, which may be 100 kB in Redis, took a worker 5 s and 1.7 GB to read and refuse."""

_STATES: Final[dict[JobStatus, JobState]] = {
    JobStatus.CREATED: "queued",
    JobStatus.QUEUED: "queued",
    JobStatus.DEFERRED: "queued",
    JobStatus.SCHEDULED: "queued",
    JobStatus.RATE_LIMITED: "queued",
    JobStatus.READY_TO_ENQUEUE: "queued",
    JobStatus.STARTED: "started",
    JobStatus.FINISHED: "finished",
    JobStatus.FAILED: "failed",
    JobStatus.STOPPED: "cancelled",
    JobStatus.CANCELED: "cancelled",
}


@dataclass(frozen=True, slots=True)
class Submission:
    """How a request is put into the queue."""

    model: str = keys.DEFAULT_MODEL
    job_id: str | None = None
    """The id to give the job; None makes one up."""
    priority: Priority = "normal"
    timeout: int = keys.DEFAULT_TIMEOUT
    """Seconds that it may run."""
    ttl: int | None = None
    """Seconds that it may wait; None waits for ever."""
    max_queued: int | None = None
    """Waiting jobs above which it is refused; None sets no bound."""

    def __post_init__(self) -> None:
        keys.check_model_name(self.model)
        if self.job_id is not None:
            keys.check_job_id(self.job_id)
        if self.priority not in keys.PRIORITIES:
            raise RequestError(f"priority must be one of {', '.join(keys.PRIORITIES)}, got {self.priority!r}")
        _whole("timeout", self.timeout, at_least=1, at_most=keys.LONGEST_TIME)
        if self.ttl is not None:
            _whole("ttl", self.ttl, at_least=1, at_most=keys.LONGEST_TIME)
        if self.max_queued is not None:
            _whole("max_queued", self.max_queued, at_least=1)


@dataclass(frozen=True, slots=True)
class JobView:
    """A job as it stands."""

    job_id: str
    state: JobState
    model: str
    tokens: int
    """Tokens in its stream."""
    end: EndEvent | None
    position: int | None
    """Jobs before it in its queue, while it waits."""
    worker: str | None
    """The worker that runs it."""
    workers_alive: int
    """Workers that serve its queue now."""
    error: str | None
    """The last line of RQ's record of a failure; None while there is no record of it."""


def draw_seed() -> int:
    """A seed for a sampled request that names none."""
    return secrets.randbelow(MAX_SEED + 1)


def enqueue(connection: redis.Redis, request: GenerationRequest, submission: Submission) -> str:
    """Put a checked request into its queue and return the job id.

    Atomic: a job id is given out once, and a call that is sent again after a lost connection makes no second job.
    Raises DuplicateJobError, QueueFullError, and what redis-py raises.
    """
    queue = queue_of(connection, keys.queue_name(submission.model, submission.priority))
    if submission.max_queued is not None and queue.count >= submission.max_queued:
        raise QueueFullError(f"the queue may hold {submission.max_queued} waiting jobs, it holds {queue.count}")
    job_id = submission.job_id or secrets.token_hex(8)
    if submission.job_id and connection.exists(keys.token_stream(job_id)) and not Job.exists(job_id, connection):
        raise DuplicateJobError(f"the job id {job_id} is in use by the tokens of an earlier job")
    call = secrets.token_hex(8)
    meta: dict[str, Any] = {_SUBMISSION: call}
    if submission.ttl is not None:
        meta |= {TTL: submission.ttl, EXPIRES_AT: server_time(connection) + submission.ttl}
    try:
        queue.enqueue_call(
            func=keys.TASK,
            args=(request.to_payload(),),
            timeout=submission.timeout,
            result_ttl=keys.RETENTION,
            failure_ttl=keys.RETENTION,
            job_id=job_id,
            description=f"{len(request.prompt)} prompt tokens, at most {request.max_new_tokens} new",
            meta=meta,
            unique=True,
        )
    except RqDuplicateJobError:
        job = fetch(connection, job_id)
        if noted(job, _SUBMISSION) != call:  # else the first try arrived and only its answer was lost
            state = state_of(connection, job)
            raise DuplicateJobError(f"the job id {job_id} is in use by a job that is {state}") from None
    return job_id


def fetch(connection: redis.Redis, job_id: str) -> Job:
    """RQ's record of a job. Raises UnknownJobError where there is none, RequestError where it is none of ours."""
    return restored(connection, job_id, connection.hgetall(Job.key_for(keys.check_job_id(job_id))))


def restored(connection: redis.Redis, job_id: str, record: Any) -> Job:
    """The job in RQ's record of it, as HGETALL gives that. Raises as :func:`fetch` does."""
    check_record(record)
    job = Job(job_id, connection=connection, serializer=JSONSerializer)
    try:
        job.restore({name: value for name, value in record.items() if name != b"webhooks"})  # which RQ would log about
    except NoSuchJobError:
        raise UnknownJobError(f"unknown or expired job: {job_id}") from None
    except Exception as error:  # RQ raises whatever a damaged record makes it raise
        raise RequestError(f"the record of job {job_id} cannot be read: {type(error).__name__}") from error
    return job


def check_record(record: Mapping[bytes, bytes]) -> None:
    """Raise RequestError for RQ's record of a job that is larger than any of ours, or that RQ could not write back.

    To be asked before RQ inflates or reads it.
    """
    for size in (sum(map(len, record.values())), *(_inflated(record.get(name, b"")) for name in _INFLATED)):
        if size > MAX_PAYLOAD_BYTES:
            raise RequestError(f"a job's record must be at most {MAX_PAYLOAD_BYTES} bytes, inflated or not, got more")
    waits_for = record.get(b"dependency_ids") or b"[]"
    if not _is_list_of_text(waits_for):
        raise RequestError(f"a job's dependency_ids must be a list of job ids, got {shown(waits_for)}")


_INFLATED: Final = (b"data", b"exc_info")
"""Fields of a record that RQ inflates when it restores a job."""


def _is_list_of_text(field: bytes) -> bool:
    try:
        items = json.loads(field)
    except (ValueError, RecursionError):
        return False
    return isinstance(items, list) and all(isinstance(item, str) for item in items)


def _inflated(field: bytes) -> int:
    """Bytes to which RQ would inflate a field; of more than allowed, only that it is more."""
    try:
        return len(zlib.decompressobj().decompress(field, MAX_PAYLOAD_BYTES + 1))
    except zlib.error:  # RQ takes it as it is
        return 0


def state_of(connection: redis.Redis, job: Job) -> JobState:
    """The state of a job, freshly read. Raises UnknownJobError."""
    recorded = recorded_state(job)  # before the stream: a job is not seen as finished without its end
    return decided(recorded, end_of(connection, job.id))


def decided(recorded: JobState, end: EndEvent | None) -> JobState:
    """The state of a job by RQ's record and its stream: a terminal entry decides, whatever the record says yet.

    A worker writes the entry first, and may be killed before the record. And an ordinary RQ worker can only record a
    failure where a job was cancelled.
    """
    if end is None:
        return recorded
    return "finished" if end.succeeded else "cancelled" if end.reason == "cancelled" else "failed"


def recorded_state(job: Job) -> JobState:
    """Our word for RQ's status of a job, freshly read: for callers that wait for it. Raises UnknownJobError."""
    try:
        return _STATES[job.get_status()]
    except InvalidJobOperation:
        raise UnknownJobError(f"unknown or expired job: {job.id}") from None


def state_named(status: str) -> JobState | None:
    """Our word for a status as it stands in RQ's record of a job; None for one that RQ does not know."""
    return next((state for known, state in _STATES.items() if known.value == status), None)


def states_of(connection: redis.Redis, job_ids: Iterable[str]) -> list[JobState | None]:
    """The states of many jobs in two round trips; None for one that is unknown or has expired."""
    asked = list(job_ids)
    with connection.pipeline(transaction=False) as pipeline:
        for job_id in asked:
            pipeline.hget(Job.key_for(job_id), "status")
        answers: list[bytes | None] = pipeline.execute()
    recorded = [None if status is None else state_named(status.decode()) or "failed" for status in answers]
    ends = ends_of(connection, [job_id for job_id, state in zip(asked, recorded, strict=True) if state == "started"])
    return [state and decided(state, ends.get(job_id)) for job_id, state in zip(asked, recorded, strict=True)]


def request_of(job: Job) -> GenerationRequest:
    """The request in a job. Raises RequestError for anything that is not one of ours; nothing is run or unpickled."""
    args: object
    kwargs: object
    if len(job.data) > MAX_PAYLOAD_BYTES:
        raise RequestError(f"a job's data must be at most {MAX_PAYLOAD_BYTES} bytes, got {len(job.data)}")
    try:
        function, args, kwargs = job.func_name, job.args, job.kwargs
    except DeserializationError as error:
        raise RequestError(f"a job's data must be JSON, got {error.__cause__ or error}") from error
    if function != keys.TASK:
        raise RequestError(f"a job must name {keys.TASK}, got {function}")
    if not isinstance(args, list) or not isinstance(kwargs, dict):
        came = f"{type(args).__name__} and {type(kwargs).__name__}"
        raise RequestError(f"a job's arguments must be a list and an object, got {came}")
    if len(args) != 1 or kwargs:
        raise RequestError(f"a job must have one argument, got {len(args)} and {len(kwargs)} named")
    return GenerationRequest.from_payload(args[0])


def view(connection: redis.Redis, job_id: str) -> JobView:
    """A job as it stands now. Raises UnknownJobError."""
    job = fetch(connection, job_id)
    recorded = _STATES[job.get_status(refresh=False)]  # before the stream, as in state_of
    tokens, end = stream_length(connection, job_id)
    state = decided(recorded, end)
    waiting = state == "queued"
    return JobView(
        job_id=job_id,
        state=state,
        model=model_of(job),
        tokens=tokens,
        end=end,
        position=queue_of(connection, job.origin).get_job_position(job_id) if waiting else None,
        worker=job.worker_name if state == "started" else None,
        workers_alive=workers_alive(connection, job.origin),
        error=failure_of(job) if state == recorded == "failed" else None,
    )


def model_of(job: Job) -> str:
    """The model that a job asks."""
    ours = keys.queue_parts(job.origin)
    return ours[0] if ours else job.origin.removeprefix("minilab.")


def seconds_to_run(job: Job) -> int:
    """How long a job may run; RQ's -1 is no limit."""
    asked = int(job.timeout or keys.DEFAULT_TIMEOUT)
    return asked if 0 < asked <= keys.LONGEST_TIME else keys.LONGEST_TIME


def failure_of(job: Job) -> str:
    """The last line of RQ's record of why a job failed."""
    result = job.latest_result()
    lines = (result.exc_string or "").strip().splitlines() if result else []
    return lines[-1] if lines else "no reason was recorded"


def workers_alive(connection: redis.Redis, queue: str) -> int:
    """Workers that serve a queue now.

    Ours hold a short lease. An ordinary RQ worker has only RQ's record of it, which outlives a kill by minutes.
    """
    # Not Worker.all: RQ's worker objects set 415 s as the timeout of the connection that they are given.
    prefix = Worker.redis_worker_namespace_prefix
    names = [record.removeprefix(prefix) for record in Worker.all_keys(queue=queue_of(connection, queue))]
    signs = [sign_of_life(name) for name in names]
    return int(connection.exists(*signs)) if signs else 0


OUR_WORKERS: Final = "minilab-"
"""What the names of our workers begin with."""


def sign_of_life(worker: str) -> str:
    """The key that is there while the worker of this name lives."""
    is_ours = worker.startswith(OUR_WORKERS)
    return keys.worker_lease(worker) if is_ours else f"{Worker.redis_worker_namespace_prefix}{worker}"


def noted(job: Job, name: str) -> object:
    """What a job's meta says under a name; it may be anything where another program made the job."""
    meta: object = job.meta
    return meta.get(name) if isinstance(meta, dict) else None


def queue_of(connection: redis.Redis, name: str) -> Queue:
    return Queue(name, connection=connection, serializer=JSONSerializer)


def _whole(name: str, value: object, *, at_least: int, at_most: int | None = None) -> None:
    if type(value) is not int or value < at_least or (at_most is not None and value > at_most):
        bound = f"of at least {at_least}" if at_most is None else f"from {at_least} to {at_most}"
        raise RequestError(f"{name} must be a whole number {bound}, got {value!r}")
