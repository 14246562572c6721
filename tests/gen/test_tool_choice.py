"""What tool_choice asks for: which answers are read for calls, and the forms that make an answer a call."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from support.batch_files import asked_model
from support.call_templates import LLAMA, QWEN, TEMPLATES
from support.formed_texts import FormedTexts

from minilab_gen.answer_form import AnswerForm
from minilab_gen.asked_model import AskedModel
from minilab_gen.errors import RequestError
from minilab_gen.openai.bodies import CHAT_COMPLETIONS, Asked, read_body
from minilab_gen.text.call_json import ToolCall
from minilab_gen.text.call_parser import CallParser
from minilab_gen.text.chat import ChatFormat
from minilab_gen.text.tokenizer import get_tokenizer

POINT = {
    "type": "object",
    "properties": {"near": {"$ref": "#/$defs/near"}, "name": {"const": {"$ref": "#/a"}}, "inner": {"$ref": "#"}},
    "required": ["near"],
    "additionalProperties": False,
    "$defs": {"near": {"enum": ["Suez", "Aden"]}},
}


def tool(name: str, parameters: Any = None, **more: Any) -> dict[str, Any]:
    given = {} if parameters is None else {"parameters": parameters}
    return {"type": "function", "function": {"name": name, **given, **more}}


TOOLS = [tool("weather", POINT), tool("time")]
BODY: dict[str, Any] = {"model": "base", "messages": [{"role": "user", "content": "Suez?"}], "tools": TOOLS}
NAMED = {"type": "function", "function": {"name": "weather"}}


@pytest.fixture(scope="module")
def texts() -> FormedTexts:
    return FormedTexts(get_tokenizer())


def chatting(template: str = QWEN) -> AskedModel:
    base = asked_model()
    return AskedModel(replace(base.card, chat=ChatFormat(template, {"bos_token": "", "eos_token": ""})), base.tokenizer)


def asked(template: str = QWEN, **fields: Any) -> Asked:
    return read_body(CHAT_COMPLETIONS, {**BODY, **fields}, chatting(template))


def prompt_of(given: Asked) -> str:
    prompt: Any = given.payload["prompt"]
    return get_tokenizer().decode(prompt)


def form_of(given: Asked) -> AnswerForm:
    form = AnswerForm.of(given.payload)
    assert form is not None
    return form


@pytest.mark.parametrize("fields", [{}, {"tool_choice": "auto"}, {"tool_choice": None, "parallel_tool_calls": True}])
def test_calls_are_read_where_the_model_may_choose(fields: dict[str, Any]) -> None:
    given = asked(**fields)

    assert given.calls is not None
    assert (given.calls.known.name, given.calls.names, given.calls.forced) == ("hermes", ("weather", "time"), None)
    assert not given.calls.is_single
    assert AnswerForm.of(given.payload) is None


@pytest.mark.parametrize(
    "fields",
    [{"tool_choice": "none"}, {"tools": None}, {"tools": [], "tool_choice": "auto"}, {"template": "{{ messages }}"}],
    ids=str,
)
def test_calls_stay_text_without_tools_or_choice_or_a_known_format(fields: dict[str, Any]) -> None:
    assert asked(**fields).calls is None


def test_the_prompt_holds_the_tools_with_none_as_with_auto() -> None:
    assert prompt_of(asked(tool_choice="none")) == prompt_of(asked()) != prompt_of(asked(tools=None))


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("choice", ["required", NAMED], ids=["required", "named"])
def test_prompt_and_form_together_make_a_call_in_the_models_own_format(
    texts: FormedTexts, name: str, choice: Any
) -> None:
    plain, given = prompt_of(asked(TEMPLATES[name])), asked(TEMPLATES[name], tool_choice=choice)
    assert given.calls is not None
    known, names, forced = given.calls.known, given.calls.names, given.calls.forced
    arguments = '{"near":"Suez","inner":{"near":"Aden"}}'
    answer = f'{{"name":"weather","{known.arguments}":{arguments}}}' if choice == "required" else arguments
    form, begun = form_of(given), prompt_of(given).removeprefix(plain)

    assert texts.has(form, answer)
    assert not texts.has(form, answer.replace("Aden", "Paris"))
    assert not texts.has(form, "{}")
    expected = ToolCall("weather", arguments)
    assert CallParser(known, names, forced).push(answer) == [expected]
    closed = (
        begun + answer + ("}" if choice is NAMED else "") + ("]" if "[" in begun.replace("[TOOL_CALLS]", "") else "")
    )
    assert CallParser(known, names).push(closed) == [expected]


def test_of_several_functions_each_has_its_own_arguments(texts: FormedTexts) -> None:
    form = form_of(asked(tool_choice="required"))

    assert texts.has(form, '{"name":"time","arguments":{}}')
    assert not texts.has(form, '{"name":"time","arguments":{"near":"Suez"}}')
    assert not texts.has(form, '{"name":"nobody","arguments":{}}')


def test_one_function_is_named_in_the_prompt_whether_it_is_required_or_named() -> None:
    required, named = (asked(tool_choice=choice, tools=TOOLS[:1]) for choice in ("required", NAMED))

    assert prompt_of(required) == prompt_of(named)
    assert prompt_of(named).endswith('assistant\n<tool_call>\n{"name": "weather", "arguments":')
    assert form_of(required) == form_of(named)


def test_llama_calls_with_parameters() -> None:
    assert prompt_of(asked(LLAMA, tool_choice=NAMED)).endswith('\n\n{"name": "weather", "parameters":')


@pytest.mark.parametrize("parameters", [None, {}, {"type": "object"}, {"properties": {"x": {}}}], ids=str)
def test_arguments_are_an_object_whatever_the_schema_says(texts: FormedTexts, parameters: Any) -> None:
    form = form_of(asked(tools=[tool("f", parameters)], tool_choice="required"))

    assert texts.has(form, "{}")
    assert texts.has(form, '{"x":5}') == (parameters is not None)
    assert not texts.has(form, "[]")


def test_a_model_can_do_no_more_than_one_call_where_it_must_call_or_may_not_call_twice() -> None:
    singles: list[dict[str, Any]] = [
        {"tool_choice": "required"},
        {"tool_choice": NAMED},
        {"parallel_tool_calls": False},
    ]
    for fields in singles:
        calls = asked(**fields).calls
        assert calls is not None
        assert calls.is_single


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"tool_choice": "any"}, "tool_choice must be auto, none, required or .*, got 'any'"),
        ({"tool_choice": {"type": "function"}}, "tool_choice must be auto"),
        ({"tool_choice": {"type": "allowed_tools"}}, "tool_choice must be auto"),
        ({"tool_choice": ["auto"]}, "tool_choice must be auto"),
        ({"tool_choice": "required", "tools": None}, "tool_choice must be auto or none without tools"),
        ({"tool_choice": {"type": "function", "function": {"name": "x"}}}, "must name a function of tools, got 'x'"),
        ({"tool_choice": "required", "template": "{{ messages }}"}, "chat template shows no way to call"),
        ({"tool_choice": "required", "regex": "a"}, "tool_choice must be auto or none beside regex"),
        ({"tool_choice": "required", "guided_json": {}}, "must be auto or none beside response_format"),
        ({"tool_choice": "required", "tools": [{"name": "f"}]}, r"tools\[0\] must have a function with a name"),
        ({"tool_choice": "required", "tools": [tool("f", [])]}, r"tools\[0\].function.parameters must be a schema"),
        ({"tool_choice": "required", "tools": [tool("f", {"type": "array"})]}, "must be of type object, got 'array'"),
        ({"tool_choice": "required", "tools": [tool("f", {"not": {}})]}, r"tools\[0\].*: the keyword 'not' at #"),
        ({"parallel_tool_calls": "no"}, "parallel_tool_calls must be true or false, got 'no'"),
        ({"tools": [tool("f", strict="yes")]}, r"tools\[0\].function.strict must be true or false, got 'yes'"),
    ],
    ids=range(15),
)
def test_what_cannot_be_kept_is_refused_with_the_rule(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        asked(**fields)


def test_a_choice_makes_another_line_of_a_batch_file_and_auto_does_not() -> None:
    written = [asked(tool_choice=choice).written for choice in (None, "auto", "none", "required", NAMED)]

    assert written[0] == written[1]
    assert len({json.dumps(each) for each in written}) == 4
