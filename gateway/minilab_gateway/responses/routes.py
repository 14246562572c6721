"""``/v1/responses``: made, found again, followed from any event on, cancelled and deleted."""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from dataclasses import dataclass, replace
from typing import Any, Final

from fastapi import APIRouter, Request
from fastapi.responses import Response as HttpResponse

from minilab_gateway import schemas
from minilab_gateway.answers import Answers, Delivery
from minilab_gateway.chunks import failure
from minilab_gateway.completion import Completion
from minilab_gateway.doors import allowance_of, key_of
from minilab_gateway.errors import ApiError
from minilab_gateway.exchange import (
    STARTING_AFTER,
    EventStream,
    gone,
    idempotency_key,
    is_true,
    position,
    refused,
)
from minilab_gateway.json_bytes import encoded
from minilab_gateway.responses.events import ResponseEvents
from minilab_gateway.responses.jobs import ResponseJobs
from minilab_gateway.responses.notes import note_on
from minilab_gateway.responses.objects import MOST_ITEMS, Response, item_list
from minilab_gateway.service import Prepared, Service, Wish
from minilab_gateway.settings import GatewaySettings
from minilab_gen.asked_model import AskedModel
from minilab_gen.errors import RequestError
from minilab_gen.openai.response_bodies import RESPONSES, AskedResponse, read_response
from minilab_gen.openai.response_items import Item
from minilab_gen.protocol.submission import draw_seed
from minilab_gen.request import shown

_HTTP_FIELDS: Final = ("stream", "stream_options", "store")

_CANCEL_SECONDS: Final = 10.0
"""In which a job that is cancelled has ended, unless its worker is gone."""

_ERASE_LOOKS: Final = 100
_LOOK_SECONDS: Final = 0.05
"""Between looks whether a job that was deleted has ended."""

_NUMBER: Final = re.compile(r"[0-9]{1,18}")


@dataclass(frozen=True, slots=True)
class _Wanted:
    """How a response is to be answered."""

    streams: bool
    is_background: bool
    is_stored: bool
    stays: bool
    """Whether it goes on without its client."""


class ResponseRoutes:
    """What the routes share, and the routes."""

    def __init__(self, service: Service, jobs: ResponseJobs, answers: Answers, settings: GatewaySettings) -> None:
        self._service, self._jobs, self._answers, self._settings = service, jobs, answers, settings

    def router(self) -> APIRouter:
        router = APIRouter()
        one = f"{RESPONSES.url}/{{response_id}}"
        for method, path, call, summary, extra in (
            ("POST", RESPONSES.url, self._create, "Answer, in a conversation", schemas.request_body(RESPONSES)),
            ("GET", one, self._get, "A response as it stands, or the rest of its stream", schemas.RESUME),
            ("POST", f"{one}/cancel", self._cancel, "Stop one in the background; what there is of it stays", None),
            ("DELETE", one, self._delete, "Delete it, and stop it where it runs", None),
            ("GET", f"{one}/input_items", self._input_items, "What it answers", schemas.INPUT_ITEMS),
        ):
            router.add_api_route(
                path,
                call,
                methods=[method],
                summary=summary,
                openapi_extra=extra,
                responses=schemas.RESPONSES,
                response_class=HttpResponse,
                operation_id=f"response{call.__name__}",
            )
        return router

    async def _create(self, request: Request) -> HttpResponse:
        began = time.perf_counter()
        sent = await request.body()
        body = await self._service.parsed(sent)
        wanted = _wanted(body)
        key, retry_key = key_of(request.scope), idempotency_key(request, self._settings.idempotency_header)
        asked_body = {field: value for field, value in body.items() if field not in _HTTP_FIELDS}
        digest, allowance = await self._service.digest(sent, body), allowance_of(request.scope)
        wish = Wish(RESPONSES, "response", asked_body, key.name, retry_key, False, digest, allowance)

        def prepare() -> Completion | Prepared:
            if (first_try := self._jobs.first_try(wish)) is not None:
                return first_try
            model = self._service.model(wish.body.get("model"), key)
            earlier = self._jobs.earlier(wish.body.get("previous_response_id"), wish.owner)
            noted, read = _read(wish, wanted, earlier, model)
            return Prepared(noted, [read.asked], model)

        completion = await self._service.completion(prepare)
        response = await self._service.run(self._jobs.of, completion)
        delivery = Delivery(completion, wanted.stays or retry_key is not None)
        if wanted.streams:
            return self._stream(response, delivery, None, began)
        if wanted.is_background:
            return _json(await self._service.run(self._jobs.state, response))
        return await self._whole(request, response, delivery, began)

    async def _get(self, request: Request, response_id: str) -> HttpResponse:
        response = await self._found(request, response_id)
        seen = await self._seen(request, response)
        if is_true(request, "stream"):
            return self._stream(response, Delivery(response.completion, stays=True), seen, None)
        if seen is not None:
            raise ApiError(400, "starting_after goes with stream=true", param=STARTING_AFTER)
        return _json(await self._service.run(self._jobs.state, response))

    async def _cancel(self, request: Request, response_id: str) -> HttpResponse:
        response = await self._found(request, response_id)
        if not response.note.is_background:
            raise ApiError(400, "only a response with background true can be cancelled", code="not_in_background")
        if await self._service.run(self._jobs.end, response) is None:
            await self._service.run(self._service.cancel, response.completion.job_ids)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_CANCEL_SECONDS):
                    await self._answers.ended(response.completion.job_ids)
        return _json(await self._service.run(self._jobs.state, response))

    async def _delete(self, request: Request, response_id: str) -> HttpResponse:
        response = await self._found(request, response_id)
        await self._service.run(self._jobs.hide, response)
        for _ in range(_ERASE_LOOKS):  # one that a worker does not let go of expires as any other
            if await self._service.run(self._jobs.erase, response):
                break
            await asyncio.sleep(_LOOK_SECONDS)
        return _json({"id": response.completion.public_id, "object": "response.deleted", "deleted": True})

    async def _input_items(self, request: Request, response_id: str) -> HttpResponse:
        order, after = request.query_params.get("order", "desc"), request.query_params.get("after")
        if order not in ("asc", "desc"):
            raise ApiError(400, f"order must be asc or desc, got {shown(order)}", param="order")
        limit = request.query_params.get("limit", "20")
        if not _NUMBER.fullmatch(limit) or not 1 <= int(limit) <= MOST_ITEMS:
            raise ApiError(400, f"limit must be a number from 1 to {MOST_ITEMS}, got {shown(limit)}", param="limit")
        response = await self._found(request, response_id)
        ids = response.note.item_ids(response.name)
        items = [item.to_api(item_id) for item, item_id in zip(response.note.items, ids, strict=True)]
        return _json(item_list(items, order, int(limit), after))

    async def _found(self, request: Request, response_id: str) -> Response:
        return await self._service.run(self._jobs.find, response_id, key_of(request.scope).name)

    async def _whole(self, request: Request, response: Response, delivery: Delivery, began: float) -> HttpResponse:
        async def whole() -> dict[str, Any]:
            await self._answers.read(response.completion, began)
            end = await self._service.run(self._jobs.end, response)
            if end is not None and end.reason == "error":
                raise failure(end, response.completion.note)
            return await self._service.run(self._jobs.state, response)

        try:
            answer = await self._answers.whole_or_gone(delivery, whole(), lambda: gone(request))
        finally:
            self._answers.end(delivery)
        return _json(answer)

    def _stream(self, response: Response, delivery: Delivery, seen: int | None, began: float | None) -> HttpResponse:
        pieces = self._answers.stream(delivery, ResponseEvents(response, seen), began)
        return EventStream(pieces, self._settings.ping, lambda: self._answers.end(delivery))

    async def _seen(self, request: Request, response: Response) -> int | None:
        """The number of the last event that a client has seen. Raises ApiError for what it cannot have seen."""
        given = position(request)
        if given is None:
            return None
        if not (given.isascii() and _NUMBER.fullmatch(given)):
            rule = "starting_after must be the sequence_number of an event"
            raise ApiError(400, f"{rule}, got {shown(given)}", param=STARTING_AFTER)
        last = await self._service.run(self._jobs.last_number, response)
        if int(given) > last:
            raise ApiError(400, f"starting_after must be at most {last} by now, got {given}", param=STARTING_AFTER)
        return int(given)


def _json(content: Any) -> HttpResponse:
    return HttpResponse(encoded(content), media_type="application/json")


def _read(wish: Wish, wanted: _Wanted, earlier: tuple[Item, ...], model: AskedModel) -> tuple[Wish, AskedResponse]:
    """What a body asks for, and the wish with the note that its job is to have. Raises ApiError."""
    try:
        read = read_response(wish.body, earlier, model)
    except RequestError as error:
        raise refused(str(error), {*wish.body, *RESPONSES.fields}) from error
    if not read.asked.has_seed:
        asked = replace(read.asked, request=read.asked.request.with_seed(draw_seed()), has_seed=True)
        read = replace(read, asked=asked)
    note = note_on(
        read,
        is_background=wanted.is_background,
        is_stored=wanted.is_stored,
        previous=wish.body.get("previous_response_id"),
    )
    return replace(wish, response=note.to_json()), read


def _wanted(body: dict[str, Any]) -> _Wanted:
    """Raises ApiError."""
    for name in ("stream", "store", "background"):
        if not isinstance(body.get(name, False), bool | None):
            raise ApiError(400, f"{name} must be true or false, got {shown(body[name])}", param=name)
    streams, is_background, store = bool(body.get("stream")), bool(body.get("background")), body.get("store")
    if is_background and store is False:
        raise ApiError(400, "store must be true for a response with background true, got false", param="store")
    options = body.get("stream_options")
    if options is not None and not streams:
        raise ApiError(400, "stream_options goes with stream true", param="stream_options")
    if options is not None and options not in ({}, {"include_obfuscation": False}, {"include_obfuscation": None}):
        rule = "stream_options may have include_obfuscation, which is not offered here and must be false"
        raise ApiError(400, f"{rule}, got {shown(options)}", param="stream_options")
    return _Wanted(streams, is_background, store is not False, is_background or store is True)
