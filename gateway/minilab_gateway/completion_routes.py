"""``/v1/completions`` and ``/v1/chat/completions``: asked for, and found again by their ids."""

from __future__ import annotations

import re
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any, Final

from fastapi import APIRouter, Request
from fastapi.responses import Response
from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.types import Receive, Scope, Send

from minilab_gateway import schemas
from minilab_gateway.answers import Answers, Delivery
from minilab_gateway.completion import Completion
from minilab_gateway.doors import key_of
from minilab_gateway.errors import ApiError, unknown_completion
from minilab_gateway.json_bytes import encoded
from minilab_gateway.limits import Limits
from minilab_gateway.notes import RouteName
from minilab_gateway.service import Service, Wish
from minilab_gateway.settings import GatewaySettings
from minilab_gen.asked_model import AskedModel
from minilab_gen.errors import RequestError, UnknownModelError
from minilab_gen.openai.bodies import CHAT_COMPLETIONS, COMPLETIONS, AskedRequest, Route, read_request
from minilab_gen.request import shown

_ROUTES: Final[dict[RouteName, Route]] = {"chat": CHAT_COMPLETIONS, "text": COMPLETIONS}

HTTP_FIELDS: Final = ("stream", "stream_options", "store")
"""Fields of a body that are about how it is answered, not about what."""

_LONGEST_IDEMPOTENCY_KEY: Final = 255

_AFTER: Final = "starting_after"

_POSITION: Final = re.compile(r"[0-9]{1,18}(?:\.[0-9]{1,18})*")

_FIELD: Final = re.compile(r"[a-z_]+")

_STREAM_HEADERS: Final = {"Cache-Control": "no-cache, no-transform"}


class CompletionRoutes:
    """What the routes share, and the routes."""

    def __init__(self, service: Service, answers: Answers, limits: Limits, settings: GatewaySettings) -> None:
        self._service, self._answers, self._limits, self._settings = service, answers, limits, settings

    def router(self) -> APIRouter:
        router = APIRouter()
        for name, route in _ROUTES.items():
            router.add_api_route(
                route.url,
                self._post(name),
                methods=["POST"],
                summary="Answer a conversation" if name == "chat" else "Go on with a text",
                openapi_extra=schemas.request_body(route),
                responses=schemas.RESPONSES,
                response_class=Response,
                operation_id=f"create_{name}_completion",
            )
            router.add_api_route(
                f"{route.url}/{{completion_id}}",
                self._get(name),
                methods=["GET"],
                summary="The answer again, or the rest of its stream",
                openapi_extra=schemas.RESUME,
                responses=schemas.RESPONSES,
                response_class=Response,
                operation_id=f"get_{name}_completion",
            )
            router.add_api_route(
                f"{route.url}/{{completion_id}}/cancel",
                self._cancelling(name),
                methods=["POST"],
                summary="Ask that it stops; what there is of it stays",
                responses=schemas.RESPONSES,
                response_class=Response,
                operation_id=f"cancel_{name}_completion",
            )
        return router

    def _post(self, name: RouteName) -> Any:
        async def create(request: Request) -> Response:
            return await self._create(request, name)

        return create

    def _get(self, name: RouteName) -> Any:
        async def resume(request: Request, completion_id: str) -> Response:
            return await self._resume(request, name, completion_id)

        return resume

    def _cancelling(self, name: RouteName) -> Any:
        async def cancel(request: Request, completion_id: str) -> Response:
            completion = await self._found(request, name, completion_id)
            await self._service.run(self._service.cancel, completion.job_ids)
            return Response(
                encoded({"id": completion.public_id, "object": "completion.cancelled"}),
                202,
                media_type="application/json",
            )

        return cancel

    async def _create(self, request: Request, name: RouteName) -> Response:
        began = time.perf_counter()
        sent = await request.body()
        body = await self._service.parsed(sent)
        streams, usage, stays = _http_fields(body)
        owner, idempotency_key = key_of(request.scope), self._idempotency_key(request)
        if streams and body.get("echo"):
            raise ApiError(400, "echo goes with stream false", param="echo")
        asked_body = {field: value for field, value in body.items() if field not in HTTP_FIELDS}
        digest = await self._service.digest(sent, body)
        wish = Wish(_ROUTES[name], name, asked_body, owner.name, idempotency_key, usage, digest)
        completion = await self._service.run(self._service.find_first_try, wish)
        hold = self._limits.hold(owner, len(completion.job_ids) if completion is not None else _count_of(body))
        try:
            if completion is None:
                completion = await self._submit(request, wish)
            delivery = Delivery(completion, stays or idempotency_key is not None)
            if streams:
                return self._stream(delivery, None, began, hold.release)
            return await self._whole(request, delivery, began)
        finally:
            if completion is None or not streams:
                hold.release()

    async def _submit(self, request: Request, wish: Wish) -> Completion:
        model = await self._service.run(self._service.model, wish.body.get("model"))
        if not key_of(request.scope).may_ask(model.card.name):
            raise UnknownModelError(f"no model {model.card.name} is there for this key")
        asked = await self._service.run(_read, wish, model)
        await self._service.wait_for_worker(model.card.name)
        return await self._service.run(self._service.submit, wish, asked, model)

    async def _resume(self, request: Request, name: RouteName, completion_id: str) -> Response:
        completion = await self._found(request, name, completion_id)
        seen = await self._seen(request, completion)
        delivery = Delivery(completion, stays=True)
        if _is_true(request, "stream"):
            if completion.note.echo:
                raise ApiError(400, "a completion with echo has no stream", param="stream")
            return self._stream(delivery, seen, None, lambda: None)
        if seen is not None:
            raise ApiError(400, "starting_after goes with stream=true", param="starting_after")
        return await self._whole(request, delivery, time.perf_counter())

    async def _found(self, request: Request, name: RouteName, completion_id: str) -> Completion:
        completion = await self._service.run(self._service.find, completion_id, name, key_of(request.scope).name)
        if completion is None:
            raise unknown_completion(completion_id[:100])
        return completion

    async def _whole(self, request: Request, delivery: Delivery, began: float) -> Response:
        try:
            whole = await self._answers.whole_or_gone(delivery, lambda: _gone(request), began)
        finally:
            self._answers.end(delivery)
        return Response(encoded(whole), media_type="application/json")

    def _stream(
        self, delivery: Delivery, seen: Sequence[int] | None, began: float | None, at_end: Callable[[], None]
    ) -> Response:
        def end() -> None:
            at_end()
            self._answers.end(delivery)

        return _Stream(self._answers.stream(delivery, seen, began), self._settings.ping, end)

    def _idempotency_key(self, request: Request) -> str | None:
        name = self._settings.idempotency_header
        given = request.headers.get(name)
        if given is not None and not 1 <= len(given) <= _LONGEST_IDEMPOTENCY_KEY:
            raise RequestError(f"{name} must have 1 to {_LONGEST_IDEMPOTENCY_KEY} characters, got {len(given)}")
        return given

    async def _seen(self, request: Request, completion: Completion) -> list[int] | None:
        """The numbers of the last event that a client has seen. Raises ApiError for what it cannot have seen."""
        given = request.query_params.get("starting_after", request.headers.get("last-event-id"))
        if given is None:
            return None
        numbers = [int(part) for part in given.split(".")] if _POSITION.fullmatch(given) else []
        if len(numbers) != len(completion.job_ids):
            rule = "a number" if len(completion.job_ids) == 1 else f"{len(completion.job_ids)} numbers between dots"
            raise ApiError(400, f"starting_after must be the id of an event, {rule}, got {shown(given)}", param=_AFTER)
        lengths = await self._service.run(self._service.lengths, completion.job_ids)
        if any(number > last for number, last in zip(numbers, lengths, strict=True)):
            there = ".".join(map(str, lengths))
            raise ApiError(400, f"starting_after must be at most {there} by now, got {given}", param=_AFTER)
        return numbers


class _Stream(EventSourceResponse):
    """A stream whose end is noticed however it comes, also where not even its headers could be sent."""

    def __init__(self, pieces: AsyncGenerator[bytes, None], ping: float, at_end: Callable[[], None]) -> None:
        super().__init__(
            pieces,
            headers=_STREAM_HEADERS,
            ping=ping,
            sep="\n",
            ping_message_factory=_ping,
        )
        self._pieces, self._at_end = pieces, at_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._at_end()
            await self._pieces.aclose()


def _ping() -> ServerSentEvent:
    """Ends its lines as all events do: many a client splits at an empty line of one kind."""
    return ServerSentEvent(comment="", sep="\n")


def _read(wish: Wish, model: AskedModel) -> AskedRequest:
    """What a body asks for. Raises ApiError, with the field that it is about."""
    try:
        return read_request(wish.route, wish.body, model)
    except RequestError as error:
        message = str(error)
        if wish.body.get("max_completion_tokens") is not None and wish.body.get("max_tokens") is None:
            message = re.sub(r"\bmax_tokens\b", "max_completion_tokens", message)
        found = _FIELD.match(message)
        known = found is not None and found[0] in {*wish.body, *wish.route.fields}
        raise ApiError(400, message, param=found[0] if found is not None and known else None) from error


def _http_fields(body: dict[str, Any]) -> tuple[bool, bool, bool]:
    """Whether a stream is wanted, with usage at its end, and whether the answer is to be kept. Raises ApiError."""
    for name in ("stream", "store"):
        if not isinstance(body.get(name, False), bool | None):
            raise ApiError(400, f"{name} must be true or false, got {shown(body[name])}", param=name)
    streams, options = bool(body.get("stream")), body.get("stream_options")
    if options is None:
        return streams, False, bool(body.get("store"))
    if not streams:
        raise ApiError(400, "stream_options goes with stream true", param="stream_options")
    if not isinstance(options, dict) or not options.keys() <= {"include_usage", "include_obfuscation"}:
        raise ApiError(400, f"stream_options may have include_usage, got {shown(options)}", param="stream_options")
    if not all(isinstance(value, bool | None) for value in options.values()) or options.get("include_obfuscation"):
        rule = "stream_options must have include_usage true or false, and no obfuscation"
        raise ApiError(400, f"{rule}, got {shown(options)}", param="stream_options")
    return streams, bool(options.get("include_usage")), bool(body.get("store"))


def _count_of(body: dict[str, Any]) -> int:
    """Jobs that a body asks for, before it is checked."""
    n = body.get("n")
    return n if type(n) is int and n > 0 else 1


def _is_true(request: Request, name: str) -> bool:
    given = request.query_params.get(name, "false").lower()
    if given not in ("true", "false", "1", "0"):
        raise ApiError(400, f"{name} must be true or false, got {shown(given)}", param=name)
    return given in ("true", "1")


async def _gone(request: Request) -> None:
    """Return when the client has gone away."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
