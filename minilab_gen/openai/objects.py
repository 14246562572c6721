"""Answers as OpenAI's objects, with ``stop_reason`` of vLLM, and ``token_ids`` and ``seed`` of ours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from minilab_gen.protocol.events import EndEvent
from minilab_gen.protocol.results import Answer


@dataclass(frozen=True, slots=True)
class Heading:
    """What an object says beside the answers."""

    object_id: str
    chats: bool
    created: int
    """Unix time in seconds."""
    model: str
    seed: int | None


def completion_object(heading: Heading, answers: Sequence[Answer]) -> dict[str, Any]:
    """The whole object: a choice for each answer."""
    return {
        "id": heading.object_id,
        "object": "chat.completion" if heading.chats else "text_completion",
        "created": heading.created,
        "model": heading.model,
        "system_fingerprint": answers[0].fingerprint,
        "choices": [_choice(index, answer, heading) for index, answer in enumerate(answers)],
        "usage": usage_of([answer.end for answer in answers]),
        "seed": heading.seed,
    }


def usage_of(ends: Sequence[EndEvent]) -> dict[str, int]:
    """What was read once, and written for all answers."""
    prompt_tokens, tokens = ends[0].prompt_tokens, sum(end.tokens for end in ends)
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
    }


def _choice(index: int, given: Answer, heading: Heading) -> dict[str, Any]:
    return {
        "index": index,
        **({"message": {"role": "assistant", "content": given.text}} if heading.chats else {"text": given.text}),
        **ending_of(given.end),
        "logprobs": None,
        "token_ids": list(given.ids),
    }
