"""Calls of tools in JSON: where it ends, and what it calls. Arguments stay the text that the model wrote."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final, NoReturn

_SPACE: Final = re.compile(r"[ \t\n\r]*")
_OPENING: Final = "{["
_CLOSING: Final = "}]"


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a function by name."""

    name: str
    arguments: str
    """An object in JSON."""


class JsonEnd:
    """Finds the end of an object or a list in JSON that comes piece by piece; what is within is not checked."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_text = self._escaped = False

    def push(self, text: str) -> int | None:
        """How many characters of ``text`` belong to it; None for all, and more to come."""
        for place, character in enumerate(text, start=1):
            if self._in_text:
                if self._escaped:
                    self._escaped = False
                elif character == "\\":
                    self._escaped = True
                elif character == '"':
                    self._in_text = False
            elif character == '"':
                self._in_text = True
            elif character in _OPENING:
                self._depth += 1
            elif character in _CLOSING:
                self._depth -= 1
                if not self._depth:
                    return place
        return None


def calls_in(text: str, names: Collection[str]) -> list[ToolCall] | None:
    """The calls that an object or a list in JSON makes; None where one of them is no call of these functions."""
    try:
        parts = _elements(text) if text.startswith("[") else [text]
        calls = [_call(_members(part), names) for part in parts]
    except (ValueError, RecursionError):
        return None
    return calls or None


def is_arguments(text: str) -> bool:
    """Whether a text is an object in JSON."""
    try:
        return isinstance(_DECODER.decode(text), dict)
    except (ValueError, RecursionError):
        return False


def _call(members: Mapping[str, str], names: Collection[str]) -> ToolCall:
    name = json.loads(members.get("name", "null"))
    given = [members[key] for key in ("arguments", "parameters") if key in members]
    if not isinstance(name, str) or name not in names or len(given) > 1:
        raise ValueError("no call of a function that is known")
    arguments = given[0] if given and given[0] != "null" else "{}"
    if arguments.startswith('"'):  # some models write JSON in a text
        arguments = json.loads(arguments)
    if not is_arguments(arguments):
        raise ValueError("arguments that are no object")
    arguments.encode()  # JSON in a text may spell half a character, which no answer can hold
    return ToolCall(name, arguments)


def _members(text: str) -> dict[str, str]:
    """The values of an object, each as it is written. Raises ValueError."""
    members: dict[str, str] = {}
    at = _expect(text, 0, "{")
    if text[at : at + 1] == "}":
        return members
    while True:
        name, at = _value(text, at)
        if not name.startswith('"'):
            raise ValueError("a name that is no text")
        value, at = _value(text, _expect(text, at, ":"))
        members[json.loads(name)] = value
        if text[at : at + 1] == "}":
            return members
        at = _expect(text, at, ",")


def _elements(text: str) -> list[str]:
    """The elements of a list, each as it is written. Raises ValueError."""
    elements: list[str] = []
    at = _expect(text, 0, "[")
    while text[at : at + 1] != "]":
        value, at = _value(text, at)
        elements.append(value)
        if text[at : at + 1] != "]":
            at = _expect(text, at, ",")
            if text[at : at + 1] == "]":
                raise ValueError("a comma before the end")
    return elements


def _value(text: str, at: int) -> tuple[str, int]:
    _, end = _DECODER.raw_decode(text, at)
    return text[at:end], _space(text, end)


def _expect(text: str, at: int, sign: str) -> int:
    if text[at : at + 1] != sign:
        raise ValueError(f"{sign} is missing")
    return _space(text, at + 1)


def _space(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return at if found is None else found.end()


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"JSON has no {name}")


_DECODER: Final[Any] = json.JSONDecoder(parse_constant=_no_number)
