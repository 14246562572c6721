"""How a request becomes a job: a plain RQ job, through RQ's public interface."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Any, Final

import redis
from rq.exceptions import DuplicateJobError as RqDuplicateJobError
from rq.job import Job

from minilab_gen.errors import DuplicateJobError, QueueFullError, RequestError
from minilab_gen.protocol import keys
from minilab_gen.protocol.clock import server_time
from minilab_gen.protocol.jobs import fetch, noted, queue_of, state_of
from minilab_gen.protocol.keys import Priority
from minilab_gen.request import MAX_SEED, GenerationRequest

EXPIRES_AT: Final = "expires_at"
"""Field of a job's meta: the Unix time, by the server's clock, after which it must not start."""

TTL: Final = "ttl"
"""Field of a job's meta: the seconds that it may wait, for a repeat of the same request."""

_SUBMISSION: Final = "submission"
"""Field of a job's meta: a random name of the call that submitted it."""


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


def _whole(name: str, value: object, *, at_least: int, at_most: int | None = None) -> None:
    if type(value) is not int or value < at_least or (at_most is not None and value > at_most):
        bound = f"of at least {at_least}" if at_most is None else f"from {at_least} to {at_most}"
        raise RequestError(f"{name} must be a whole number {bound}, got {value!r}")
