"""A response's stream of server-sent events, made of the events of its job.

The number of an event follows from the job alone: a few events open the stream, each token is one, a few close it. So
whatever gateway writes them, and whenever, the same numbers stand before the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from minilab_gateway.chunks import event
from minilab_gateway.errors import ApiError
from minilab_gateway.response_objects import (
    Response,
    Status,
    message,
    message_status,
    of_events,
    response_object,
    status_of,
    text_part,
    token_logprobs,
)
from minilab_gen.protocol.events import EndEvent, Event, TokenEvent

_CLOSING: Final = 4
"""Events after the last text: the text, its part and its item are done, then the response."""


class ResponseEvents:
    """Writes the stream of one response from any position on."""

    def __init__(self, response: Response, seen: int | None) -> None:
        """``seen`` is the number of the last event that the client has seen, None for none."""
        self._response, self._seen = response, -1 if seen is None else seen
        self._number = 0
        self._has_begun = False
        self._texts: list[str] = []
        self._logprobs: list[dict[str, Any]] = []

    def first(self) -> bytes:
        """What is known before any token."""
        status: Status = "queued" if self._response.note.is_background else "in_progress"
        created = self._of_response("response.created", status)
        return created + self._of_response(f"response.{status}", status)

    def of_events(self, _index: int, events: Iterable[Event]) -> bytes:
        """The events of some of the job's events."""
        return b"".join(
            [self._begin() + (self._of_token(e) if isinstance(e, TokenEvent) else self._of_end(e)) for e in events]
        )

    def last(self) -> bytes:
        """Nothing: the event that says how a response ended is its last one."""
        return b""

    def failed(self, error: ApiError) -> bytes:
        """What ends a stream that cannot be gone on with here. It has no id: the stream goes on behind the one before.

        A job that failed is told by ``response.failed``.
        """
        fields = {"code": error.code, "message": error.message, "param": error.param}
        return event({"type": "error", **fields, "sequence_number": self._number}, name="error")

    def _begin(self) -> bytes:
        """What comes before the first token, with it: so no number depends on how long the job waits."""
        if self._has_begun:
            return b""
        self._has_begun = True
        running = b""
        if self._response.note.is_background:
            running = self._of_response("response.in_progress", "in_progress")
        item = message(self._response, "in_progress", ())
        added = self._event("response.output_item.added", {"output_index": 0, "item": item})
        return running + added + self._of_part("response.content_part.added", part=text_part("", ()))

    def _of_token(self, token: TokenEvent) -> bytes:
        logprobs = token_logprobs([token.token_id], [token.logprobs], self._response)
        self._logprobs += logprobs
        return self._delta(token.text, logprobs)

    def _delta(self, text: str, logprobs: list[dict[str, Any]]) -> bytes:
        self._texts.append(text)
        return self._of_part("response.output_text.delta", delta=text, logprobs=of_events(logprobs))

    def _of_end(self, end: EndEvent) -> bytes:
        rest = self._delta(end.text, []) if end.text else b""
        status, text = status_of(end), "".join(self._texts)
        part = text_part(text, self._logprobs)
        item = message(self._response, message_status(status), [part])
        kind = "incomplete" if status == "cancelled" else status  # for which OpenAI's clients know no event
        return b"".join(
            [
                rest,
                self._of_part("response.output_text.done", text=text, logprobs=of_events(self._logprobs)),
                self._of_part("response.content_part.done", part=part),
                self._event("response.output_item.done", {"output_index": 0, "item": item}),
                self._event(f"response.{kind}", {"response": response_object(self._response, status, [item], end)}),
            ]
        )

    def _of_response(self, kind: str, status: Status) -> bytes:
        return self._event(kind, {"response": response_object(self._response, status)})

    def _of_part(self, kind: str, **fields: Any) -> bytes:
        place = {"item_id": self._response.item_id, "output_index": 0, "content_index": 0}
        return self._event(kind, {**place, **fields})

    def _event(self, kind: str, fields: dict[str, Any]) -> bytes:
        number = self._number
        self._number += 1
        if number <= self._seen:
            return b""
        return event({"type": kind, "sequence_number": number, **fields}, str(number), kind)


def last_number(response: Response, tokens: int, end: EndEvent | None) -> int:
    """The number of the last event that a client can have seen of a response with so many tokens by now."""
    opening = 2
    begun = opening + 2 + response.note.is_background
    if end is not None:
        return begun + tokens + bool(end.text) + _CLOSING - 1
    return begun + tokens - 1 if tokens else opening - 1
