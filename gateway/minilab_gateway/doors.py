"""What every request passes before a route sees it: its id and its line in the log, its key, the size of its body.

Pure ASGI, since middleware that wraps responses hides that a client has gone away.
"""

from __future__ import annotations

import asyncio
import logging
import random
import re
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from minilab_gateway.api_keys import NO_KEY, ApiKey, ApiKeys
from minilab_gateway.errors import RETRY_SECONDS, ApiError, api_error, unforeseen
from minilab_gateway.limits import Allowance
from minilab_gateway.metrics import Metrics
from minilab_gateway.page import PATHS

_log = logging.getLogger(__name__)

OPEN_PATHS: Final = frozenset({"/health", "/ready"}) | PATHS
"""What is answered without a key: whether the process is well, and the page's files. They tell nothing about models or
jobs."""

REQUEST_ID: Final = "X-Request-Id"
_REQUEST_ID: Final = re.compile(r"[A-Za-z0-9_.:-]{1,128}")

_names: Final = random.Random()
"""Of request ids, which are no secrets: those of the system cost a request as much as a question to Redis."""

BODY_SECONDS: Final = 60.0
"""In which a body must have come: the largest, over a slow line."""


_SHUTTING_DOWN: Final = ApiError(
    503, "the gateway is shutting down; try again, at another one", code="shutting_down", retry_after=RETRY_SECONDS
)
"""What is told where the time for open answers is over: then the server cancels their tasks, and nothing else does."""
UPLOAD_PATH: Final = "/v1/files"

UPLOAD_SECONDS: Final = 600.0
"""In which a file must have come: 100 MB at 1.4 Mbit/s."""


def key_of(scope: Scope) -> ApiKey:
    """The key with which a request came in."""
    key = scope["minilab.key"]
    assert isinstance(key, ApiKey)
    return key


def allowance_of(scope: Scope) -> Allowance:
    """What a request may use of the limits of its key."""
    allowance = scope["minilab.allowance"]
    assert isinstance(allowance, Allowance)
    return allowance


class Heads:
    """Has HEAD answered as GET is, wherever that is; the server leaves the body out, as it knows what was asked."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_head = scope["type"] == "http" and scope["method"] == "HEAD"
        await self._app({**scope, "method": "GET"} if is_head else scope, receive, send)


class RequestLines:
    """Gives each request an id and a line of the log; what nobody foresaw becomes an error that tells nothing."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app, self._metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get(REQUEST_ID, "")
        request_id = given if _REQUEST_ID.fullmatch(given) else f"req-{_names.getrandbits(64):016x}"
        scope["minilab.request_id"] = request_id
        began, status = time.perf_counter(), 0

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)[REQUEST_ID] = request_id
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - the client is told, and the log
            known = _SHUTTING_DOWN if isinstance(error, asyncio.CancelledError) else api_error(error)
            if known is None:
                _log.exception("%s: a request failed", request_id)
                known = unforeseen(request_id)
            if not status:
                await known.response()(scope, receive, send_with_id)
        finally:
            self._metrics.count_request(_route_of(scope), status)
            took = 1000 * (time.perf_counter() - began)
            name = key_of(scope).name if "minilab.key" in scope else ""
            _log.info(
                "%s %s %s %d %.0f ms%s",
                request_id,
                scope["method"],
                scope["path"][:200],
                status,
                took,
                f" key {name}" if name else "",
                extra={"request_id": request_id, "status": status},
            )


class Access:
    """Lets in who shows a key. All paths need one but a short list, so that no alias of a route lets one through."""

    def __init__(
        self,
        app: ASGIApp,
        keys: ApiKeys | None,
        allow: Callable[[ApiKey], Allowance],
        run: Callable[[Callable[[], None]], Awaitable[None]],
        root_path: str,
    ) -> None:
        """``keys`` is None where none are asked for; ``run`` calls what blocks."""
        self._app, self._keys, self._allow, self._run, self._root_path = app, keys, allow, run, root_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":  # nothing here speaks anything else
            await send({"type": "websocket.close", "code": 1008})
            return
        scope["minilab.key"] = NO_KEY
        if self._keys is not None and scope["path"].removeprefix(self._root_path) not in OPEN_PATHS:
            key = self._found(self._keys, Headers(scope=scope))
            if key is None:
                raise ApiError(
                    401,
                    "a request must show one key that is known here: Authorization: Bearer KEY",
                    code="invalid_api_key",
                    headers={"WWW-Authenticate": "Bearer"},
                )
            scope["minilab.key"] = key
        allowance = scope["minilab.allowance"] = self._allow(scope["minilab.key"])
        if scope["method"] == "POST" and scope["minilab.key"].requests_per_minute is not None:
            await self._run(allowance.count_request)

        async def send_with_limits(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(allowance.headers)
            await send(message)

        await self._app(scope, receive, send_with_limits)

    @staticmethod
    def _found(keys: ApiKeys, headers: Headers) -> ApiKey | None:
        given = [value for name, value in headers.raw if name == b"authorization"]
        scheme, _, shown = given[0].partition(b" ") if len(given) == 1 else (b"", b"", b"")
        return keys.find(shown.strip(b" ")) if scheme.lower() == b"bearer" else None


class BodyLimit:
    """Refuses a body that is too large, as soon as that is known, compressed, or slower than anybody needs."""

    def __init__(self, app: ASGIApp, most: int, most_of_upload: int, root_path: str) -> None:
        self._app, self._most, self._most_of_upload, self._root_path = app, most, most_of_upload, root_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        uploads = scope["method"] == "POST" and scope["path"].removeprefix(self._root_path) == UPLOAD_PATH
        most, seconds = (self._most_of_upload, UPLOAD_SECONDS) if uploads else (self._most, BODY_SECONDS)
        if headers.get("content-encoding", "identity") != "identity":
            raise ApiError(415, "a body must not be compressed", code="unsupported_content_encoding")
        length = headers.get("content-length", "0")
        if length.isascii() and length.isdigit() and int(length) > most:
            raise _too_large(most)
        read, is_whole = 0, False
        until = time.monotonic() + seconds

        async def limited() -> Message:
            nonlocal read, is_whole
            if is_whole:
                return await receive()
            try:
                async with asyncio.timeout(until - time.monotonic()):
                    message: dict[str, Any] = dict(await receive())
            except TimeoutError:
                raise ApiError(408, f"a body must come within {seconds:.0f} s") from None
            read += len(message.get("body", b""))
            if read > most:
                raise _too_large(most)
            is_whole = not message.get("more_body", False)
            return message

        await self._app(scope, limited, send)


def _too_large(most: int) -> ApiError:
    return ApiError(413, f"a body must have at most {most} bytes, got more", code="body_too_large")


def _route_of(scope: Scope) -> str:
    """The route that answered, as the app spells it; so that no client can make up names of metrics."""
    return getattr(scope.get("route"), "path", "none")
