"""Answers as OpenAI's objects, with ``stop_reason`` of vLLM, and ``token_ids`` and ``seed`` of ours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from minilab_gen.protocol.events import EndEvent
from minilab_gen.protocol.results import Answer
from minilab_gen.text import openai_logprobs
from minilab_gen.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Heading:
    """What an object says beside the answers."""

    object_id: str
    chats: bool
    created: int
    """Unix time in seconds."""
    model: str
    seed: int | None
    prompts: Sequence[Sequence[int]]
    """Of one request: each has as many answers as every other."""
    tokenizer: Tokenizer
    echo: bool = False
    """Whether the text of each answer begins with the prompt."""


def completion_object(heading: Heading, answers: Sequence[Answer]) -> dict[str, Any]:
    """The whole object: a choice for each answer."""
    return {
        "id": heading.object_id,
        "object": "chat.completion" if heading.chats else "text_completion",
        "created": heading.created,
        "model": heading.model,
        "system_fingerprint": answers[0].fingerprint,
        "choices": [_choice(index, answer, heading, len(answers)) for index, answer in enumerate(answers)],
        "usage": usage_of([answer.end for answer in answers], len(heading.prompts)),
        "seed": heading.seed,
    }


def usage_of(ends: Sequence[EndEvent], prompts: int = 1) -> dict[str, int]:
    """What was read once for each prompt, and written for all answers."""
    first_of_each = ends[:: len(ends) // prompts]
    prompt_tokens, tokens = sum(end.prompt_tokens for end in first_of_each), sum(end.tokens for end in ends)
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": tokens,
        "total_tokens": prompt_tokens + tokens,
    }


def ending_of(end: EndEvent) -> dict[str, Any]:
    """Why an answer ended. OpenAI has no word for one that was cut off: ``stop_reason`` says it."""
    reason = end.reason if end.reason in ("cancelled", "timeout") else end.stop_text
    return {
        "finish_reason": "stop" if end.reason == "stop" else "length",
        **({} if reason is None else {"stop_reason": reason}),
        **({} if end.complete is None else {"complete": end.complete}),
    }


def _choice(index: int, given: Answer, heading: Heading, count: int) -> dict[str, Any]:
    prompt = heading.prompts[index * len(heading.prompts) // count]
    text = heading.tokenizer.decode(prompt) + given.text if heading.echo else given.text
    choice: dict[str, Any] = {
        "index": index,
        **({"message": {"role": "assistant", "content": text}} if heading.chats else {"text": text}),
        **ending_of(given.end),
        "logprobs": _logprobs(given, text, heading, tuple(prompt)),
        "token_ids": list(given.ids),
    }
    if given.prompt_logprobs is not None and not heading.echo:
        choice["prompt_logprobs"] = openai_logprobs.of_prompt(given.prompt_logprobs, heading.tokenizer)
    return choice


def _logprobs(given: Answer, text: str, heading: Heading, prompt: tuple[int, ...]) -> dict[str, Any] | None:
    """Those of the text; None where none were asked for."""
    if given.logprobs is None:
        return None
    tokenizer = heading.tokenizer
    if heading.chats:
        return openai_logprobs.of_chat(given.ids, given.logprobs, tokenizer)
    if heading.echo:
        ids, listed = (*prompt, *given.ids), (*(given.prompt_logprobs or ()), *given.logprobs)
        offsets = openai_logprobs.text_offsets(ids, text, tokenizer.decoder())
        return openai_logprobs.of_completion(ids, listed, offsets, tokenizer)
    offsets = openai_logprobs.text_offsets(given.ids, text, tokenizer.decoder(prompt))
    return openai_logprobs.of_completion(given.ids, given.logprobs, offsets, tokenizer)
