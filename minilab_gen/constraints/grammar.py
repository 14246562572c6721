"""A form as a grammar in llguidance's Lark.

Forced tokens are switched off: a text that only one way is left for may then be spelled in any tokens, so that what is
allowed depends on the bytes so far and on nothing else.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

from minilab_gen.answer_form import AnswerForm
from minilab_gen.errors import RequestError
from minilab_gen.field_checks import shown

_HEAD: Final = '%llguidance {"no_forcing": true}\n'

_COMPACT: Final = {"whitespace_flexible": False, "coerce_one_of": False, "lenient": False}
"""JSON without white space between its parts, and every keyword kept to."""

_LITERAL: Final = re.compile(r'"(?:\\.|[^"\\])*"|/(?:\\.|[^/\\])+/|//[^\n]*', re.DOTALL)
_REFUSED: Final = {
    re.compile(r"%\s*(json|llguidance|lark|regex)\b"): "embeds nothing",
    re.compile(r"\btemperature\s*="): "sets no temperature",
    re.compile(r"<"): "names no special tokens",
}


def lark_of(form: AnswerForm) -> str:
    """The grammar of a form, which is still to be compiled. Raises RequestError for what a grammar may not say."""
    match form.kind:
        case "json_object":
            return _HEAD + _json({"type": "object"})
        case "json_schema":
            return _HEAD + _json(json.loads(form.text))
        case "regex":
            return f"{_HEAD}start: /(?:{_as_lark(form.text)})/"
        case "choice":
            return f"{_HEAD}start: {' | '.join(map(_quoted, json.loads(form.text)))}"
        case "grammar":
            bare = _LITERAL.sub(" ", form.text)
            for pattern, rule in _REFUSED.items():
                if found := pattern.search(bare):
                    raise RequestError(f"a grammar {rule}, got {shown(found[0])}")
            return _HEAD + form.text


def _json(schema: Any) -> str:
    given = {} if schema is True else _without_annotations(schema)
    return f"start: %json {json.dumps({**given, 'x-guidance': _COMPACT}, ensure_ascii=False)}"


def _without_annotations(schema: Any) -> Any:
    """A schema, and those within, without keywords that allow everything and that llguidance does not know."""
    if not isinstance(schema, dict):
        return schema
    return {name: _inner(name, value) for name, value in schema.items() if name not in _UNKNOWN_ANNOTATIONS}


def _inner(keyword: str, value: Any) -> Any:
    if keyword in ("properties", "patternProperties", "$defs", "definitions"):
        return {name: _without_annotations(schema) for name, schema in value.items()}
    if keyword in ("anyOf", "oneOf", "allOf", "prefixItems"):
        return [_without_annotations(schema) for schema in value]
    return _without_annotations(value) if keyword in ("items", "additionalProperties") else value


_UNKNOWN_ANNOTATIONS: Final = ("deprecated", "discriminator")


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _as_lark(regex: str) -> str:
    """A regular expression between slashes: a slash and a line break that are not escaped yet are escaped."""
    return re.sub(r"(\\.)|/|\n|\r", lambda found: found[1] or _ESCAPED[found[0]], regex, flags=re.DOTALL)


_ESCAPED: Final = {"/": "\\/", "\n": "\\n", "\r": "\\r"}
