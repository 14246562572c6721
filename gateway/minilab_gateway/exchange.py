"""What all routes of answers read from a request beside its body, and the stream by which they answer."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Callable, Collection, Mapping
from typing import Final

from fastapi import Request
from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.types import Receive, Scope, Send

from minilab_gateway.errors import ApiError
from minilab_gen.errors import RequestError
from minilab_gen.request import shown

STARTING_AFTER: Final = "starting_after"

_LONGEST_IDEMPOTENCY_KEY: Final = 255

_FIELD: Final = re.compile(r"[a-z_]+")

_STREAM_HEADERS: Final = {"Cache-Control": "no-cache, no-transform"}

COMPLETION_ID: Final = "X-Completion-Id"
"""The header of a stream that names its completion, which may wait long for a token: so it can be cancelled."""


class _Comment(ServerSentEvent):
    """A comment, without an empty line behind it: after an event with an id OpenAI's client takes that for another."""

    def encode(self) -> bytes:
        return b":\n"


class _PlainComment(ServerSentEvent):
    """One for readers that take what stands between two empty lines for an event."""

    def encode(self) -> bytes:
        return b":\n\n"


class EventStream(EventSourceResponse):
    """A stream whose end is noticed however it comes, also where not even its headers could be sent."""

    def __init__(
        self,
        pieces: AsyncGenerator[bytes, None],
        ping: float,
        at_end: Callable[[], None],
        *,
        has_ids: bool = True,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(
            pieces,
            headers={**_STREAM_HEADERS, **(headers or {})},
            ping=ping,
            sep="\n",
            ping_message_factory=_Comment if has_ids else _PlainComment,
        )
        self._pieces, self._at_end = pieces, at_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._at_end()
            await self._pieces.aclose()


def idempotency_key(request: Request, header: str) -> str | None:
    """The key that makes a retry find its first try; None for none. Raises RequestError."""
    given = request.headers.get(header)
    if given is not None and not 1 <= len(given) <= _LONGEST_IDEMPOTENCY_KEY:
        raise RequestError(f"{header} must have 1 to {_LONGEST_IDEMPOTENCY_KEY} characters, got {len(given)}")
    return given


def position(request: Request) -> str | None:
    """The id of the last event that a client has seen, as it says it; None for none."""
    return request.query_params.get(STARTING_AFTER, request.headers.get("last-event-id"))


def is_true(request: Request, name: str) -> bool:
    """A truth in the address, false where it is not there. Raises ApiError."""
    given = request.query_params.get(name, "false").lower()
    if given not in ("true", "false", "1", "0"):
        raise ApiError(400, f"{name} must be true or false, got {shown(given)}", param=name)
    return given in ("true", "1")


def refused(message: str, fields: Collection[str]) -> ApiError:
    """A refusal, with the field that its message begins with."""
    found = _FIELD.match(message)
    return ApiError(400, message, param=found[0] if found is not None and found[0] in fields else None)


async def gone(request: Request) -> None:
    """Return when the client has gone away."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
