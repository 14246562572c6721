"""A response's stream of server-sent events, made of the events of its job.

The number of an event follows from the job alone. So whatever gateway writes them, and whenever, the same numbers stand
before the same bytes. A few events open the stream, each token is one, a few close it; where calls of functions are
read, only the tokens tell how many there are.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any, Final

from minilab_gateway.chunks import event
from minilab_gateway.errors import ApiError
from minilab_gateway.responses.objects import Response, Status, response_object, status_of
from minilab_gateway.responses.output import ResponseOutput
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
        self._output = ResponseOutput(response)

    def first(self) -> bytes:
        """What is known before any token."""
        status: Status = "queued" if self._response.note.is_background else "in_progress"
        created = self._of_response("response.created", status)
        return created + self._of_response(f"response.{status}", status)

    def of_events(self, _index: int, events: Iterable[Event]) -> bytes:
        """The events of some of the job's events."""
        return b"".join([self._running() + self._of_one(each) for each in events])

    def last(self) -> bytes:
        """Nothing: the event that says how a response ended is its last one."""
        return b""

    def failed(self, error: ApiError) -> bytes:
        """What ends a stream that cannot be gone on with here. It has no id: the stream goes on behind the one before.

        A job that failed is told by ``response.failed``.
        """
        fields = {"code": error.code, "message": error.message, "param": error.param}
        return event({"type": "error", **fields, "sequence_number": self._number}, name="error")

    @property
    def number(self) -> int:
        """That of the next event."""
        return self._number

    def _running(self) -> bytes:
        """What comes before the first token, with it: so no number depends on how long the job waits."""
        if self._has_begun:
            return b""
        self._has_begun = True
        return self._of_response("response.in_progress", "in_progress") if self._response.note.is_background else b""

    def _of_one(self, given: Event) -> bytes:
        steps = self._output.of_token(given) if isinstance(given, TokenEvent) else self._output.of_end(given)
        written = b"".join([self._event(f"response.{kind}", fields) for kind, fields in steps])
        return written if isinstance(given, TokenEvent) else written + self._last(given)

    def _last(self, end: EndEvent) -> bytes:
        status = status_of(end)
        kind = "incomplete" if status == "cancelled" else status  # for which OpenAI's clients know no event
        whole = response_object(self._response, status, self._output.objects(), end)
        return self._event(f"response.{kind}", {"response": whole})

    def _of_response(self, kind: str, status: Status) -> bytes:
        return self._event(kind, {"response": response_object(self._response, status)})

    def _event(self, kind: str, fields: dict[str, Any]) -> bytes:
        number = self._number
        self._number += 1
        if number <= self._seen:
            return b""
        return event({"type": kind, "sequence_number": number, **fields}, str(number), kind)


def last_number_of(response: Response, tokens: Iterable[TokenEvent], end: EndEvent | None) -> int:
    """The same where calls are read: by writing the events once more, but for their bytes."""
    events = ResponseEvents(response, sys.maxsize)
    events.first()
    events.of_events(0, tokens if end is None else [*tokens, end])
    return events.number - 1


def last_number(response: Response, tokens: int, end: EndEvent | None) -> int:
    """The number of the last event that a client can have seen of a response with so many tokens by now.

    For one in which no calls are read.
    """
    opening = 2
    begun = opening + 2 + response.note.is_background
    if end is not None:
        return begun + tokens + bool(end.text) + _CLOSING - 1
    return begun + tokens - 1 if tokens else opening - 1
