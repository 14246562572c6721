"""Responses as OpenAI's objects: whole, as far as they have come, and the lists of their items."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from minilab_gateway.completion import Completion
from minilab_gateway.errors import ApiError
from minilab_gateway.responses.notes import ResponseNote
from minilab_gen.logprobs import TokenLogprobs
from minilab_gen.protocol.events import EndEvent
from minilab_gen.text.openai_logprobs import of_chat

Status = Literal["queued", "in_progress", "completed", "incomplete", "cancelled", "failed"]

_STATUS: Final[dict[str, Status]] = {
    "stop": "completed",
    "length": "incomplete",
    "context": "incomplete",
    "cancelled": "cancelled",
    "timeout": "failed",
    "error": "failed",
}
"""The status of a response by the reason for which its job ended."""

MOST_ITEMS: Final = 100
"""Items in one list, as at OpenAI."""


@dataclass(frozen=True, slots=True)
class Response:
    """A response that can be answered: its completion, and what its note says."""

    completion: Completion
    note: ResponseNote

    @property
    def name(self) -> str:
        """The id of its job."""
        return self.completion.found.name


def status_of(end: EndEvent) -> Status:
    return _STATUS[end.reason]


def response_object(
    response: Response, status: Status, output: Sequence[dict[str, Any]] = (), end: EndEvent | None = None
) -> dict[str, Any]:
    """The whole object. It has the same bytes wherever it is made: all that is in it comes from the job."""
    completion, note = response.completion, response.note
    return {
        "id": completion.public_id,
        "object": "response",
        "created_at": completion.note.created,
        "status": status,
        "background": note.is_background,
        "error": _error(end),
        "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
        "model": completion.model,
        "output": list(output),
        "parallel_tool_calls": True,
        "previous_response_id": note.previous,
        "reasoning": {"effort": None, "summary": None},
        "service_tier": "default",
        "store": note.is_stored,
        "tool_choice": "auto",
        "truncation": "disabled",
        "usage": None if end is None else _usage(end),
        "seed": note.seed,
        **note.given_back,
    }


def message(item_id: str, status: str, content: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """A message in a response's output."""
    return {
        "id": item_id,
        "type": "message",
        "status": status,
        "role": "assistant",
        "content": list(content),
    }


def message_status(status: Status) -> str:
    """The status of the message at which a response with this status stands."""
    return status if status in ("completed", "in_progress") else "incomplete"


def text_part(text: str, logprobs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "output_text", "annotations": [], "logprobs": list(logprobs), "text": text}


def token_logprobs(
    ids: Sequence[int], listed: Sequence[TokenLogprobs | None], response: Response
) -> list[dict[str, Any]]:
    """The logprobs of tokens; none where none were asked for."""
    found = [(token, one) for token, one in zip(ids, listed, strict=True) if one is not None]
    entries: list[dict[str, Any]] = of_chat(
        [token for token, _ in found], [one for _, one in found], response.completion.tokenizer
    )["content"]
    for entry in entries:
        for token in (entry, *entry["top_logprobs"]):
            token["bytes"] = token["bytes"] or []  # here OpenAI has no null
    return entries


def of_events(logprobs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same as the events of a stream have them: without bytes."""
    return [
        {
            "token": entry["token"],
            "logprob": entry["logprob"],
            "top_logprobs": [{"token": token["token"], "logprob": token["logprob"]} for token in entry["top_logprobs"]],
        }
        for entry in logprobs
    ]


def item_list(items: Sequence[dict[str, Any]], order: str, limit: int, after: str | None) -> dict[str, Any]:
    """A page of the items of a conversation, the newest first where ``order`` is desc. Raises ApiError."""
    ordered = list(items) if order == "asc" else list(reversed(items))
    if after is not None:
        places = [index for index, item in enumerate(ordered) if item["id"] == after]
        if not places:
            raise ApiError(400, "after must be the id of an item of this response", param="after")
        ordered = ordered[places[0] + 1 :]
    page = ordered[:limit]
    return {
        "object": "list",
        "data": page,
        "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None,
        "has_more": len(ordered) > limit,
    }


def _error(end: EndEvent | None) -> dict[str, Any] | None:
    if end is None or status_of(end) != "failed":
        return None
    reason = end.error or "no reason was recorded"
    told = "the job ran out of time" if end.reason == "timeout" else f"the job failed: {reason}"
    return {"code": "server_error", "message": f"{told}, after {end.tokens} tokens"}


def _usage(end: EndEvent) -> dict[str, Any]:
    return {
        "input_tokens": end.prompt_tokens,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": end.tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": end.prompt_tokens + end.tokens,
    }
