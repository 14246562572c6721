"""How a job ends that no worker runs: cancelled, waited too long, or failed before it was read.

It must not know torch. Whatever is done here may be done by several at once, and twice: one takes a job from its queue,
and Redis takes one terminal entry.
"""

from __future__ import annotations

import contextlib
from typing import Literal

import redis
from rq import Queue
from rq.exceptions import InvalidJobOperation
from rq.job import Job, JobStatus
from rq.results import Result

from minilab_gen.errors import RequestError, StreamError, UnknownJobError
from minilab_gen.protocol import keys
from minilab_gen.protocol.clock import server_time
from minilab_gen.protocol.events import EndEvent, EndReason, JobState
from minilab_gen.protocol.jobs import (
    decided,
    failure_of,
    fetch,
    noted,
    queue_of,
    recorded_state,
    request_of,
    sign_of_life,
)
from minilab_gen.protocol.refusals import refuses_writes
from minilab_gen.protocol.streams import end_of, publish, stream_length
from minilab_gen.protocol.submission import EXPIRES_AT


def cancel(connection: redis.Redis, job_id: str) -> JobState:
    """Ask that a job stop; returns the state it was in: ``queued`` jobs end here, ``started`` ones within two tokens.

    An ended job stays as it is. Raises UnknownJobError.
    """
    job = fetch(connection, job_id)
    recorded = recorded_state(job)
    end = end_of(connection, job_id)
    state = decided(recorded, end)
    if end is not None and recorded == "queued" and _is_lost(connection, queue_of(connection, job.origin), job):
        # The process that wrote its end was killed before it came to this.
        end_waiting(connection, job, "timeout" if end.reason == "timeout" else "cancelled")
    if state in ("queued", "started"):
        connection.set(keys.cancel_flag(job_id), 1, ex=keys.RETENTION)
        if take_from_queue(connection, job):
            end_waiting(connection, job, "cancelled")
    return state


def settle(connection: redis.Redis, job_id: str) -> None:
    """Do for a quiet stream what no worker will: end a job that waited too long, or failed before it was read.

    Safe for any number of callers: one of them takes the job from its queue, and Redis takes one terminal entry.
    Raises UnknownJobError where the job or its stream has expired, StreamError where only the end of it is lost. Where
    Redis refuses writes nothing is done, so that what stands there can be read.
    """
    try:
        _settle(connection, job_id)
    except redis.ResponseError as error:
        if not refuses_writes(error):
            raise


def _settle(connection: redis.Redis, job_id: str) -> None:
    job = fetch(connection, job_id)
    state = recorded_state(job)
    tokens, end = stream_length(connection, job_id)
    if end is not None:
        return
    if state == "queued":
        if tokens:
            return  # it started in time
        if has_expired(job, server_time(connection)) and take_from_queue(connection, job):
            end_waiting(connection, job, "timeout")
    elif state == "finished" and tokens:
        raise StreamError(f"the stream has a gap: the end after token {tokens} is missing")
    elif state == "finished":
        raise UnknownJobError(f"unknown or expired job: {job_id} has finished, and its tokens have expired")
    elif state == "cancelled":
        _settle_cancelled(connection, job)
    elif state == "failed" and not _is_held(connection, job):
        close_stream(connection, job, "error", error=failure_of(job))


def _settle_cancelled(connection: redis.Redis, job: Job) -> None:
    """RQ's own cancel only changes RQ's records: the worker that has the job is asked to stop, and writes the end."""
    if _is_held(connection, job):
        connection.set(keys.cancel_flag(job.id), 1, ex=keys.RETENTION)
    else:
        close_stream(connection, job, "cancelled")


def _is_held(connection: redis.Redis, job: Job) -> bool:
    """Whether a live worker is at it, whatever its status says: it will write the end itself."""
    # Not by RQ's method, which also tidies the registry: a client has no business to write there.
    held = connection.zcount(job.execution_registry.key, server_time(connection), "+inf")
    return bool(held and job.worker_name and connection.exists(sign_of_life(job.worker_name)))


def has_expired(job: Job, now: float) -> bool:
    """Whether a waiting job may no longer start; for ever it may where its meta names no time.

    ``now`` is by the server's clock.
    """
    expires_at = noted(job, EXPIRES_AT)
    return isinstance(expires_at, int | float) and not isinstance(expires_at, bool) and now >= expires_at


def take_from_queue(connection: redis.Redis, job: Job) -> bool:
    """Remove a waiting job; True for the caller that removed it and must then end it.

    Also where an earlier caller removed it and was killed before it could: to end a job twice changes nothing.
    """
    queue = queue_of(connection, job.origin)
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
    connection.expire(job.key, keys.RETENTION)  # first: whatever is lost behind it, the record does not stay for ever
    if reason == "cancelled":
        close_stream(connection, job, reason)
        with contextlib.suppress(InvalidJobOperation):  # another caller has just cancelled it
            job.cancel()
        registry = queue_of(connection, job.origin).canceled_job_registry
        connection.zadd(registry.key, {job.id: server_time(connection)}, xx=True)  # RQ takes this machine's time
    else:
        close_stream(connection, job, reason, phase="waiting")
        _record_failure(connection, job, "the job waited longer than its ttl")


def _record_failure(connection: redis.Redis, job: Job, why: str) -> None:
    """What RQ writes about a job that failed, in one transaction."""
    expires_at = server_time(connection) + keys.RETENTION
    with connection.pipeline(transaction=True) as pipeline:
        job.set_status(JobStatus.FAILED, pipeline=pipeline)
        job.failed_job_registry.add(job, ttl=keys.RETENTION, exc_string=why, pipeline=pipeline)
        pipeline.zadd(job.failed_job_registry.key, {job.id: expires_at}, xx=True)  # RQ takes this machine's time
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
        end = EndEvent(reason, tokens, prompt_length(job), error=error, phase=phase)
        publish(connection, [(job.id, end)], running_ttl=keys.RETENTION)


def prompt_length(job: Job) -> int:
    """Tokens of a job's prompt; 0 where its request cannot be read."""
    try:
        return len(request_of(job).prompt)
    except RequestError:
        return 0
