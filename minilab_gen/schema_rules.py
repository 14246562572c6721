"""Which JSON schemas can be kept to. What could not be kept is refused by its name and place, never passed over.

docs/sampling.md has the table. It must know neither torch nor Redis.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import unquote

from minilab_gen.errors import RequestError
from minilab_gen.field_checks import shown

FORMATS: Final = ("date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "uri", "uuid")

ANNOTATIONS: Final = (
    "$comment",
    "$schema",
    "title",
    "description",
    "default",
    "examples",
    "readOnly",
    "writeOnly",
    "deprecated",
    "discriminator",
)
"""Keywords that allow every value. The last is OpenAPI's, beside the ``oneOf`` that says the same."""

MAX_SCHEMA_DEPTH: Final = 100
"""Levels of JSON: a parser needs some of its stack for each."""

LONGEST_PERIOD: Final = 10_000
"""The largest ``multipleOf``, and what several of one number have in common: it needs a state for each remainder."""

_TYPES: Final = ("null", "boolean", "integer", "number", "string", "array", "object")


def check_schema(schema: object) -> None:
    """Raise RequestError, with keyword and place, for a schema that could not be kept to."""
    if schema is False:
        raise RequestError("the schema at # allows no value, got false")
    _check_depth(schema)
    _Walk(schema).schema(schema, "#")


def _check_depth(value: object) -> None:
    layer, depth = [value], 0
    while layer:
        depth += 1
        if depth > MAX_SCHEMA_DEPTH:
            raise RequestError(f"a schema may have {MAX_SCHEMA_DEPTH} levels of JSON, got more")
        layer = [
            inner
            for each in layer
            if isinstance(each, dict | list)
            for inner in (each.values() if isinstance(each, dict) else each)
        ]


class _Walk:
    def __init__(self, root: object) -> None:
        self._root = root

    def schema(self, schema: object, place: str) -> None:
        """One schema and those within."""
        if isinstance(schema, bool):
            return
        if not isinstance(schema, dict):
            raise RequestError(f"the schema at {place} must be an object, true or false, got {shown(schema)}")
        for keyword, value in schema.items():
            if keyword in ANNOTATIONS:
                continue
            if keyword not in _KEYWORDS:
                raise RequestError(f"the keyword {shown(keyword)} at {place} is not supported")
            _KEYWORDS[keyword](self, value, f"{place}/{keyword}")
        self._check_together(schema, place)

    def named(self, given: object, place: str) -> None:
        """Schemas by name."""
        if not isinstance(given, dict):
            raise RequestError(f"{place} must be an object of schemas, got {shown(given)}")
        for name, schema in given.items():
            self.schema(schema, f"{place}/{_escaped(name)}")

    def listed(self, given: object, place: str) -> None:
        """Schemas in a list."""
        if not isinstance(given, list) or not given:
            raise RequestError(f"{place} must be a list of schemas, got {shown(given)}")
        for index, schema in enumerate(given):
            self.schema(schema, f"{place}/{index}")

    def reference(self, given: object, place: str) -> None:
        """A pointer into the same schema."""
        if not isinstance(given, str) or not (given == "#" or given.startswith("#/")):
            raise RequestError(f"{place} must point into the schema itself, such as #/$defs/name, got {shown(given)}")
        at: Any = self._root
        for part in given.split("/")[1:]:
            name = unquote(part).replace("~1", "/").replace("~0", "~")
            if isinstance(at, dict) and name in at:
                at = at[name]
            elif isinstance(at, list) and name.isdecimal() and int(name) < len(at):
                at = at[int(name)]
            else:
                raise RequestError(f"{place} points to nothing: {shown(given)}")

    @staticmethod
    def _check_together(schema: Mapping[str, Any], place: str) -> None:
        least, required = schema.get("minProperties", 0), schema.get("required", ())
        if least > max(1, len(required)):  # the keys of open properties are not held to be different
            raise RequestError(f"minProperties at {place} may be 1 or as many as are required, got {least}")


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")


def _anything(_walk: _Walk, _value: object, _place: str) -> None:
    """Any JSON value."""


def _types(_walk: _Walk, value: object, place: str) -> None:
    for name in value if isinstance(value, list) and value else [value]:
        if name not in _TYPES:
            raise RequestError(f"{place} must be of {', '.join(_TYPES)}, got {shown(name)}")


def _values(_walk: _Walk, value: object, place: str) -> None:
    if not isinstance(value, list) or not value:
        raise RequestError(f"{place} must be a list of values, got {shown(value)}")


def _names(_walk: _Walk, value: object, place: str) -> None:
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise RequestError(f"{place} must be a list of names, got {shown(value)}")


def _count(_walk: _Walk, value: object, place: str) -> None:
    if type(value) is not int or value < 0:
        raise RequestError(f"{place} must be a whole number of at least 0, got {shown(value)}")


def _number(_walk: _Walk, value: object, place: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise RequestError(f"{place} must be a number, got {shown(value)}")


def _divisor(walk: _Walk, value: object, place: str) -> None:
    _number(walk, value, place)
    assert isinstance(value, int | float), "a number"
    if not 0 < value <= LONGEST_PERIOD:
        raise RequestError(f"{place} must be above 0 and at most {LONGEST_PERIOD}, got {shown(value)}")


def _pattern(_walk: _Walk, value: object, place: str) -> None:
    if not isinstance(value, str):
        raise RequestError(f"{place} must be a regular expression, got {shown(value)}")


def _format(_walk: _Walk, value: object, place: str) -> None:
    if value not in FORMATS:
        raise RequestError(f"{place} must be one of {', '.join(FORMATS)}, got {shown(value)}")


_KEYWORDS: Final[Mapping[str, Callable[[_Walk, Any, str], None]]] = {
    "$ref": _Walk.reference,
    "$defs": _Walk.named,
    "definitions": _Walk.named,
    "type": _types,
    "const": _anything,
    "enum": _values,
    "anyOf": _Walk.listed,
    "oneOf": _Walk.listed,
    "allOf": _Walk.listed,
    "properties": _Walk.named,
    "patternProperties": _Walk.named,
    "additionalProperties": _Walk.schema,
    "required": _names,
    "minProperties": _count,
    "maxProperties": _count,
    "items": _Walk.schema,
    "prefixItems": _Walk.listed,
    "minItems": _count,
    "maxItems": _count,
    "minLength": _count,
    "maxLength": _count,
    "pattern": _pattern,
    "format": _format,
    "minimum": _number,
    "maximum": _number,
    "exclusiveMinimum": _number,
    "exclusiveMaximum": _number,
    "multipleOf": _divisor,
}

KEYWORDS: Final = tuple(_KEYWORDS)
"""What is kept to."""
