"""``/v1/files``: files of requests come in, those of answers go out."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from fastapi import APIRouter, Request
from fastapi.responses import Response, StreamingResponse
from starlette.requests import ClientDisconnect

from minilab_gateway import schemas
from minilab_gateway.batches.batch import ENDED
from minilab_gateway.batches.batch_store import BatchStore
from minilab_gateway.batches.file_store import FileStore, StoredFile
from minilab_gateway.batches.pages import Page, list_object
from minilab_gateway.batches.upload import Bounds, receive_file
from minilab_gateway.doors import key_of
from minilab_gateway.errors import ApiError
from minilab_gateway.json_bytes import encoded
from minilab_gateway.service import Service

_MOST_LISTED = 10_000


def file_router(service: Service, files: FileStore, batches: BatchStore, bounds: Bounds) -> APIRouter:
    """``/v1/files``."""
    router = APIRouter()

    async def found(request: Request, file_id: str) -> StoredFile:
        file = await service.run(files.find, file_id, key_of(request.scope).name)
        if file is None:
            raise unknown_file(file_id)
        return file

    @router.post(
        "/v1/files",
        summary="Upload a file of requests",
        openapi_extra=schemas.UPLOAD,
        responses=schemas.RESPONSES,
        response_class=Response,
    )
    async def upload(request: Request) -> Response:
        owner = key_of(request.scope).name
        try:
            file = await receive_file(service, files, owner, request.headers, request.stream(), bounds)
        except ClientDisconnect:
            raise ApiError(400, "the client went away before its file had come") from None
        return _json(file.to_json())

    @router.get("/v1/files", summary="The files of this key", responses=schemas.RESPONSES, response_class=Response)
    async def listed(request: Request) -> Response:
        page, purpose = Page.of(request, _MOST_LISTED, _MOST_LISTED), request.query_params.get("purpose")
        there = {file.file_id: file for file in await service.run(files.of_owner, key_of(request.scope).name)}
        behind = [there[file_id] for file_id in page.ids(list(there))]
        wanted = [file for file in behind if purpose is None or file.purpose == purpose]
        return _json(list_object(wanted, page.limit, StoredFile.to_json))

    @router.get("/v1/files/{file_id}", summary="One of them", responses=schemas.RESPONSES, response_class=Response)
    async def one(request: Request, file_id: str) -> Response:
        return _json((await found(request, file_id)).to_json())

    @router.get(
        "/v1/files/{file_id}/content", summary="Its content", responses=schemas.RESPONSES, response_class=Response
    )
    async def content(request: Request, file_id: str) -> Response:
        file = await found(request, file_id)
        headers = {"Content-Length": str(file.size), "X-Content-Type-Options": "nosniff"}
        return StreamingResponse(_content(service, files, file), 200, headers, "application/octet-stream")

    @router.delete("/v1/files/{file_id}", summary="Delete it", responses=schemas.RESPONSES, response_class=Response)
    async def delete(request: Request, file_id: str) -> Response:
        file = await found(request, file_id)
        await service.run(_delete, files, batches, file)
        return _json({"id": file.file_id, "object": "file", "deleted": True})

    return router


def unknown_file(file_id: str) -> ApiError:
    """The same for one that never was, has expired, or belongs to another key."""
    return ApiError(404, f"unknown or expired file: {file_id[:100]}", code="file_not_found", param="id")


def _delete(files: FileStore, batches: BatchStore, file: StoredFile) -> None:
    """Raises ApiError for a file that a batch still reads."""
    for batch in batches.read(batches.open_ids()):
        if batch is not None and batch.asked.input_file_id == file.file_id and batch.status not in ENDED:
            rule = f"a file must not be deleted while a batch reads it: {batch.batch_id} is {batch.status}"
            raise ApiError(409, f"{rule}; cancel it first", code="file_in_use")
    files.delete(file)


async def _content(service: Service, files: FileStore, file: StoredFile) -> AsyncGenerator[bytes, None]:
    number = 0
    while parts := await service.run(files.parts, file.file_id, number):
        yield b"".join(parts)
        number += len(parts)


def _json(content: object) -> Response:
    return Response(encoded(content), media_type="application/json")
