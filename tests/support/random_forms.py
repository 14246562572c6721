"""Forms of answers drawn at random, and whether a text has one. It must not hold any test."""

from __future__ import annotations

import json
import random
import re
from typing import Any, Final

import jsonschema

from minilab_gen.answer_form import AnswerForm

_WORDS = ("oui", "non", "peut-être", "Fogg", "é😀", 'a "b"', "\n", "x/y", "<|im_end|>")
_CHECKER: Final = jsonschema.Draft202012Validator.FORMAT_CHECKER
"""Of this draft: the one for all drafts takes ``time`` for that of the third, without a time zone."""

_FORMATS = ("date", "date-time", "time", "email", "ipv4", "uuid", "hostname")


def random_form(rng: random.Random) -> AnswerForm:
    match rng.randrange(5):
        case 0:
            return form_of(choice=[rng.choice(_WORDS) for _ in range(rng.randint(1, 5))])
        case 1:
            return form_of(regex=_random_regex(rng, 3))
        case 2:
            return form_of(grammar=f'start: item ("," item){{0,{rng.randint(1, 4)}}}\nitem: /{_random_regex(rng, 1)}/')
    return schema_form(random_schema(rng, 3))


def form_of(**given: Any) -> AnswerForm:
    form = AnswerForm.of(given)
    assert form is not None
    return form


def schema_form(schema: object) -> AnswerForm:
    return form_of(response_format={"type": "json_schema", "json_schema": {"schema": schema}})


def has_form(text: str, form: AnswerForm) -> bool:
    """Whether a whole answer is what was asked for, by judges that have nothing to do with how it was made."""
    match form.kind:
        case "choice":
            return text in json.loads(form.text)
        case "regex":
            return re.fullmatch(form.text, text) is not None
        case "json_schema":
            return is_valid(text, json.loads(form.text))
        case "json_object":
            return isinstance(json.loads(text), dict)
    return bool(text)


def is_valid(text: str, schema: object) -> bool:
    """Whether a text is JSON of a schema."""
    validator = jsonschema.Draft202012Validator(schema, format_checker=_CHECKER)
    return bool(validator.is_valid(json.loads(text)))


def random_schema(rng: random.Random, depth: int) -> dict[str, Any]:
    makers = [_integer, _number, _string, _enum, _constant]
    return rng.choice([*makers, _object, _array, _any_of] if depth else makers)(rng, depth - 1)


def _integer(rng: random.Random, _: int) -> dict[str, Any]:
    low = rng.randint(-50, 50)
    return {"type": "integer", "minimum": low, "maximum": low + rng.randint(0, 500)}


def _number(rng: random.Random, _: int) -> dict[str, Any]:
    return {"type": "number", "exclusiveMinimum": 0, "maximum": rng.choice([1, 2.5, 1000])}


def _string(rng: random.Random, _: int) -> dict[str, Any]:
    if rng.random() < 1 / 3:
        return {"type": "string", "format": rng.choice(_FORMATS)}
    if rng.random() < 1 / 2:
        return {"type": "string", "pattern": rng.choice(["^[a-z]{2,5}$", "^(ab|c)+$", "^[A-Z][a-z]*$"]), "maxLength": 9}
    low = rng.randint(0, 4)
    return {"type": "string", "minLength": low, "maxLength": low + rng.randint(0, 9)}


def _enum(rng: random.Random, _: int) -> dict[str, Any]:
    return {"enum": rng.sample([*_WORDS, None, True, 3, -1.5, [1, "a"], {"k": 2}], rng.randint(1, 5))}


def _constant(rng: random.Random, _: int) -> dict[str, Any]:
    return {"const": rng.choice([*_WORDS, None, False, 7])}


def _object(rng: random.Random, depth: int) -> dict[str, Any]:
    names = rng.sample(["a", "b", "nom", "é", 'q"q', "x y"], rng.randint(1, 4))
    required = [name for name in names if rng.random() < 2 / 3]
    properties = {name: random_schema(rng, depth) for name in names}
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _array(rng: random.Random, depth: int) -> dict[str, Any]:
    low = rng.randint(0, 2)
    return {
        "type": "array",
        "items": random_schema(rng, depth),
        "minItems": low,
        "maxItems": low + rng.randint(0, 3),
    }


def _any_of(rng: random.Random, depth: int) -> dict[str, Any]:
    return {"anyOf": [random_schema(rng, depth) for _ in range(rng.randint(1, 3))]}


def _random_regex(rng: random.Random, depth: int) -> str:
    atoms = ["a", "é", "[a-z]", "[^a-z\\s]", "\\d", "xy", "\\.", "\\/"]
    if not depth:
        return rng.choice(atoms)
    parts = [_random_regex(rng, depth - 1) for _ in range(rng.randint(1, 3))]
    match rng.randrange(3):
        case 0:
            return "".join(parts)
        case 1:
            return f"(?:{'|'.join(parts)})"
    low = rng.randint(0, 2)
    return f"(?:{parts[0]}){{{low},{low + rng.randint(1, 4)}}}"
