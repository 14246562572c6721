"""The request of an ended job, so that the same can be asked again.

A token stream that has ended takes no more, so a request that is asked again is a new job.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import redis
from rq.job import Job

from minilab_gen.errors import RequestError
from minilab_gen.protocol import keys
from minilab_gen.protocol.endings import settle
from minilab_gen.protocol.jobs import fetch, noted, recorded_state, request_of
from minilab_gen.protocol.streams import stream_length
from minilab_gen.protocol.submission import EXPIRES_AT, TTL, Submission
from minilab_gen.request import GenerationRequest


@dataclass(frozen=True, slots=True)
class OriginalRequest:
    """A request as it was put into the queue."""

    request: GenerationRequest
    submission: Submission
    """How, without an id."""


def original_request_of(connection: redis.Redis, job_id: str) -> OriginalRequest:
    """What an ended job asked. Raises UnknownJobError; RequestError where it has not ended or is none of ours."""
    settle(connection, job_id)
    job = fetch(connection, job_id)
    tokens, end = stream_length(connection, job_id)
    if end is None:
        raise RequestError(f"a job must have ended, but {job_id} is {recorded_state(job)}, with {tokens} tokens so far")
    return OriginalRequest(request_of(job), _submission_of(job))


def _submission_of(job: Job) -> Submission:
    ours = keys.queue_parts(job.origin)
    if ours is None:
        raise RequestError(f"a job's queue must be one of a model, job {job.id} has {job.origin!r}")
    model, priority = ours
    timeout = keys.DEFAULT_TIMEOUT if job.timeout is None else int(job.timeout)
    return Submission(model, priority=priority, timeout=timeout, ttl=_ttl_of(job))


def _ttl_of(job: Job) -> int | None:
    """The seconds that a job was allowed to wait."""
    ttl = noted(job, TTL)
    if type(ttl) is int and ttl >= 1:
        return min(ttl, keys.LONGEST_TIME)
    expires_at = noted(job, EXPIRES_AT)
    if not isinstance(expires_at, int | float) or isinstance(expires_at, bool):
        return None
    if isinstance(expires_at, float) and math.isnan(expires_at):
        return None
    created = job.created_at.timestamp()
    return max(1, round(min(max(expires_at, created), created + keys.LONGEST_TIME) - created))
