"""Errors as OpenAI's clients expect them, and which of ours becomes which."""

from __future__ import annotations

import math
from typing import Any, Final

import redis
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from minilab_gateway.json_bytes import encoded
from minilab_gen.errors import (
    CardError,
    DuplicateJobError,
    MiniLabError,
    QueueFullError,
    RedisUnavailableError,
    RequestError,
    StreamError,
    UnknownJobError,
    UnknownModelError,
)
from minilab_gen.protocol.refusals import refusal, refuses_writes

RETRY_SECONDS: Final = 2
"""What Retry-After says where nobody knows better: a Redis that starts anew takes about so long."""


class ApiError(Exception):
    """An answer that is an error: its status, and the fields of OpenAI's error object."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        retry_after: float | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.code, self.param = status, message, code, param
        self.headers = dict(headers or {})
        if retry_after is not None:
            self.headers["Retry-After"] = str(max(1, math.ceil(retry_after)))

    @property
    def kind(self) -> str:
        """The ``type`` of the error object."""
        known = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
        return known.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")

    def body(self) -> dict[str, Any]:
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}

    def response(self) -> Response:
        return Response(encoded(self.body()), self.status, self.headers, "application/json")


def unknown_completion(name: str) -> ApiError:
    """The same for one that never was, has expired, or belongs to another key."""
    return ApiError(404, f"unknown or expired completion: {name}", code="completion_not_found", param="id")


def unknown_response(name: str) -> ApiError:
    """The same for a response, also for one that was deleted or not stored."""
    return ApiError(404, f"unknown or expired response: {name}", code="response_not_found", param="id")


def unforeseen(request_id: str) -> ApiError:
    """What is told about an error that nobody foresaw."""
    return ApiError(500, f"the gateway failed; its log says more about {request_id}", code="internal")


def api_error(error: Exception) -> ApiError | None:
    """What a client is told about an error; None for one that nobody foresaw."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, HTTPException):
        return ApiError(error.status_code, str(error.detail), headers=dict(error.headers or {}))
    if isinstance(error, MiniLabError):
        return _of_ours(error)
    if isinstance(error, redis.ConnectionError | redis.TimeoutError):
        return ApiError(503, "Redis is unavailable; try again", code="redis_unavailable", retry_after=RETRY_SECONDS)
    if isinstance(error, redis.RedisError) and refuses_writes(error):
        return ApiError(503, refusal(error)[0], code="redis_refuses", retry_after=RETRY_SECONDS)
    return None


_STATUS: Final[dict[type[MiniLabError], tuple[int, str | None, str | None]]] = {
    RequestError: (400, None, None),
    UnknownModelError: (404, "model_not_found", "model"),
    UnknownJobError: (404, "completion_not_found", "id"),
    DuplicateJobError: (409, "id_in_use", None),
    QueueFullError: (429, "queue_full", None),
    RedisUnavailableError: (503, "redis_unavailable", None),
    StreamError: (500, "stream_damaged", None),
    CardError: (500, "card_damaged", "model"),
}
"""The status, the code and the field of each of our errors."""


def _of_ours(error: MiniLabError) -> ApiError:
    known = (answer for kind, answer in _STATUS.items() if isinstance(error, kind))
    status, code, param = next(known, (500, None, None))
    retry_after = RETRY_SECONDS if status in (429, 503) else None
    return ApiError(status, str(error), code=code, param=param, retry_after=retry_after)
