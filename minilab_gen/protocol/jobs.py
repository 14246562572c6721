"""Jobs from the outside: submit, look at, cancel. Plain RQ jobs through RQ's public interface.

It must not know torch, nor what happens inside a worker.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from dataclasses import dataclass
from typing import Any, Final, Literal

import redis
from rq import Queue, Worker, scripts
from rq.exceptions import DeserializationError, InvalidJobOperation, NoSuchJobError
from rq.exceptions import DuplicateJobError as RqDuplicateJobError
from rq.job import Job, JobStatus
from rq.results import Result
from rq.serializers import JSONSerializer

from minilab_gen.errors import DuplicateJobError, QueueFullError, RequestError, UnknownJobError
from minilab_gen.protocol import keys
from minilab_gen.protocol.events import EndEvent, EndReason
from minilab_gen.protocol.keys import Priority
from minilab_gen.protocol.streams import publish, stream_length
from minilab_gen.request import MAX_SEED, GenerationRequest

EXPIRES_AT: Final = "expires_at"
"""Field of a job's meta: the Unix time after which it must not start."""

_SUBMISSION: Final = "submission"
"""Field of a job's meta: a random name of the call that submitted it."""

JobState = Literal["queued", "started", "finished", "failed", "cancelled"]

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
    """The last line of RQ's record of a failure."""


def draw_seed() -> int:
    """A seed for a sampled request that names none."""
    return secrets.randbelow(MAX_SEED + 1)


def enqueue(connection: redis.Redis, request: GenerationRequest, submission: Submission) -> str:
    """Put a checked request into its queue and return the job id.

    Atomic: a job id is given out once, and a call that is sent again after a lost connection makes no second job.
    Raises DuplicateJobError, QueueFullError, and what redis-py raises.
    """
    queue = _queue(connection, keys.queue_name(submission.model, submission.priority))
    if submission.max_queued is not None and queue.count >= submission.max_queued:
        raise QueueFullError(f"the queue may hold {submission.max_queued} waiting jobs, it holds {queue.count}")
    job_id = submission.job_id or secrets.token_hex(8)
    if submission.job_id and connection.exists(keys.token_stream(job_id)) and not Job.exists(job_id, connection):
        raise DuplicateJobError(f"the job id {job_id} is in use by the tokens of an earlier job")
    call = secrets.token_hex(8)
    meta: dict[str, Any] = {_SUBMISSION: call}
    if submission.ttl is not None:
        meta[EXPIRES_AT] = time.time() + submission.ttl
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
        if _noted(job, _SUBMISSION) != call:  # else the first try arrived and only its answer was lost
            raise DuplicateJobError(f"the job id {job_id} is in use by a job that is {state_of(job)}") from None
    return job_id


def let_go(connection: redis.Redis) -> None:
    """Make RQ forget a connection that is about to be closed; else it keeps each one on which a job was submitted.

    Not while another thread submits on the same connection.
    """
    getattr(scripts, "_registered_scripts", {}).pop(connection, None)


def fetch(connection: redis.Redis, job_id: str) -> Job:
    """RQ's record of a job. Raises UnknownJobError where there is none or it has expired."""
    try:
        return Job.fetch(keys.check_job_id(job_id), connection=connection, serializer=JSONSerializer)
    except NoSuchJobError:
        raise UnknownJobError(f"unknown or expired job: {job_id}") from None


def state_of(job: Job) -> JobState:
    """Our word for RQ's status of a job, freshly read."""
    try:
        return _STATES[job.get_status()]
    except InvalidJobOperation:
        raise UnknownJobError(f"unknown or expired job: {job.id}") from None


def request_of(job: Job) -> GenerationRequest:
    """The request in a job. Raises RequestError for anything that is not one of ours; nothing is run or unpickled."""
    args: object
    kwargs: object
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
    state = _STATES[job.get_status(refresh=False)]  # before the stream: a job is not seen as finished without its end
    tokens, end = stream_length(connection, job_id)
    if end is not None and end.reason == "cancelled":
        state = "cancelled"  # an ordinary RQ worker can only record a failure
    waiting = state == "queued"
    return JobView(
        job_id=job_id,
        state=state,
        model=job.origin.removeprefix("minilab.").split(".")[0],
        tokens=tokens,
        end=end,
        position=_queue(connection, job.origin).get_job_position(job_id) if waiting else None,
        worker=job.worker_name if state == "started" else None,
        workers_alive=workers_alive(connection, job.origin),
        error=failure_of(job) if state == "failed" else None,
    )


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
    signs = [_sign_of_life(record) for record in Worker.all_keys(queue=_queue(connection, queue))]
    return int(connection.exists(*signs)) if signs else 0


OUR_WORKERS: Final = "minilab-"
"""What the names of our workers begin with."""


def _sign_of_life(record: str) -> str:
    """The key that is there while the worker with this record of RQ's lives."""
    name = record.removeprefix(Worker.redis_worker_namespace_prefix)
    return keys.worker_lease(name) if name.startswith(OUR_WORKERS) else record


def cancel(connection: redis.Redis, job_id: str) -> JobState:
    """Ask that a job stop; returns the state it was in: ``queued`` jobs end here, ``started`` ones within two tokens.

    An ended job stays as it is. Raises UnknownJobError.
    """
    job = fetch(connection, job_id)
    state = state_of(job)
    if state in ("queued", "started"):
        connection.set(keys.cancel_flag(job_id), 1, ex=keys.RETENTION)
        if take_from_queue(connection, job):
            end_waiting(connection, job, "cancelled")
    return state


def settle(connection: redis.Redis, job_id: str) -> None:
    """Do for a quiet stream what no worker will: end a job that waited too long, or failed before it was read.

    Safe for any number of callers: one of them takes the job from its queue, and Redis takes one terminal entry.
    Raises UnknownJobError where the job or its stream has expired.
    """
    job = fetch(connection, job_id)
    state = state_of(job)
    tokens, end = stream_length(connection, job_id)
    if end is not None:
        return
    if state == "queued":
        if not tokens and has_expired(job) and take_from_queue(connection, job):  # one with tokens has started in time
            end_waiting(connection, job, "timeout")
    elif state == "finished":
        raise UnknownJobError(f"unknown or expired job: {job_id} has finished, and its tokens are gone")
    elif state == "cancelled":
        _settle_cancelled(connection, job)
    elif state == "failed" and not _is_held(job):
        close_stream(connection, job, "error", error=failure_of(job))


def _settle_cancelled(connection: redis.Redis, job: Job) -> None:
    """RQ's own cancel only changes the books: the worker that has the job must be told, and then writes the end."""
    if _is_held(job):
        connection.set(keys.cancel_flag(job.id), 1, ex=keys.RETENTION)
    else:
        close_stream(connection, job, "cancelled")


def _is_held(job: Job) -> bool:
    """Whether a worker is at it, whatever its status says: an end written now would be followed by tokens."""
    return bool(job.execution_registry.get_execution_ids())


def has_expired(job: Job) -> bool:
    """Whether a waiting job may no longer start; for ever it may where its meta names no time."""
    expires_at = _noted(job, EXPIRES_AT)
    return isinstance(expires_at, int | float) and not isinstance(expires_at, bool) and time.time() >= expires_at


def _noted(job: Job, name: str) -> object:
    """What a job's meta says under a name; it may be anything where somebody else made the job."""
    meta: object = job.meta
    return meta.get(name) if isinstance(meta, dict) else None


def take_from_queue(connection: redis.Redis, job: Job) -> bool:
    """Remove a waiting job; True for the caller that removed it and must then end it.

    Also where an earlier caller removed it and died before it could: to end a job twice changes nothing.
    """
    queue = _queue(connection, job.origin)
    return bool(queue.remove(job.id)) or _is_lost(connection, queue, job)


def _is_lost(connection: redis.Redis, queue: Queue, job: Job) -> bool:
    """Whether a job is said to be queued and stands in no list from which a worker could take it."""
    with connection.pipeline(transaction=True) as pipeline:
        pipeline.hget(job.key, "status")
        pipeline.lpos(queue.key, job.id)
        pipeline.lpos(queue.intermediate_queue_key, job.id)
        return bool(pipeline.execute() == [JobStatus.QUEUED.value.encode(), None, None])


def end_waiting(connection: redis.Redis, job: Job, reason: Literal["cancelled", "timeout"]) -> None:
    """Give a job that no worker will start its terminal entry, then RQ's status."""
    if reason == "cancelled":
        close_stream(connection, job, reason)
        with contextlib.suppress(InvalidJobOperation):  # another caller has just cancelled it
            job.cancel()
        connection.expire(job.key, keys.RETENTION)
    else:
        close_stream(connection, job, reason, phase="waiting")
        _record_failure(connection, job, "the job waited longer than its ttl")


def _record_failure(connection: redis.Redis, job: Job, why: str) -> None:
    """What RQ writes about a job that failed, in one transaction."""
    with connection.pipeline(transaction=True) as pipeline:
        job.set_status(JobStatus.FAILED, pipeline=pipeline)
        job.failed_job_registry.add(job, ttl=keys.RETENTION, exc_string=why, pipeline=pipeline)
        Result.create_failure(job, keys.RETENTION, why, pipeline=pipeline)
        pipeline.execute()


def close_stream(
    connection: redis.Redis,
    job: Job,
    reason: EndReason,
    *,
    error: str | None = None,
    phase: Literal["waiting", "running"] | None = None,
) -> None:
    """Write a job's terminal entry after the tokens that its stream holds, unless it has one."""
    tokens, earlier = stream_length(connection, job.id)
    if earlier is None:
        end = EndEvent(reason, tokens, _prompt_length(job), error=error, phase=phase)
        publish(connection, [(job.id, end)], running_ttl=keys.RETENTION)


def _prompt_length(job: Job) -> int:
    try:
        return len(request_of(job).prompt)
    except RequestError:
        return 0


def _queue(connection: redis.Redis, name: str) -> Queue:
    return Queue(name, connection=connection, serializer=JSONSerializer)


def _whole(name: str, value: object, *, at_least: int, at_most: int | None = None) -> None:
    if type(value) is not int or value < at_least or (at_most is not None and value > at_most):
        bound = f"of at least {at_least}" if at_most is None else f"from {at_least} to {at_most}"
        raise RequestError(f"{name} must be a whole number {bound}, got {value!r}")
