"""The functions that programs call, each with a connection of its own. They need no torch."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import aclosing, closing
from dataclasses import replace
from typing import Any, Unpack

import redis

from minilab_gen.errors import RequestError
from minilab_gen.model_settings import check_settings, own_ends, request_fields
from minilab_gen.protocol import endings, keys
from minilab_gen.protocol import results as results_of_jobs
from minilab_gen.protocol import tail as tails
from minilab_gen.protocol.cards import ModelCard, read_card, read_tokenizer
from minilab_gen.protocol.connection import connect, connect_async
from minilab_gen.protocol.events import JobState
from minilab_gen.protocol.groups import jobs_named, requests_of, state_of_all
from minilab_gen.protocol.keys import Priority
from minilab_gen.protocol.refusals import explained
from minilab_gen.protocol.script_cache import forget_connection
from minilab_gen.protocol.submission import Submission, draw_seed, enqueue_answers
from minilab_gen.request import (
    DEFAULT_CHAT_TOKENS,
    DEFAULT_MAX_NEW_TOKENS,
    GenerationRequest,
    RequestSettings,
    check_n,
    check_text,
    given_settings,
)
from minilab_gen.text.chat import Conversation
from minilab_gen.text.tokenizer import Tokenizer


def submit(  # noqa: PLR0913 - each by its name
    prompt: str | Sequence[int] | None = None,
    *,
    chat: str | Sequence[Mapping[str, Any]] | None = None,
    tools: Sequence[Mapping[str, Any]] | None = None,
    chat_template_kwargs: Mapping[str, Any] | None = None,
    model: str = keys.DEFAULT_MODEL,
    job_id: str | None = None,
    priority: Priority = "normal",
    timeout: int = keys.DEFAULT_TIMEOUT,
    ttl: int | None = None,
    n: int = 1,
    redis_url: str | None = None,
    **settings: Unpack[RequestSettings],
) -> str:
    """Enqueue one job, or one for each of ``n`` answers, and return its id or that of the group.

    ``prompt`` is a text or token ids. Instead, ``chat`` is what the user says to a model that has a chat template,
    or a whole conversation: ``[{"role": "user", "content": "Hello"}, ...]``; ``tools`` and ``chat_template_kwargs`` are
    handed to its template, for instance ``{"enable_thinking": False}``. ``settings`` are the fields of
    :class:`RequestSettings`: ``max_new_tokens`` are by default 64, in a chat 1024; a sampled job without a ``seed``
    draws one; ``stop_ids`` are by default the model's own, with ``ignore_eos`` none; ``stop`` are texts before which an
    answer ends, or with ``include_stop`` after which; ``logprobs`` and ``prompt_logprobs`` say how many of the most
    probable tokens are listed with the logprob of each token of the answer, and of the prompt; one of
    ``response_format`` (OpenAI's object, or a class of pydantic's), ``regex``, ``choice`` and ``grammar`` is its form;
    docs/sampling.md has the others. ``timeout`` and ``ttl`` are seconds: of running, and of waiting.

    The jobs of a group (:func:`job_ids`) have the seeds ``seed``, ``seed + 1``, ..., with 0 after the largest. They are
    enqueued all or none. Raises RequestError for what can never run, UnknownModelError, DuplicateJobError,
    RedisUnavailableError.
    """
    check_n(n)
    given = given_settings(settings)
    asked = _asked(prompt, chat, tools, chat_template_kwargs)
    check_settings(given, default_max_new_tokens(asked))
    model = keys.without_owner(model)
    submission = Submission(model=model, job_id=job_id, priority=priority, timeout=timeout, ttl=ttl)
    with closing(connect(redis_url)) as connection, explained(connection):
        request = build_request(connection, asked, given, model)
        try:
            return enqueue_answers(connection, requests_of(request, n), submission)
        finally:
            forget_connection(connection)


def default_max_new_tokens(prompt: str | Sequence[int] | Conversation) -> int:
    """How many tokens may follow where nothing is said."""
    return DEFAULT_CHAT_TOKENS if isinstance(prompt, Conversation) else DEFAULT_MAX_NEW_TOKENS


def build_request(
    connection: redis.Redis,
    prompt: str | Sequence[int] | Conversation,
    given: Mapping[str, object],
    model: str,
) -> GenerationRequest:
    """The request for a model, checked against its card, with the defaults of all settings that were not given."""
    card = read_card(connection, model)
    known: list[Tokenizer] = []

    def tokenizer() -> Tokenizer:  # which may take long to read, and is not always needed
        if not known:
            known.append(read_tokenizer(connection, card))
        return known[0]

    ends: Sequence[int] = card.stop_ids
    ids: Sequence[int]
    if isinstance(prompt, Conversation):
        ids, ends = chat_prompt(prompt, card, tokenizer())
    else:
        ids = prompt_ids(prompt, tokenizer()) if isinstance(prompt, str) else prompt
    defaults = {"max_new_tokens": default_max_new_tokens(prompt), "stop_ids": own_ends(given, ends)}
    request = GenerationRequest.from_payload({**defaults, **request_fields(given, tokenizer), "prompt": ids})
    if "seed" not in given:
        request = request.with_seed(draw_seed())
    if request.stop:
        request = ended_by_name(request, card, tokenizer())
    request.check_fits(card.limits)
    return request


def ended_by_name(request: GenerationRequest, card: ModelCard, tokenizer: Tokenizer) -> GenerationRequest:
    """The same, ended also by the special tokens that its stop texts name: these add no text that could be found."""
    named = [tokenizer.token_id(text) for text in request.stop]
    ends = [token for token in named if token is not None and tokenizer.is_special(token) and token < card.vocab_size]
    return replace(request, stop_ids=tuple(dict.fromkeys((*request.stop_ids, *ends)))) if ends else request


def _asked(
    prompt: str | Sequence[int] | None,
    chat: str | Sequence[Mapping[str, Any]] | None,
    tools: Sequence[Mapping[str, Any]] | None,
    chat_template_kwargs: Mapping[str, Any] | None,
) -> str | Sequence[int] | Conversation:
    if chat is not None:
        if prompt is not None:
            raise RequestError("a job has either a prompt or a chat, got both")
        return Conversation.of(chat).with_extras(tools, chat_template_kwargs)
    if tools is not None or chat_template_kwargs is not None:
        raise RequestError("tools and chat_template_kwargs go with a chat, got none")
    if prompt is None:
        raise RequestError("a job must have a prompt or a chat, got neither")
    return prompt


def prompt_ids(text: str, tokenizer: Tokenizer) -> list[int]:
    """The ids of a prompt. Raises RequestError for a text that can be none."""
    check_text(text)
    if not text:
        raise RequestError("prompt must hold at least 1 token, got an empty text")
    return tokenizer.encode(text)


def chat_prompt(
    conversation: Conversation, card: ModelCard, tokenizer: Tokenizer
) -> tuple[Sequence[int], Sequence[int]]:
    """The prompt that a conversation makes, and where the answer ends: the model's own stop ids and the template's."""
    if card.chat is None:
        raise RequestError(f"the model {card.name} has no chat template; give it a plain text to go on with")
    of_chat = (token for token in card.chat.stop_ids(tokenizer) if token < card.vocab_size)  # some have no row
    ends = dict.fromkeys([*card.stop_ids, *of_chat])
    return card.chat.prompt(conversation, tokenizer), tuple(ends)


def job_ids(name: str, *, redis_url: str | None = None) -> list[str]:
    """The ids of a group's jobs, in the order of their seeds; of a job, its own."""
    with closing(connect(redis_url)) as connection:
        return jobs_named(connection, name)


def tail(job_id: str, after: int = 0, *, redis_url: str | None = None) -> tails.Tail:
    """Yield a job's events after token ``after``, waiting for those to come: tokens, then the end.

    Of a group, those of one job after the other; an end stands between them.
    """
    with closing(connect(redis_url)) as connection:
        for each in _to_tail(connection, job_id, after):
            yield from tails.tail(connection, each, after)


async def tail_async(job_id: str, after: int = 0, *, redis_url: str | None = None) -> tails.AsyncTail:
    """The async :func:`tail`."""
    with closing(await asyncio.to_thread(connect, redis_url)) as records:  # which may have to start the server
        async with aclosing(connect_async(redis_url)) as connection:
            for each in await asyncio.to_thread(_to_tail, records, job_id, after):
                async with aclosing(tails.tail_async(connection, records, each, after)) as events:
                    async for event in events:
                        yield event


def _to_tail(connection: redis.Redis, name: str, after: int) -> list[str]:
    tails.Cursor(name, after)  # whatever the name stands for, both are within their rules
    found = jobs_named(connection, name)
    if after and len(found) > 1:
        raise RequestError(
            f"a group is read from its beginning, got after token {after}; name one job: {found[0]}, ..."
        )
    return found


def cancel(job_id: str, *, redis_url: str | None = None) -> JobState:
    """Ask that a job, or all of a group, stop; returns the state that it was in. Raises UnknownJobError."""
    with closing(connect(redis_url)) as connection, explained(connection):
        return state_of_all([endings.cancel(connection, each) for each in jobs_named(connection, job_id)])


def result(job_id: str, *, redis_url: str | None = None) -> results_of_jobs.JobResult | None:
    """The answer of a job, or None while it has not ended. Raises UnknownJobError, and RequestError for a group."""
    found = results(job_id, redis_url=redis_url)
    if len(found) > 1:
        raise RequestError(f"a job has one answer, but {job_id} is a group of {len(found)}; results() gives them all")
    return found[0]


def results(name: str, *, redis_url: str | None = None) -> list[results_of_jobs.JobResult | None]:
    """The answers of a group's jobs, or of the one job, None for each that has not ended. Raises UnknownJobError."""
    with closing(connect(redis_url)) as connection:
        return [results_of_jobs.result(connection, each) for each in jobs_named(connection, name)]
