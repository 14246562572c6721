"""Thirty schemas such as programs ask for: nested objects, enums, formats, arrays with bounds, references, unions."""

from __future__ import annotations

from typing import Any, Final

Schema = dict[str, Any]


def _object(required: str = "", /, **properties: Any) -> Schema:
    """A closed object; without names all properties are required."""
    names = required.split() if required else list(properties)
    return {"type": "object", "properties": properties, "required": names, "additionalProperties": False}


def _array(items: Any, least: int, most: int) -> Schema:
    return {"type": "array", "items": items, "minItems": least, "maxItems": most}


def _text(most: int, least: int = 1) -> Schema:
    return {"type": "string", "minLength": least, "maxLength": most}


def _whole(least: int, most: int) -> Schema:
    return {"type": "integer", "minimum": least, "maximum": most}


def _number(least: float, most: float) -> Schema:
    return {"type": "number", "minimum": least, "maximum": most}


def _format(name: str) -> Schema:
    return {"type": "string", "format": name}


def _one_of(*values: Any) -> Schema:
    return {"enum": list(values)}


_BOOL: Final = {"type": "boolean"}
_MAYBE: Final = {"type": ["string", "null"], "maxLength": 20}

SCHEMAS: Final[dict[str, Schema]] = {
    "person": _object(name=_text(30), age=_whole(0, 120)),
    "contact": _object("name email", name=_text(30), email=_format("email"), phone=_MAYBE),
    "address": _object(street=_text(40), city=_text(20), zip={"type": "string", "pattern": "^[0-9]{5}$"}),
    "event": _object(title=_text(40), date=_format("date"), start=_format("time"), online=_BOOL),
    "log line": _object(time=_format("date-time"), level=_one_of("debug", "info", "error"), message=_text(60)),
    "sentiment": _object(label=_one_of("positive", "negative", "neutral"), score=_number(0, 1)),
    "yes or no": _object(answer=_one_of("yes", "no"), reason=_text(60)),
    "tags": _array(_text(12), 1, 4),
    "matrix": _array(_array(_whole(-9, 9), 3, 3), 3, 3),
    "pair": {"type": "array", "prefixItems": [_text(10), _whole(0, 9)], "items": False, "minItems": 2},
    "product": _object(
        sku={"type": "string", "pattern": "^[A-Z]{3}-[0-9]{4}$"}, price=_number(0.01, 999.99), stock=_BOOL
    ),
    "order": _object(
        id=_format("uuid"), lines=_array(_object(item=_text(15), count=_whole(1, 20)), 1, 3), total=_number(0, 10000)
    ),
    "user": _object("id", id=_whole(1, 10**6), roles=_array(_one_of("admin", "editor", "reader"), 0, 3), note=_MAYBE),
    "server": _object(host=_format("hostname"), ip=_format("ipv4"), port=_whole(1, 65535)),
    "link": _object(url=_format("uri"), title=_text(30)),
    "function call": _object(
        name=_one_of("get_weather", "get_time"), arguments=_object("city", city=_text(20), unit=_one_of("C", "F"))
    ),
    "either": {"anyOf": [_object(error=_text(40)), _object(result=_whole(0, 100))]},
    "tagged": {
        "oneOf": [
            _object(kind={"const": "circle"}, radius=_number(0, 50)),
            _object(kind={"const": "square"}, side=_number(0, 50)),
        ]
    },
    "tree": {
        "$ref": "#/$defs/node",
        "$defs": {"node": _object("value", value=_whole(0, 9), children=_array({"$ref": "#/$defs/node"}, 0, 2))},
    },
    "shared": {
        **_object(home={"$ref": "#/$defs/place"}, work={"$ref": "#/$defs/place"}),
        "$defs": {"place": _object(city=_text(15), country=_one_of("FR", "GB", "DE"))},
    },
    "map": {"type": "object", "additionalProperties": _whole(0, 9), "minProperties": 1, "maxProperties": 3},
    "settings": {
        "type": "object",
        "patternProperties": {"^x-": _BOOL},
        "additionalProperties": False,
        "maxProperties": 2,
    },
    "all of": {
        "allOf": [
            {"type": "object", "properties": {"a": _whole(0, 50)}, "required": ["a"]},
            {"type": "object", "properties": {"b": _BOOL}, "required": ["b"], "additionalProperties": _whole(0, 99)},
        ],
        "maxProperties": 2,
    },
    "multiples": _object(
        dozen={"type": "integer", "multipleOf": 12, "minimum": 0, "maximum": 144}, half={"const": 0.5}
    ),
    "open range": _object(p={"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}, n=_whole(-20, -3)),
    "translation": _object(fr=_text(50), de=_text(50), confidence=_one_of(1, 2, 3)),
    "quiz": _object(question=_text(60), options=_array(_text(15), 4, 4), answer=_whole(0, 3)),
    "recipe": _object(title=_text(30), minutes=_whole(1, 240), steps=_array(_text(40), 1, 4), vegan=_BOOL),
    "summary": _object(title=_text(40), points=_array(_text(50), 2, 3), language=_one_of("en", "fr")),
    "deep": _object(a=_object(b=_object(c=_object(d=_array(_object(e=_one_of(None, True, "x")), 1, 2))))),
}
