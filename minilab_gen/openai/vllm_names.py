"""Names under which vLLM takes the form of an answer, beside OpenAI's ``response_format``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from minilab_gen.errors import RequestError
from minilab_gen.request import FORM_FIELDS, shown

_GUIDED: Final = {
    "guided_json": "json",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
}
"""Names of its older releases: those within ``structured_outputs``."""

_OURS: Final = ("json", "json_object", "regex", "choice", "grammar")

VLLM_FORMS: Final = ("structured_outputs", *_GUIDED)


def with_form(body: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a body that ask for something, with the form of the answer under our names. Raises RequestError."""
    given = {name: value for name, value in body.items() if value is not None}  # null asks for the default
    asked = [name for name in (*VLLM_FORMS, *FORM_FIELDS) if name in given]
    if len(asked) > 1:
        raise RequestError(f"body may ask for one form of its answer, got {' and '.join(asked)}")
    structured = given.pop("structured_outputs", None)
    for theirs, name in _GUIDED.items():
        if theirs in given:
            structured = {name: given.pop(theirs)}
    return given if structured is None else given | _form_of(structured)


def _form_of(structured: object) -> dict[str, Any]:
    if not isinstance(structured, Mapping):
        raise RequestError(f"structured_outputs must be an object, got {shown(structured)}")
    wanted = {name: value for name, value in structured.items() if value is not None and value is not False}
    if len(wanted) != 1 or not wanted.keys() <= set(_OURS):
        raise RequestError(f"structured_outputs must have one of {', '.join(_OURS)}, got {shown(list(wanted))}")
    ((name, value),) = wanted.items()
    if name == "json_object":
        return {"response_format": {"type": "json_object"}}
    if name != "json":
        return {name: value}
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise RequestError(f"the schema must be JSON: {error}") from error
    return {"response_format": {"type": "json_schema", "json_schema": {"schema": value}}}
