"""The form that an answer must have: JSON, a regular expression, one of some texts, or a grammar.

Its shape and its bounds are checked here, wherever a request enters. Whether it can be compiled only a worker knows. It
must know neither torch nor Redis.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from minilab_gen import field_checks as checks
from minilab_gen.errors import RequestError
from minilab_gen.field_checks import shown
from minilab_gen.schema_rules import check_schema

FormKind = Literal["json_object", "json_schema", "regex", "choice", "grammar"]

FORM_FIELDS: Final = ("response_format", "regex", "choice", "grammar")
"""The fields of a request that ask for a form, of which it has one at most."""

MAX_SCHEMA_CHARACTERS: Final = 262_144
"""Of a schema as JSON: a request is read wherever a job is looked at, and this takes some 20 ms."""

MAX_REGEX_CHARACTERS: Final = 10_000
MAX_GRAMMAR_CHARACTERS: Final = 65_536
MAX_CHOICES: Final = 1024
MAX_CHOICE_CHARACTERS: Final = 4096
"""Of one of them."""

MAX_BRACKETS: Final = 64
"""Brackets in brackets of a regular expression or a grammar: a parser needs some of its stack for each."""

_RESPONSE_TYPES: Final = ("text", "json_object", "json_schema")
_NAMED_SCHEMA: Final = ("name", "description", "schema", "strict")
"""What OpenAI's API has around a schema. Only the schema changes an answer: here every one is kept strictly."""


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """What kind of form, and its text: a schema or a list of choices as JSON, else as it was given."""

    kind: FormKind
    text: str

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> AnswerForm | None:
        """The form that fields of a request ask for; None where they ask for none. Raises RequestError."""
        asked = [name for name in FORM_FIELDS if given.get(name) is not None]
        if len(asked) > 1:
            raise RequestError(f"a request may have one of {', '.join(FORM_FIELDS)}, got {' and '.join(asked)}")
        return _READERS[asked[0]](given[asked[0]]) if asked else None

    def to_payload(self) -> dict[str, Any]:
        """The form as a field of a request's payload."""
        match self.kind:
            case "json_object":
                return {"response_format": {"type": "json_object"}}
            case "json_schema":
                schema = json.loads(self.text)
                return {"response_format": {"type": "json_schema", "json_schema": {"schema": schema}}}
            case "choice":
                return {"choice": json.loads(self.text)}
        return {self.kind: self.text}


def _response_format(given: object) -> AnswerForm | None:
    if isinstance(given, type) and callable(model_schema := getattr(given, "model_json_schema", None)):
        given = {"type": "json_schema", "json_schema": {"schema": model_schema()}}  # a class of pydantic's
    if not isinstance(given, Mapping):
        raise RequestError(f"response_format must be an object with a type, got {shown(given)}")
    kind = given.get("type")
    if kind not in _RESPONSE_TYPES:
        raise RequestError(f"response_format must have a type of {', '.join(_RESPONSE_TYPES)}, got {shown(kind)}")
    has = ("type", "json_schema") if kind == "json_schema" else ("type",)
    if unknown := [name for name in given if name not in has]:
        raise RequestError(f"response_format of type {kind} has no field {shown(unknown[0])}")
    if kind == "text":
        return None
    return AnswerForm("json_object", "") if kind == "json_object" else _named_schema(given.get("json_schema"))


def _named_schema(given: object) -> AnswerForm:
    if not isinstance(given, Mapping) or "schema" not in given:
        raise RequestError(f"json_schema must be an object with a schema, got {shown(given)}")
    if unknown := [name for name in given if name not in _NAMED_SCHEMA]:
        fields = ", ".join(_NAMED_SCHEMA)
        raise RequestError(f"json_schema may have the fields {fields}, got {shown(unknown[0])}")
    if not isinstance(given.get("strict"), bool | None):
        raise RequestError(f"strict must be true or false, got {shown(given['strict'])}")
    return AnswerForm("json_schema", _schema_text(given["schema"]))


def _schema_text(schema: object) -> str:
    """A schema as JSON, with its fields in their order, which is that of the answer."""
    try:
        text = json.dumps(schema, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise RequestError(f"a schema must be JSON: {error}") from error
    if len(text) > MAX_SCHEMA_CHARACTERS:
        raise RequestError(f"a schema must be at most {MAX_SCHEMA_CHARACTERS} characters of JSON, got {len(text)}")
    if not checks.is_whole(text):
        raise RequestError("a schema must hold whole characters, got half of one")
    check_schema(json.loads(text))
    return text


def _regex(given: object) -> AnswerForm:
    return AnswerForm("regex", _bracketed("regex", given, MAX_REGEX_CHARACTERS))


def _grammar(given: object) -> AnswerForm:
    return AnswerForm("grammar", _bracketed("grammar", given, MAX_GRAMMAR_CHARACTERS))


def _bracketed(name: str, given: object, at_most: int) -> str:
    text = _text(name, given, at_most)
    depth = deepest = 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        deepest = max(deepest, depth)
    if deepest > MAX_BRACKETS:
        raise RequestError(f"{name} may have {MAX_BRACKETS} brackets in brackets, got {deepest}")
    return text


def _choice(given: object) -> AnswerForm:
    texts = [
        _text("choice", text, MAX_CHOICE_CHARACTERS)
        for text in checks.elements("choice", given, at_most=MAX_CHOICES, what="texts")
    ]
    if not texts:
        raise RequestError("choice must hold at least 1 text, got none")
    return AnswerForm("choice", json.dumps(list(dict.fromkeys(texts)), ensure_ascii=False))


def _text(name: str, given: object, at_most: int) -> str:
    if not isinstance(given, str) or not 1 <= len(given) <= at_most or not checks.is_whole(given):
        came = shown(given) if not isinstance(given, str) or len(given) <= at_most else f"{len(given)} characters"
        raise RequestError(f"{name} must be text of 1 to {at_most} whole characters, got {came}")
    return given


_READERS: Final[Mapping[str, Callable[[object], AnswerForm | None]]] = {
    "response_format": _response_format,
    "regex": _regex,
    "choice": _choice,
    "grammar": _grammar,
}
