"""How a request becomes a job, or several that answer it: plain RQ jobs, through RQ's public interface."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import redis
from rq import Queue
from rq.exceptions import DuplicateJobError as RqDuplicateJobError
from rq.job import Job

from minilab_gen.errors import DuplicateJobError, QueueFullError, RequestError
from minilab_gen.protocol import keys
from minilab_gen.protocol.clock import server_time
from minilab_gen.protocol.groups import Group, check_group_id, find_group, possible_keys
from minilab_gen.protocol.jobs import fetch, noted, queue_of, state_of
from minilab_gen.protocol.keys import Priority
from minilab_gen.request import MAX_SEED, GenerationRequest

EXPIRES_AT: Final = "expires_at"
"""Field of a job's meta: the Unix time, by the server's clock, after which it must not start."""

TTL: Final = "ttl"
"""Field of a job's meta: the seconds that it may wait, for a repeat of the same request."""

NOTES: Final = "notes"
"""The same: what the program that submits it wants to find again, an object."""

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
    notes: Mapping[str, Any] | None = None
    """JSON of the program that submits it, kept in the meta of each job for :func:`notes_of`."""
    is_fresh: bool = False
    """Whether the id was drawn just now, at random and long: then nothing is asked about whether it is in use."""

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


def notes_of(job: Job) -> Mapping[str, Any]:
    """The notes that a job was submitted with; none where another program made it."""
    notes = noted(job, NOTES)
    return notes if isinstance(notes, dict) else {}


def enqueue(connection: redis.Redis, request: GenerationRequest, submission: Submission) -> str:
    """Put a checked request into its queue and return the job id.

    Atomic: a job id is given out once, and a call that is sent again after a lost connection makes no second job.
    Raises DuplicateJobError, QueueFullError, and what redis-py raises.
    """
    queue = _queue_with_room(connection, submission, 1)
    job_id = submission.job_id or secrets.token_hex(8)
    if submission.job_id and not submission.is_fresh:
        _check_unused(connection, job_id)
    call = secrets.token_hex(8)
    try:
        queue.enqueue_call(
            **_job_fields(request, submission),
            job_id=job_id,
            meta=_meta(connection, submission, call),
            unique=True,
        )
    except RqDuplicateJobError:
        job = fetch(connection, job_id)
        if noted(job, _SUBMISSION) != call:  # else the first try arrived and only its answer was lost
            raise _in_use(connection, job_id) from None
    return job_id


def enqueue_answers(connection: redis.Redis, requests: Sequence[GenerationRequest], submission: Submission) -> str:
    """Put a job for each of several answers into the queue, all or none; the id that names them together.

    With one request it is :func:`enqueue`. Raises the same, and RequestError for an id that is too long for a group.
    """
    if len(requests) == 1:
        return enqueue(connection, requests[0], submission)
    group = Group(check_group_id(submission.job_id or secrets.token_hex(8)), len(requests))
    queue = _queue_with_room(connection, submission, group.n)
    call = secrets.token_hex(8)
    meta = _meta(connection, submission, call)
    jobs = [
        queue.prepare_data(**_job_fields(request, submission), job_id=job_id, meta=meta | group.mark(index))
        for index, (job_id, request) in enumerate(zip(group.job_ids, requests, strict=True))
    ]
    for _ in range(_ATTEMPTS):
        with suppress(redis.WatchError), connection.pipeline(transaction=True) as pipeline:
            pipeline.watch(*_taken_by(group))
            if pipeline.exists(*_taken_by(group)) and _is_there(connection, group, call):
                return group.group_id
            pipeline.multi()
            queue.enqueue_many(jobs, pipeline=pipeline)
            pipeline.execute()
            return group.group_id
    raise redis.ConnectionError(f"the connection was lost {_ATTEMPTS} times in the middle of a transaction")


_ATTEMPTS: Final = 10
"""Times that a transaction is begun again, after another client was quicker with the id or the answer was lost."""


def _taken_by(group: Group) -> list[str]:
    """The keys that decide whether a group may be submitted: else its ids could name something else, too."""
    names = [group.group_id, *group.job_ids]
    return [Job.key_for(group.group_id), *map(keys.token_stream, names), *possible_keys(group.group_id)]


def _is_there(connection: redis.Redis, group: Group, call: str) -> bool:
    """Whether this very call has put the group there, and only its answer was lost. Raises DuplicateJobError."""
    first = group.job_ids[0]
    if Job.exists(first, connection) and noted(fetch(connection, first), _SUBMISSION) == call:
        return True
    for name in (group.group_id, *group.job_ids):
        if Job.exists(name, connection):
            raise _in_use(connection, name)
        _check_unused(connection, name)
    return False


def _check_unused(connection: redis.Redis, job_id: str) -> None:
    """Raise DuplicateJobError where an id is in use by something else than a job, of which RQ's script takes care."""
    if not connection.exists(keys.token_stream(job_id), *possible_keys(job_id)) or Job.exists(job_id, connection):
        return
    if connection.exists(keys.token_stream(job_id)):
        raise DuplicateJobError(f"the job id {job_id} is in use by the tokens of an earlier job")
    group = find_group(connection, job_id)
    if group is not None:
        raise DuplicateJobError(f"the job id {job_id} is in use by a group of {group.n} jobs")


def _in_use(connection: redis.Redis, job_id: str) -> DuplicateJobError:
    state = state_of(connection, fetch(connection, job_id))
    return DuplicateJobError(f"the job id {job_id} is in use by a job that is {state}")


def _queue_with_room(connection: redis.Redis, submission: Submission, count: int) -> Queue:
    """The queue of a submission. Raises QueueFullError where it may not hold so many jobs more."""
    queue = queue_of(connection, keys.queue_name(submission.model, submission.priority))
    most = submission.max_queued
    if most is not None and (waiting := queue.count) + count > most:
        more = "" if count == 1 else f", and {count} more were to come"
        raise QueueFullError(f"the queue may hold {most} waiting job{'s' * (most != 1)}, it holds {waiting}{more}")
    return queue


def _job_fields(request: GenerationRequest, submission: Submission) -> dict[str, Any]:
    """What RQ is told about a job, beside its id and its meta."""
    return {
        "func": keys.TASK,
        "args": (request.to_payload(),),
        "timeout": submission.timeout,
        "result_ttl": keys.RETENTION,
        "failure_ttl": keys.RETENTION,
        "description": f"{len(request.prompt)} prompt tokens, at most {request.max_new_tokens} new",
    }


def _meta(connection: redis.Redis, submission: Submission, call: str) -> dict[str, Any]:
    meta: dict[str, Any] = {_SUBMISSION: call}
    if submission.notes is not None:
        meta[NOTES] = dict(submission.notes)
    if submission.ttl is not None:
        meta |= {TTL: submission.ttl, EXPIRES_AT: server_time(connection) + submission.ttl}
    return meta


def _whole(name: str, value: object, *, at_least: int, at_most: int | None = None) -> None:
    if type(value) is not int or value < at_least or (at_most is not None and value > at_most):
        bound = f"of at least {at_least}" if at_most is None else f"from {at_least} to {at_most}"
        raise RequestError(f"{name} must be a whole number {bound}, got {value!r}")
