"""``/v1/completions`` and ``/v1/chat/completions``: asked for, and found again by their ids."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from fastapi import APIRouter, Request
from fastapi.responses import Response

from minilab_gateway import schemas
from minilab_gateway.answers import Answers, Delivery
from minilab_gateway.chunks import Chunks
from minilab_gateway.completion import Completion
from minilab_gateway.doors import allowance_of, key_of
from minilab_gateway.errors import ApiError, unknown_completion
from minilab_gateway.exchange import (
    COMPLETION_ID,
    STARTING_AFTER,
    EventStream,
    gone,
    idempotency_key,
    is_true,
    position,
    refused,
)
from minilab_gateway.json_bytes import encoded
from minilab_gateway.notes import RouteName
from minilab_gateway.service import Prepared, Service, Wish
from minilab_gateway.settings import GatewaySettings
from minilab_gen.asked_model import AskedModel
from minilab_gen.errors import RequestError
from minilab_gen.openai.bodies import CHAT_COMPLETIONS, COMPLETIONS, AskedRequest, Route, prompts_of, read_request
from minilab_gen.request import MAX_ANSWERS, shown

_ROUTES: Final[dict[RouteName, Route]] = {"chat": CHAT_COMPLETIONS, "text": COMPLETIONS}

HTTP_FIELDS: Final = ("stream", "stream_options", "store")
"""Fields of a body that are about how it is answered, not about what."""

_POSITION: Final = re.compile(r"[0-9]{1,18}(?:\.[0-9]{1,18})*")


_STREAM_OPTIONS: Final = ("include_usage", "include_event_ids")


@dataclass(frozen=True, slots=True)
class _Wanted:
    """How a request is to be answered."""

    streams: bool
    stays: bool
    """Whether its jobs go on without its client."""
    usage: bool = False
    event_ids: bool = True


class CompletionRoutes:
    """What the routes share, and the routes."""

    def __init__(self, service: Service, answers: Answers, settings: GatewaySettings) -> None:
        self._service, self._answers, self._settings = service, answers, settings

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
        wanted = _wanted(body)
        key, retry_key = key_of(request.scope), idempotency_key(request, self._settings.idempotency_header)
        if wanted.streams and body.get("echo"):
            raise ApiError(400, "echo goes with stream false", param="echo")
        asked_body = {field: value for field, value in body.items() if field not in HTTP_FIELDS}
        digest, allowance = await self._service.digest(sent, body), allowance_of(request.scope)
        wish = Wish(
            _ROUTES[name],
            name,
            asked_body,
            key.name,
            retry_key,
            digest=digest,
            allowance=allowance,
            usage=wanted.usage,
            event_ids=wanted.event_ids,
        )

        def prepare() -> Completion | Prepared:
            if (first_try := self._service.find_first_try(wish)) is not None:
                return first_try
            model = self._service.model(wish.body.get("model"), key)
            return Prepared(wish, _read(wish, model), model)

        delivery = Delivery(await self._service.completion(prepare), wanted.stays or retry_key is not None)
        if wanted.streams:
            return self._stream(delivery, None, began)
        return await self._whole(request, delivery, began)

    async def _resume(self, request: Request, name: RouteName, completion_id: str) -> Response:
        completion = await self._found(request, name, completion_id)
        seen = await self._seen(request, completion)
        delivery = Delivery(completion, stays=True)
        if is_true(request, "stream"):
            if completion.note.echo:
                raise ApiError(400, "a completion with echo has no stream", param="stream")
            return self._stream(delivery, seen, None)
        if seen is not None:
            raise ApiError(400, "starting_after goes with stream=true", param=STARTING_AFTER)
        return await self._whole(request, delivery, time.perf_counter())

    async def _found(self, request: Request, name: RouteName, completion_id: str) -> Completion:
        completion = await self._service.run(self._service.find, completion_id, name, key_of(request.scope).name)
        if completion is None:
            raise unknown_completion(completion_id[:100])
        return completion

    async def _whole(self, request: Request, delivery: Delivery, began: float) -> Response:
        try:
            answer = self._answers.whole(delivery.completion, began)
            whole = await self._answers.whole_or_gone(delivery, answer, lambda: gone(request))
        finally:
            self._answers.end(delivery)
        return Response(encoded(whole), media_type="application/json")

    def _stream(self, delivery: Delivery, seen: Sequence[int] | None, began: float | None) -> Response:
        pieces = self._answers.stream(delivery, Chunks(delivery.completion, seen), began)
        return EventStream(
            pieces,
            self._settings.ping,
            lambda: self._answers.end(delivery),
            has_ids=delivery.completion.note.event_ids,
            headers={COMPLETION_ID: delivery.completion.public_id},
        )

    async def _seen(self, request: Request, completion: Completion) -> list[int] | None:
        """The numbers of the last event that a client has seen. Raises ApiError for what it cannot have seen."""
        given = position(request)
        if given is None:
            return None
        numbers = [int(part) for part in given.split(".")] if _POSITION.fullmatch(given) else []
        if len(numbers) != len(completion.job_ids):
            rule = "a number" if len(completion.job_ids) == 1 else f"{len(completion.job_ids)} numbers between dots"
            raise ApiError(
                400, f"starting_after must be the id of an event, {rule}, got {shown(given)}", param=STARTING_AFTER
            )
        lengths = await self._service.run(self._service.lengths, completion)
        if any(number > last for number, last in zip(numbers, lengths, strict=True)):
            there = ".".join(map(str, lengths))
            raise ApiError(400, f"starting_after must be at most {there} by now, got {given}", param=STARTING_AFTER)
        return numbers


def _prompts(wish: Wish) -> list[object]:
    return prompts_of(wish.body) if wish.name == "text" else [None]


def _read(wish: Wish, model: AskedModel) -> list[AskedRequest]:
    """What a body asks for, for each of its prompts. Raises ApiError, with the field that it is about."""
    prompts = _prompts(wish)
    if len(prompts) > 1 and (count := _count_of(wish)) > MAX_ANSWERS:
        rule = f"prompt must ask for at most {MAX_ANSWERS} answers, prompts times n"
        raise ApiError(400, f"{rule}, got {count}", param="prompt")
    try:
        if len(prompts) == 1:
            return [read_request(wish.route, wish.body, model)]
        return [read_request(wish.route, {**wish.body, "prompt": prompt}, model) for prompt in prompts]
    except RequestError as error:
        raise refusal_of(error, wish.route, wish.body) from error


def refusal_of(error: RequestError, route: Route, body: Mapping[str, Any]) -> ApiError:
    """What is told about a body that is refused, with the field that it is about."""
    message = str(error)
    if body.get("max_completion_tokens") is not None and body.get("max_tokens") is None:
        message = re.sub(r"\bmax_tokens\b", "max_completion_tokens", message)
    return refused(message, {*body, *route.fields})


def _wanted(body: dict[str, Any]) -> _Wanted:
    """What a body says of how it is to be answered. Raises ApiError."""
    for name in ("stream", "store"):
        if not isinstance(body.get(name, False), bool | None):
            raise ApiError(400, f"{name} must be true or false, got {shown(body[name])}", param=name)
    streams, stays, options = bool(body.get("stream")), bool(body.get("store")), body.get("stream_options")
    if options is None:
        return _Wanted(streams, stays)
    if not streams:
        raise ApiError(400, "stream_options goes with stream true", param="stream_options")
    if not isinstance(options, dict) or not options.keys() <= {*_STREAM_OPTIONS, "include_obfuscation"}:
        rule = f"stream_options may have {' and '.join(_STREAM_OPTIONS)}"
        raise ApiError(400, f"{rule}, got {shown(options)}", param="stream_options")
    if not all(isinstance(value, bool | None) for value in options.values()) or options.get("include_obfuscation"):
        rule = f"stream_options must have {' and '.join(_STREAM_OPTIONS)} true or false, and no obfuscation"
        raise ApiError(400, f"{rule}, got {shown(options)}", param="stream_options")
    return _Wanted(streams, stays, bool(options.get("include_usage")), options.get("include_event_ids") is not False)


def _count_of(wish: Wish) -> int:
    """Jobs that a body asks for, before it is checked."""
    n = wish.body.get("n")
    return len(_prompts(wish)) * (n if type(n) is int and n > 0 else 1)
