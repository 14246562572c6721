"""The functions that programs call, each with a connection of its own. It must not know torch or the command line."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing, closing
from typing import cast

import redis

from minilab_gen.errors import RequestError
from minilab_gen.protocol import endings, jobs, keys, results
from minilab_gen.protocol import tail as tails
from minilab_gen.protocol.cards import read_card, read_tokenizer
from minilab_gen.protocol.connection import connect, connect_async
from minilab_gen.protocol.jobs import JobState, Submission
from minilab_gen.protocol.keys import Priority
from minilab_gen.request import DEFAULT_MAX_NEW_TOKENS, GenerationRequest, SamplingSettings, check_text
from minilab_gen.tokenizer import Tokenizer


def submit(
    prompt: str | Sequence[int],
    *,
    max_new_tokens: int = DEFAULT_MAX_NEW_TOKENS,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int | None = None,
    stop_ids: Sequence[int] | None = None,
    model: str = keys.DEFAULT_MODEL,
    job_id: str | None = None,
    priority: Priority = "normal",
    timeout: int = keys.DEFAULT_TIMEOUT,
    ttl: int | None = None,
    redis_url: str | None = None,
) -> str:
    """Enqueue one job and return its id.

    ``prompt`` is a text or token ids. A sampled job without a ``seed`` draws one. ``stop_ids`` are by default the
    model's own. ``timeout`` and ``ttl`` are seconds: of running, and of waiting. Raises RequestError for what can never
    run, UnknownModelError, DuplicateJobError, RedisUnavailableError.
    """
    settings = SamplingSettings(temperature, top_k, top_p, 0 if seed is None else seed)
    submission = Submission(model=model, job_id=job_id, priority=priority, timeout=timeout, ttl=ttl)
    with closing(connect(redis_url)) as connection:
        request = build_request(connection, prompt, max_new_tokens, settings, seed is None, stop_ids, model)
        try:
            return jobs.enqueue(connection, request, submission)
        finally:
            jobs.let_go(connection)


def build_request(
    connection: redis.Redis,
    prompt: str | Sequence[int],
    max_new_tokens: int,
    settings: SamplingSettings,
    draw_seed: bool,
    stop_ids: Sequence[int] | None,
    model: str,
) -> GenerationRequest:
    """The request for a model, checked against its card; ``draw_seed`` where a sampled one named none."""
    card = read_card(connection, model)
    ids = prompt_ids(prompt, read_tokenizer(connection, card)) if isinstance(prompt, str) else prompt
    if draw_seed and not settings.is_greedy:
        settings = SamplingSettings(settings.temperature, settings.top_k, settings.top_p, jobs.draw_seed())
    ends = card.stop_ids if stop_ids is None else stop_ids
    # As they came, since a tuple of bytes or of a dict would pass for ids; the request makes tuples of lists.
    request = GenerationRequest(cast(tuple[int, ...], ids), max_new_tokens, settings, cast(tuple[int, ...], ends))
    request.check_fits(card.limits)
    return request


def prompt_ids(text: str, tokenizer: Tokenizer) -> list[int]:
    """The ids of a prompt. Raises RequestError for a text that can be none."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RequestError(f"prompt must be text of whole characters, got {error.reason} at {error.start}") from error
    check_text(text)
    ids = tokenizer.encode(text)
    if not ids:
        raise RequestError("prompt must hold at least 1 token, got an empty text")
    return ids


def tail(job_id: str, after: int = 0, *, redis_url: str | None = None) -> tails.Tail:
    """Yield a job's events after token ``after``, waiting for those to come: tokens, then the end."""
    with closing(connect(redis_url)) as connection:
        yield from tails.tail(connection, job_id, after)


async def tail_async(job_id: str, after: int = 0, *, redis_url: str | None = None) -> tails.AsyncTail:
    """The async :func:`tail`."""
    with closing(await asyncio.to_thread(connect, redis_url)) as records:  # which may have to start the server
        async with (
            aclosing(connect_async(redis_url)) as connection,
            aclosing(tails.tail_async(connection, records, job_id, after)) as events,
        ):
            async for event in events:
                yield event


def cancel(job_id: str, *, redis_url: str | None = None) -> JobState:
    """Ask that a job stop; returns the state that it was in. Raises UnknownJobError."""
    with closing(connect(redis_url)) as connection:
        return endings.cancel(connection, job_id)


def result(job_id: str, *, redis_url: str | None = None) -> results.JobResult | None:
    """The answer of a job, or None while it has not ended. Raises UnknownJobError."""
    with closing(connect(redis_url)) as connection:
        return results.result(connection, job_id)
