"""What is still to come of a body when its answer is there, since that is a refusal: read with a bound, then cut.

Who still sends is not cut at once: an unread byte makes the system drop what was sent, the answer among it.
"""

from __future__ import annotations

import asyncio
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_SECONDS: Final = 3.0
_BYTES: Final = 256 * 2**20
"""That are read on behind an answer, so that who sends everything before it reads gets it: 2.5 of the largest
files."""

_SMALL: Final = 65_536
"""Bytes of a declared body which the server may drop without us, and keep the connection."""


class Leftover:
    """Closes each connection on which a large body has not come whole when its answer ends."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not _may_be_large(Headers(scope=scope)):
            await self._app(scope, receive, send)
            return
        body = _Body(receive, waits="expect" in Headers(scope=scope))

        async def send_then_drain(message: Message) -> None:
            if message["type"] == "http.response.start" and not body.is_over:
                MutableHeaders(scope=message)["Connection"] = "close"
                body.is_left = True
            elif message["type"] == "http.response.body" and body.is_left and not message.get("more_body", False):
                await send({**message, "more_body": True})
                await body.drain()
                message = {"type": "http.response.body", "body": b""}
            await send(message)

        await self._app(scope, body.receive, send_then_drain)


class _Body:
    """A body as it comes."""

    def __init__(self, receive: Receive, waits: bool) -> None:
        """``waits``: the client sends nothing before it is told to go on."""
        self._receive, self._waits = receive, waits
        self.is_over = self.is_left = False

    async def receive(self) -> Message:
        message = await self._receive()
        self._waits = False
        self.is_over = self.is_over or not message.get("more_body", False)
        return message

    async def drain(self) -> None:
        """Read on until the body is over, or what is left is too much."""
        if self._waits:
            return
        read = 0
        try:
            async with asyncio.timeout(_SECONDS):
                while not self.is_over and read < _BYTES:
                    read += len((await self.receive()).get("body", b""))
        except TimeoutError:
            pass


def _may_be_large(headers: Headers) -> bool:
    length = headers.get("content-length", "0")
    declares_much = not (length.isascii() and length.isdigit() and len(length) < 10 and int(length) <= _SMALL)
    return "transfer-encoding" in headers or declares_much
