"""What a request may say about the form of its answer, before any worker sees it."""

from __future__ import annotations

import json
from typing import Any, ClassVar

import pytest
from support.random_forms import form_of, schema_form

from minilab_gen.answer_form import AnswerForm
from minilab_gen.errors import RequestError
from minilab_gen.request import GenerationRequest
from minilab_gen.schema_rules import check_schema


@pytest.mark.parametrize(
    "given",
    [
        {"response_format": {"type": "json_object"}},
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "null"}}}},
        {"regex": "[a-z]+"},
        {"choice": ["oui", "non"]},
        {"grammar": 'start: "a"'},
    ],
)
def test_a_form_is_a_field_of_the_payload_and_comes_back_from_it(given: dict[str, Any]) -> None:
    payload = {"prompt": [5], **given}
    request = GenerationRequest.from_payload(payload)
    written = json.loads(json.dumps(request.to_payload()))
    assert {name: written[name] for name in given} == given
    assert GenerationRequest.from_payload(written) == request
    assert hash(request) == hash(GenerationRequest.from_payload(written))


def test_a_request_without_a_form_writes_none() -> None:
    fields = {"response_format", "regex", "choice", "grammar"}
    assert not fields & GenerationRequest((5,)).to_payload().keys()
    for nothing in ({"response_format": {"type": "text"}}, dict.fromkeys(fields)):
        assert GenerationRequest.from_payload({"prompt": [5], **nothing}) == GenerationRequest((5,))


def test_the_order_of_properties_is_kept() -> None:
    schema = {"properties": {"b": True, "a": True}}
    payload = GenerationRequest((5,), form=schema_form(schema)).to_payload()
    kept = payload["response_format"]["json_schema"]["schema"]
    assert list(kept["properties"]) == ["b", "a"]


def test_a_class_with_a_schema_of_its_own_is_a_form() -> None:
    class Person:
        schema: ClassVar = {"type": "object", "properties": {"name": {"type": "string"}}}

        @classmethod
        def model_json_schema(cls) -> dict[str, Any]:
            return cls.schema

    assert form_of(response_format=Person) == schema_form(Person.schema)


@pytest.mark.parametrize(
    ("given", "rule"),
    [
        ({"regex": "a", "choice": ["b"]}, "one of response_format, regex, choice, grammar, got regex and choice"),
        ({"response_format": "json"}, "must be an object with a type"),
        ({"response_format": {"type": "xml"}}, "must have a type of text, json_object, json_schema, got 'xml'"),
        ({"response_format": {"type": "json_object", "schema": {}}}, "type json_object has no field 'schema'"),
        ({"response_format": {"type": "json_schema"}}, "json_schema must be an object with a schema, got None"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {}, "x": 1}}}, "got 'x'"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {}, "strict": 1}}}, "strict must be"),
        ({"regex": ""}, "regex must be text of 1 to 10000 whole characters"),
        ({"regex": "a" * 10_001}, "got 10001 characters"),
        ({"regex": "(" * 65 + ")" * 65}, "64 brackets in brackets, got 65"),
        ({"regex": 5}, "regex must be text"),
        ({"choice": []}, "choice must hold at least 1 text"),
        ({"choice": "oui"}, "choice must be a list of texts, got str"),
        ({"choice": ["a", ""]}, "choice must be text of 1 to 4096"),
        ({"choice": ["x"] * 1025}, "at most 1024 texts"),
        ({"choice": ["\ud800"]}, "whole characters"),
        ({"grammar": "x" * 70_000}, "grammar must be text of 1 to 65536"),
    ],
)
def test_what_is_no_form_is_refused_with_the_rule(given: dict[str, Any], rule: str) -> None:
    with pytest.raises(RequestError) as refused:
        AnswerForm.of(given)
    assert rule in str(refused.value)


def deep(depth: int) -> dict[str, Any]:
    return {"type": "array", "items": deep(depth - 1)} if depth else {}


@pytest.mark.parametrize(
    ("schema", "rule"),
    [
        (False, "the schema at # allows no value"),
        (5, "the schema at # must be an object, true or false, got 5"),
        ({"x-guidance": {"lenient": True}}, "the keyword 'x-guidance' at # is not supported"),
        ({"properties": {"a/b": {"uniqueItems": True}}}, "the keyword 'uniqueItems' at #/properties/a~1b"),
        ({"items": {"contains": {}}}, "the keyword 'contains' at #/items"),
        ({"allOf": [{}, {"if": {}, "then": {}}]}, "the keyword 'if' at #/allOf/1"),
        ({"not": {}}, "the keyword 'not' at #"),
        ({"dependentRequired": {}}, "the keyword 'dependentRequired'"),
        ({"$defs": {"t": {"propertyNames": {}}}}, "the keyword 'propertyNames' at #/$defs/t"),
        ({"unevaluatedProperties": False}, "the keyword 'unevaluatedProperties'"),
        ({"nullable": True}, "the keyword 'nullable'"),
        ({"$ref": "https://example.com/schema.json"}, "#/$ref must point into the schema itself"),
        ({"$ref": "#/$defs/none"}, "#/$ref points to nothing: '#/$defs/none'"),
        ({"$ref": "#name"}, "must point into the schema itself"),
        ({"format": "regex"}, "#/format must be one of date, date-time"),
        ({"type": "decimal"}, "#/type must be of null, boolean"),
        ({"enum": []}, "#/enum must be a list of values"),
        ({"items": [{}]}, "the schema at #/items must be an object"),
        ({"exclusiveMinimum": True}, "#/exclusiveMinimum must be a number, got True"),
        ({"minLength": -1}, "#/minLength must be a whole number of at least 0"),
        ({"multipleOf": 0}, "#/multipleOf must be above 0"),
        ({"minProperties": 3}, "minProperties at # may be 1 or as many as are required, got 3"),
        ({"required": "a"}, "#/required must be a list of names"),
        (deep(100), "100 levels of JSON"),
    ],
)
def test_what_of_a_schema_cannot_be_kept_to_is_refused_by_keyword_and_place(schema: Any, rule: str) -> None:
    with pytest.raises(RequestError) as refused:
        check_schema(schema)
    assert rule in str(refused.value)


def test_keywords_in_values_and_names_of_properties_are_no_keywords() -> None:
    check_schema({"enum": [{"uniqueItems": True}], "properties": {"not": {"const": {"if": 1}}}, "default": {"x": 1}})
