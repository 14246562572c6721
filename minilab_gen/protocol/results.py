"""The whole answer of a job: from its stream, or for many jobs at once from what RQ keeps of them."""

from __future__ import annotations

import binascii
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import redis
from rq.job import Job
from rq.results import Result
from rq.serializers import JSONSerializer

from minilab_gen.errors import RequestError
from minilab_gen.protocol import keys
from minilab_gen.protocol.endings import settle
from minilab_gen.protocol.events import END_REASONS, EndEvent, RawEntry
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


@dataclass(frozen=True, slots=True)
class Answer:
    """What a finished job answered, as RQ keeps it."""

    ids: tuple[int, ...]
    text: str
    end: EndEvent
    recorded_at: float
    """Unix time in seconds."""
    fingerprint: str | None
    """Of the model that began it; None where an ordinary RQ worker ran it."""


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


def answers(connection: redis.Redis, job_ids: Iterable[str]) -> list[Answer | None]:
    """The answers of many finished jobs in one round trip, without a look at their streams.

    None for one of which RQ keeps nothing that can be read: :func:`result` may still put it together.
    """
    with connection.pipeline(transaction=False) as pipeline:
        for job_id in job_ids:
            pipeline.xrevrange(Result.get_key(job_id), count=1)
            pipeline.hget(Job.key_for(job_id), keys.FINGERPRINT_FIELD)
        replies = pipeline.execute()
    return [_answer(last, fingerprint) for last, fingerprint in zip(replies[::2], replies[1::2], strict=True)]


def fingerprint_of(connection: redis.Redis, job_id: str) -> str | None:
    """The fingerprint of the model that began a job; None where an ordinary RQ worker ran it, or none has."""
    found: Any = connection.hget(Job.key_for(job_id), keys.FINGERPRINT_FIELD)
    return found.decode() if found else None


def _answer(last: list[RawEntry], fingerprint: bytes | None) -> Answer | None:
    if not last:
        return None
    ((entry_id, fields),) = last
    try:
        kept = Result.restore("", entry_id.decode(), dict(fields), connection=None, serializer=JSONSerializer)  # type: ignore[arg-type]
        content: Any = kept.return_value
        stopped_by = {name: content.get(name) for name in ("stop_id", "stop_text", "complete")}
        end = EndEvent(content["end"], content["tokens"], content["prompt_tokens"], **stopped_by)
        ids, text = tuple(map(int, content["ids"])), str(content["text"])
    except (ValueError, TypeError, KeyError, binascii.Error):  # a failure, or written by another program
        return None
    if end.reason not in END_REASONS or len(ids) != end.tokens:
        return None
    return Answer(ids, text, end, kept.created_at.timestamp(), fingerprint.decode() if fingerprint else None)
