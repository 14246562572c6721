"""JSON lines, read one at a time, however long the file is."""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO, Final

from minilab_gen.errors import RequestError
from minilab_gen.request import shown
from minilab_gen.utf8_text import decoded, without_mark

MAX_LINE_BYTES: Final = 16_000_000
"""Bytes of one line: the longest prompt, with each of its characters written as an escape of 12, and room for the
rest."""

_AROUND_A_LINE: Final = len(codecs.BOM_UTF8) + len(b"\r\n")

_SKIPPED_AT_ONCE: Final = 1 << 20
"""Bytes of an over-long line that are read in one go to find its end."""


@dataclass(frozen=True, slots=True)
class RawLine:
    """A line of a file that is not blank."""

    number: int
    """From 1, blank lines counted."""
    content: bytes | None
    """Without the line end; None where it is longer than was allowed."""


def read_lines(file: BinaryIO, at_most: int = MAX_LINE_BYTES) -> Iterator[RawLine]:
    """Yield the lines of a file that are not blank, without the byte-order mark that some editors put first.

    Raises RequestError for a file in UTF-16 or UTF-32, of which no line could be read.
    """
    number = 0
    while line := file.readline(at_most + _AROUND_A_LINE):
        number += 1
        if number == 1:
            line = without_mark(line, "IN")
        content = line.rstrip(b"\r\n")
        if len(content) > at_most:
            _skip_rest(file, line)
            yield RawLine(number, None)
        elif content.strip():
            yield RawLine(number, content)


def _skip_rest(file: BinaryIO, line: bytes) -> None:
    while line and not line.endswith(b"\n"):
        line = file.readline(_SKIPPED_AT_ONCE)


def parse_object(content: bytes | None) -> dict[str, Any]:
    """The JSON object in a line. Raises RequestError where it is none, or would be read differently elsewhere."""
    if content is None:
        raise RequestError(f"a line must be at most {MAX_LINE_BYTES} bytes long, got more")
    try:
        parsed = json.loads(decoded(content, "a line"), object_pairs_hook=_fields)
    except RequestError:
        raise
    except json.JSONDecodeError as error:
        raise RequestError(f"a line must be JSON, got another character at {error.pos}: {error.msg}") from error
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, brackets a thousand deep
        raise RequestError(f"a line must be JSON that can be read: {error}") from error
    if not isinstance(parsed, dict):
        raise RequestError(f"a line must be a JSON object, got {type(parsed).__name__}")
    return parsed


def _fields(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for name, value in pairs:
        if name in fields:  # which of the two is meant, is not for us to guess
            raise RequestError(f"a field must be given once, got {shown(name)} twice")
        fields[name] = value
    return fields


_SEPARATORS: Final = {code: f"\\u{code:04x}" for code in (0x85, 0x2028, 0x2029)}
"""Characters at which Unicode, and Python's ``splitlines``, end a line; JSON may hold them as they are."""


def line_bytes(content: Mapping[str, Any]) -> bytes:
    """An object as one line, with its end."""
    text = json.dumps(content, ensure_ascii=False, allow_nan=False).translate(_SEPARATORS)
    return f"{text}\n".encode()
