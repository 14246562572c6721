"""The whole answer of a job, put together from its stream. It must not know how the stream was written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import redis
from rq.job import Job

from minilab_gen.errors import RequestError
from minilab_gen.protocol.endings import settle
from minilab_gen.protocol.events import EndEvent
from minilab_gen.protocol.jobs import fetch, request_of
from minilab_gen.protocol.streams import published_tokens


@dataclass(frozen=True, slots=True)
class JobResult:
    """An ended job's tokens and text."""

    job_id: str
    ids: tuple[int, ...]
    text: str
    end: EndEvent
    seed: int | None
    """The seed of the request, drawn by the client where it named none; None where the request cannot be read."""

    def to_json(self) -> dict[str, Any]:
        return {
            "job_id": self.job_id,
            "ids": list(self.ids),
            "text": self.text,
            "seed": self.seed,
            **self.end.to_json() | {"text": self.text},
        }


def result(connection: redis.Redis, job_id: str) -> JobResult | None:
    """The answer of a job, or None while it has not ended. Raises UnknownJobError and StreamError."""
    job = fetch(connection, job_id)
    tokens, end = published_tokens(connection, job_id)
    if end is None:
        settle(connection, job_id)
        tokens, end = published_tokens(connection, job_id)
    if end is None:
        return None
    text = "".join(token.text for token in tokens) + end.text
    return JobResult(job_id, tuple(token.token_id for token in tokens), text, end, _seed_of(job))


def _seed_of(job: Job) -> int | None:
    try:
        return request_of(job).settings.seed
    except RequestError:  # it failed for that, and its end says so
        return None
