"""Answers as OpenAI's objects, with ``stop_reason`` of vLLM, and ``token_ids`` and ``seed`` of ours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from minilab_gen.protocol.events import EndEvent
from minilab_gen.protocol.results import Answer
from minilab_gen.text import openai_logprobs
from minilab_gen.text.call_reader import CallReading, call_object, read_answer
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
    calls: CallReading | None = None
    """How calls of tools in the answers are read; None where they stay text."""


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


def ending_of(end: EndEvent, *, has_calls: bool = False) -> dict[str, Any]:
    """Why an answer ended. OpenAI has no word for one that was cut off: ``stop_reason`` says it."""
    ended = "tool_calls" if has_calls else "stop"
    reason = end.reason if end.reason in ("cancelled", "timeout") else end.stop_text
    return {
        "finish_reason": ended if end.reason == "stop" else "length",
        **({} if reason is None else {"stop_reason": reason}),
        **({} if end.complete is None else {"complete": end.complete}),
    }


def _choice(index: int, given: Answer, heading: Heading, count: int) -> dict[str, Any]:
    prompt = tuple(heading.prompts[index * len(heading.prompts) // count])
    text = heading.tokenizer.decode(prompt) + given.text if heading.echo else given.text
    message = _message(index, given, heading, prompt) if heading.chats else {}
    choice: dict[str, Any] = {
        "index": index,
        **({"message": message} if heading.chats else {"text": text}),
        **ending_of(given.end, has_calls="tool_calls" in message),
        "logprobs": _logprobs(given, text, heading, prompt),
        "token_ids": list(given.ids),
    }
    if given.prompt_logprobs is not None and not heading.echo:
        choice["prompt_logprobs"] = openai_logprobs.of_prompt(given.prompt_logprobs, heading.tokenizer)
    return choice


def _message(index: int, given: Answer, heading: Heading, prompt: tuple[int, ...]) -> dict[str, Any]:
    if heading.calls is None:
        return {"role": "assistant", "content": given.text}
    content, calls = read_answer(heading.calls, given.ids, given.text, prompt, heading.tokenizer)
    listed = [call_object(call, heading.object_id, index, number) for number, call in enumerate(calls)]
    return {"role": "assistant", "content": content, **({"tool_calls": listed} if listed else {})}


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
