"""JSON as bytes, strict in both directions: neither NaN nor Infinity, neither written nor read."""

from __future__ import annotations

from typing import Any, Final

import orjson

from minilab_gen.errors import RequestError

MOST_STRINGS: Final = 250_000
"""Texts and names of fields in one body: ten thousand messages with tool calls have fewer."""

MOST_VALUES: Final = 500_000
"""Values in one body: the longest prompt in ids, as many allowed ids, and some room.

A body is read in one step, which holds up every stream of the process: these bounds keep it below some 50 ms.
"""

_SMALL: Final = 65_536
"""Bytes of a body that cannot hold too much."""


def encoded(value: Any) -> bytes:
    return orjson.dumps(value)


def parsed_object(body: bytes) -> dict[str, Any]:
    """The object in a body. Raises RequestError for anything else, and for what would take too long to read."""
    if len(body) > _SMALL:
        _check_counts(body)
    try:
        content = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise RequestError(f"the body must be JSON: {error}") from None
    if not isinstance(content, dict):
        raise RequestError(f"the body must be a JSON object, got {type(content).__name__}")
    return content


def _check_counts(body: bytes) -> None:
    """Count what a body holds before it is read, in steps of a few milliseconds each."""
    plain = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    if plain.count(b'"') > 2 * MOST_STRINGS:
        raise RequestError(f"a body may hold at most {MOST_STRINGS} texts and names of fields, got more")
    outside = b"".join(plain.split(b'"')[::2])
    if sum(map(outside.count, (b",", b"[", b"{"))) > MOST_VALUES:
        raise RequestError(f"a body may hold at most {MOST_VALUES} values, got more")
