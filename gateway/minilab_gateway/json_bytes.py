"""JSON as bytes, strict in both directions: neither NaN nor Infinity, neither written nor read."""

from __future__ import annotations

from typing import Any

import orjson

from minilab_gen.errors import RequestError


def encoded(value: Any) -> bytes:
    return orjson.dumps(value)


def parsed_object(body: bytes) -> dict[str, Any]:
    """The object in a body. Raises RequestError for anything else."""
    try:
        content = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise RequestError(f"the body must be JSON: {error}") from None
    if not isinstance(content, dict):
        raise RequestError(f"the body must be a JSON object, got {type(content).__name__}")
    return content
