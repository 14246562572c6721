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

from minilab_gen.errors import RequestError, StreamError
from minilab_gen.logprobs import PromptLogprobs, TokenLogprobs, prompt_from_text, prompt_to_json
from minilab_gen.protocol import keys
from minilab_gen.protocol.endings import settle
from minilab_gen.protocol.events import END_REASONS, EndEvent, RawEntry
from minilab_gen.protocol.jobs import fetch, request_of
from minilab_gen.protocol.streams import published_tokens
from minilab_gen.request import GenerationRequest


@dataclass(frozen=True, slots=True)
class JobResult:
    """An ended job's tokens and text."""

    job_id: str
    ids: tuple[int, ...]
    text: str
    end: EndEvent
    seed: int | None
    """The seed of the request, drawn by the client where it named none; None where the request cannot be read."""
    logprobs: tuple[TokenLogprobs, ...] | None = None
    """One for each token, where the request asked for them."""
    prompt_logprobs: PromptLogprobs | None = None
    """One for each id of the prompt, the first of which has none, where the request asked for them."""

    def to_json(self) -> dict[str, Any]:
        return {
            "job_id": self.job_id,
            "ids": list(self.ids),
            "text": self.text,
            "seed": self.seed,
            **self.end.to_json() | {"text": self.text},
            **logprobs_to_json(self),
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
    logprobs: tuple[TokenLogprobs, ...] | None = None
    prompt_logprobs: PromptLogprobs | None = None
    """As in :class:`JobResult`."""


def logprobs_to_json(given: JobResult | Answer) -> dict[str, Any]:
    """The fields ``logprobs`` and ``prompt_logprobs`` of an answer, as far as it has them."""
    listed = {} if given.logprobs is None else {"logprobs": [one.to_json() for one in given.logprobs]}
    if given.prompt_logprobs is None:
        return listed
    return {**listed, "prompt_logprobs": prompt_to_json(given.prompt_logprobs)}


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
    ids, request = tuple(token.token_id for token in tokens), _request_of(job)
    if request is None:
        return JobResult(job_id, ids, text, end, None)
    listed = tuple(token.logprobs for token in tokens if token.logprobs is not None)
    logprobs = listed if request.logprobs is not None and len(listed) == len(ids) else None
    scores = None if request.prompt_logprobs is None else read_prompt_logprobs(connection, job_id)
    return JobResult(job_id, ids, text, end, request.settings.seed, logprobs, scores)


def _request_of(job: Job) -> GenerationRequest | None:
    try:
        return request_of(job)
    except RequestError:  # it failed for that, and its end says so
        return None


def read_prompt_logprobs(connection: redis.Redis, job_id: str) -> PromptLogprobs | None:
    """What is kept beside a job's stream; None where that is nothing. Raises StreamError where it is damaged."""
    text: Any = connection.get(keys.prompt_logprobs(job_id))
    try:
        return None if text is None else prompt_from_text(text.decode())
    except ValueError as error:
        raise StreamError(f"the logprobs of the prompt of {job_id} cannot be read: {error}") from error


def answers(connection: redis.Redis, job_ids: Iterable[str]) -> list[Answer | None]:
    """The answers of many finished jobs in one round trip, without a look at their streams.

    None for one of which RQ keeps nothing that can be read: :func:`result` may still put it together.
    """
    with connection.pipeline(transaction=False) as pipeline:
        for job_id in job_ids:
            pipeline.xrevrange(Result.get_key(job_id), count=1)
            pipeline.hget(Job.key_for(job_id), keys.FINGERPRINT_FIELD)
            pipeline.get(keys.prompt_logprobs(job_id))
        replies = pipeline.execute()
    return [_answer(*of_job) for of_job in zip(replies[::3], replies[1::3], replies[2::3], strict=True)]


def fingerprint_of(connection: redis.Redis, job_id: str) -> str | None:
    """The fingerprint of the model that began a job; None where an ordinary RQ worker ran it, or none has."""
    found: Any = connection.hget(Job.key_for(job_id), keys.FINGERPRINT_FIELD)
    return found.decode() if found else None


def _answer(last: list[RawEntry], fingerprint: bytes | None, scores: bytes | None) -> Answer | None:
    if not last:
        return None
    ((entry_id, fields),) = last
    try:
        kept = Result.restore("", entry_id.decode(), dict(fields), connection=None, serializer=JSONSerializer)  # type: ignore[arg-type]
        content: Any = kept.return_value
        stopped_by = {name: content.get(name) for name in ("stop_id", "stop_text", "complete")}
        end = EndEvent(content["end"], content["tokens"], content["prompt_tokens"], **stopped_by)
        ids, text = tuple(map(int, content["ids"])), str(content["text"])
        listed = content.get("logprobs")
        logprobs = None if listed is None else tuple(map(TokenLogprobs.from_json, listed))
        prompt_logprobs = None if scores is None else prompt_from_text(scores.decode())
    except (ValueError, TypeError, KeyError, binascii.Error):  # a failure, or written by another program
        return None
    if end.reason not in END_REASONS or len(ids) != end.tokens:
        return None
    by = fingerprint.decode() if fingerprint else None
    return Answer(ids, text, end, kept.created_at.timestamp(), by, logprobs, prompt_logprobs)
