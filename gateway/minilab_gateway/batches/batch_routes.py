"""``/v1/batches``: asked for, looked at, cancelled. Drivers do the rest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from fastapi import APIRouter, Request
from fastapi.responses import Response

from minilab_gateway import schemas
from minilab_gateway.api_keys import ApiKey
from minilab_gateway.batches.batch import Batch, NewBatch
from minilab_gateway.batches.batch_store import BatchStore
from minilab_gateway.batches.file_routes import unknown_file
from minilab_gateway.batches.file_store import FILE_SECONDS, FileStore
from minilab_gateway.batches.pages import Page, list_object
from minilab_gateway.batches.upload import checked_seconds
from minilab_gateway.doors import key_of
from minilab_gateway.errors import ApiError
from minilab_gateway.exchange import idempotency_key
from minilab_gateway.json_bytes import encoded
from minilab_gateway.service import Service, name_for
from minilab_gateway.settings import GatewaySettings
from minilab_gen.batch.openai_form import ROUTES
from minilab_gen.request import shown

WINDOW: Final = "24h"
"""The one ``completion_window``, as OpenAI has it."""

_FIELDS: Final = ("input_file_id", "endpoint", "completion_window", "metadata", "output_expires_after")

_MOST_LISTED: Final = 100

_MOST_PAIRS, _LONGEST_NAME, _LONGEST_VALUE = 16, 64, 512
"""Of metadata, as OpenAI has it."""


class BatchRoutes:
    """What the routes share, and the routes."""

    def __init__(
        self,
        service: Service,
        files: FileStore,
        batches: BatchStore,
        settings: GatewaySettings,
        wake: Callable[[], None],
    ) -> None:
        """``wake`` tells a driver that there is something to do."""
        self._service, self._files, self._batches = service, files, batches
        self._settings, self._wake = settings, wake

    def router(self) -> APIRouter:
        router = APIRouter()
        named: dict[str, Any] = {"responses": schemas.RESPONSES, "response_class": Response}

        @router.post("/v1/batches", summary="Answer a file of requests", openapi_extra=schemas.BATCH, **named)
        async def create(request: Request) -> Response:
            sent = await request.body()
            retry_key = idempotency_key(request, self._settings.idempotency_header)
            body = await self._service.parsed(sent)
            asked, digest = _asked(body, key_of(request.scope)), await self._service.digest(sent, body)
            batch = await self._service.run(self._create, asked, retry_key, digest)
            self._wake()
            return _json(batch.to_json())

        @router.get("/v1/batches", summary="The batches of this key", **named)
        async def listed(request: Request) -> Response:
            page = Page.of(request, 20, _MOST_LISTED)
            found = await self._service.run(self._listed, key_of(request.scope).name, page)
            return _json(list_object(found, page.limit, Batch.to_json))

        @router.get("/v1/batches/{batch_id}", summary="One of them", **named)
        async def one(request: Request, batch_id: str) -> Response:
            return _json((await self._found(request, batch_id)).to_json())

        @router.post("/v1/batches/{batch_id}/cancel", summary="Ask that it ends with what there is", **named)
        async def cancel(request: Request, batch_id: str) -> Response:
            await self._found(request, batch_id)
            status = await self._service.run(self._batches.cancel, batch_id)
            if status not in ("validating", "in_progress", "cancelling"):
                raise ApiError(409, f"a batch must not have ended to be cancelled, but {batch_id} is {status}")
            self._wake()
            return _json((await self._found(request, batch_id)).to_json())

        return router

    async def _found(self, request: Request, batch_id: str) -> Batch:
        batch = await self._service.run(self._batches.find, batch_id, key_of(request.scope).name)
        if batch is None:
            message = f"unknown or expired batch: {batch_id[:100]}"
            raise ApiError(404, message, code="batch_not_found", param="id")
        return batch

    def _create(self, asked: NewBatch, retry_key: str | None, digest: str) -> Batch:
        """The batch, or that of the first try. Raises ApiError."""
        batch_id = f"batch_{name_for(asked.owner, retry_key)[:24]}"
        if retry_key is None or self._batches.find(batch_id, asked.owner) is None:
            self._keep_input(asked)
        batch = self._batches.create(batch_id, asked, self._settings.batch_window, digest)
        if batch is None:
            raise ApiError(409, "this Idempotency-Key came with another body before", code="idempotency_key_in_use")
        return batch

    def _keep_input(self, asked: NewBatch) -> None:
        """Have the file of a batch stay while that may read it. Raises ApiError."""
        file = self._files.find(asked.input_file_id, asked.owner)
        if file is None:
            raise unknown_file(asked.input_file_id)
        if file.purpose != "batch":
            rule = "input_file_id must be a file with the purpose batch"
            raise ApiError(400, f"{rule}, got {file.purpose}", param="input_file_id")
        self._files.extend(file, self._settings.batch_window + FILE_SECONDS)

    def _listed(self, owner: str, page: Page) -> list[Batch]:
        """The batches of a page, and one more where there is more."""
        behind = page.ids(self._batches.of_owner(owner))
        found: list[Batch] = []
        gone: list[str] = []
        for first in range(0, len(behind), page.limit + 1):
            some = behind[first : first + page.limit + 1]
            for batch_id, batch in zip(some, self._batches.read(some), strict=True):
                if batch is None:
                    gone.append(batch_id)
                else:
                    found.append(batch)
            if len(found) > page.limit:
                break
        if gone:
            self._batches.forget(owner, gone)
        return found


def _asked(body: dict[str, Any], key: ApiKey) -> NewBatch:
    """What a body asks for. Raises ApiError."""
    for name in body:
        if name not in _FIELDS:
            raise ApiError(400, f"body may have the fields {', '.join(_FIELDS)}, got {shown(name)}", param=name)
    file_id, endpoint, window = (body.get(name) for name in _FIELDS[:3])
    if not isinstance(file_id, str) or not file_id:
        raise ApiError(400, f"input_file_id must be the id of a file, got {shown(file_id)}", param="input_file_id")
    if not isinstance(endpoint, str) or endpoint not in ROUTES:
        raise ApiError(400, f"endpoint must be {' or '.join(ROUTES)}, got {shown(endpoint)}", param="endpoint")
    if window != WINDOW:
        raise ApiError(400, f"completion_window must be {WINDOW}, got {shown(window)}", param="completion_window")
    models = None if key.models is None else tuple(key.models)
    seconds = _output_seconds(body.get("output_expires_after"))
    metadata, limits = _metadata(body.get("metadata")), (key.jobs, key.tokens_per_minute)
    return NewBatch(key.name, endpoint, file_id, metadata, seconds, *limits, models)


def _metadata(given: Any) -> dict[str, str] | None:
    if given is None:
        return None
    are_texts = isinstance(given, dict) and all(isinstance(value, str) for value in given.values())
    if not are_texts or len(given) > _MOST_PAIRS:
        rule = f"metadata must be an object of at most {_MOST_PAIRS} texts"
        raise ApiError(400, f"{rule}, got {shown(given)}", param="metadata")
    if any(len(name) > _LONGEST_NAME or len(value) > _LONGEST_VALUE for name, value in given.items()):
        rule = f"metadata must have names of at most {_LONGEST_NAME} characters and texts of {_LONGEST_VALUE}"
        raise ApiError(400, f"{rule}, got longer ones", param="metadata")
    return dict(given)


def _output_seconds(given: Any) -> int:
    if given is None:
        return FILE_SECONDS
    if not isinstance(given, dict) or given.keys() != {"anchor", "seconds"} or given["anchor"] != "created_at":
        rule = 'output_expires_after must be {"anchor": "created_at", "seconds": N}'
        raise ApiError(400, f"{rule}, got {shown(given)}", param="output_expires_after")
    return checked_seconds(given["seconds"], "output_expires_after")


def _json(content: object) -> Response:
    return Response(encoded(content), media_type="application/json")
