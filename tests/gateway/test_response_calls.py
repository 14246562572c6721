"""Calls of functions in responses: items of the output, and of the input of the next response.

A random model writes no call by itself: where a test needs a certain answer, the form of the answer leaves no other.
"""

from __future__ import annotations

import json
from typing import Any, Literal

import openai
import pytest
from minilab_worker.serving import ServedModel
from openai.types.responses import Response, ResponseFunctionToolCall
from pydantic import BaseModel

from gateway.gateway_process import Gateway
from gateway.test_responses import extras_in
from minilab_gen.openai.response_items import CallItem, Item, MessageItem, ResultItem, item_of_json, messages_of
from minilab_gen.text.chat import Conversation

TEMPERATURE: dict[str, Any] = {
    "type": "function",
    "name": "weather",
    "description": "How warm it is.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"enum": ["Suez", "Aden"]}, "days": {"enum": [1, 2]}},
        "required": ["city", "days"],
        "additionalProperties": False,
    },
    "strict": True,
}
TOOLS: list[Any] = [TEMPERATURE, {"type": "function", "name": "time", "parameters": None, "strict": None}]
SUEZ = '{"city": "Suez", "days": 2}'
ADEN = SUEZ.replace("Suez", "Aden")
CALLED = f'<tool_call>\n{{"name": "weather", "arguments": {SUEZ}}}\n</tool_call>'
TWICE = f"Je vois <é.\n{CALLED}\n{CALLED.replace('Suez', 'Aden')}"
BETWEEN = f"Un\n{CALLED}\ndeux\n{CALLED}"
ANSWERS = [TWICE, CALLED, BETWEEN, "Non, <tool", "<tool_call>\n{}</tool_call> et"]


class Weather(BaseModel):
    """How warm it is."""

    city: Literal["Suez", "Aden"]
    days: Literal[1, 2]


def body_of(answer: str | None = None, **more: Any) -> dict[str, Any]:
    body = {"model": "base", "input": "How warm is Suez?", "tools": TOOLS, "temperature": 0, "max_output_tokens": 200}
    return {**body, "seed": 1, **({} if answer is None else {"choice": [answer]}), **more}


def ask(gateway: Gateway, answer: str | None = None, **more: Any) -> Response:
    """A response whose answer is this text."""
    body = body_of(answer, **more)
    extras = {name: body.pop(name) for name in ("seed", "choice") if name in body}
    create: Any = gateway.client().responses.create
    found = create(**body, extra_body=extras)
    assert isinstance(found, Response)
    assert extras_in(found) <= {"store", "seed"}
    return found


def kinds(answer: Response) -> list[str]:
    return [item.type for item in answer.output]


def calls_in(answer: Response) -> list[tuple[str, str]]:
    return [(item.name, item.arguments) for item in answer.output if isinstance(item, ResponseFunctionToolCall)]


def tokens_of(answer: Response) -> int:
    assert answer.usage is not None
    return answer.usage.output_tokens


def test_calls_are_items_behind_the_message(tools_gateway: Gateway) -> None:
    answer = ask(tools_gateway, TWICE)

    assert kinds(answer) == ["message", "function_call", "function_call"]
    assert answer.output_text == "Je vois <é."
    assert calls_in(answer) == [("weather", SUEZ), ("weather", ADEN)]
    assert answer.status == "completed"
    assert [item.status for item in answer.output] == ["completed"] * 3  # type: ignore[union-attr]
    assert len({item.id for item in answer.output}) == 3


def test_an_answer_that_is_a_call_has_no_message_and_is_the_same_later(tools_gateway: Gateway) -> None:
    answer = ask(tools_gateway, CALLED)

    assert (kinds(answer), answer.output_text) == (["function_call"], "")
    assert tools_gateway.client().responses.retrieve(answer.id).to_dict() == answer.to_dict()
    assert answer.tools[0].to_dict() == TEMPERATURE
    assert (answer.tool_choice, answer.parallel_tool_calls) == ("auto", True)


def test_text_behind_a_call_is_a_message_of_its_own(tools_gateway: Gateway) -> None:
    answer = ask(tools_gateway, BETWEEN)

    assert kinds(answer) == ["message", "function_call", "message", "function_call"]
    assert answer.output_text == "Un\ndeux"
    assert len({item.id for item in answer.output}) == 4


@pytest.mark.parametrize("more", [{"tools": []}, {"tool_choice": "none"}, {"tools": TOOLS[1:]}], ids=str)
def test_a_call_stays_text_without_tools_with_none_and_of_a_function_that_is_unknown(
    tools_gateway: Gateway, more: dict[str, Any]
) -> None:
    answer = ask(tools_gateway, CALLED, **more)

    assert (kinds(answer), answer.output_text) == (["message"], CALLED)
    assert answer.tool_choice == more.get("tool_choice", "auto")


def test_of_several_calls_the_first_is_given_where_no_more_are_wanted(tools_gateway: Gateway) -> None:
    answer = ask(tools_gateway, TWICE, parallel_tool_calls=False)

    assert (calls_in(answer), answer.parallel_tool_calls) == ([("weather", SUEZ)], False)


def test_an_answer_that_is_cut_off_within_a_call_keeps_it_as_text(tools_gateway: Gateway) -> None:
    answer = ask(tools_gateway, CALLED, max_output_tokens=20)

    assert (answer.status, kinds(answer)) == ("incomplete", ["message"])
    assert CALLED.startswith(answer.output_text or "no")


def test_an_answer_that_is_cut_off_behind_a_call_has_that_call(tools_gateway: Gateway) -> None:
    whole = ask(tools_gateway, TWICE)

    answer = ask(tools_gateway, TWICE, max_output_tokens=tokens_of(whole) - 30)

    assert answer.status == "incomplete"
    assert calls_in(answer) == [("weather", SUEZ)]
    assert answer.output[-1].status == "incomplete"  # type: ignore[union-attr]


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "weather"}], ids=str)
@pytest.mark.parametrize("seed", range(3))
def test_a_call_that_is_asked_for_is_valid(tools_gateway: Gateway, choice: Any, seed: int) -> None:
    answer = ask(tools_gateway, tool_choice=choice, tools=TOOLS[:1], temperature=2, seed=seed)

    ((name, arguments),) = calls_in(answer)
    assert (kinds(answer), name) == (["function_call"], "weather")
    assert Weather.model_validate_json(arguments).city in ("Suez", "Aden")
    given = answer.tool_choice if isinstance(answer.tool_choice, str) else answer.tool_choice.to_dict()
    assert given == choice


def test_of_several_functions_the_model_chooses_one(tools_gateway: Gateway) -> None:
    ((name, arguments),) = calls_in(ask(tools_gateway, tool_choice="required"))

    assert name in ("weather", "time")
    assert isinstance(json.loads(arguments), dict)


def test_openais_client_parses_the_arguments(tools_gateway: Gateway) -> None:
    tool: Any = openai.pydantic_function_tool(Weather, name="weather")["function"]
    asked = body_of(CALLED, tools=[{"type": "function", **tool}])
    extras = {name: asked.pop(name) for name in ("seed", "choice")}

    client: Any = tools_gateway.client().responses
    parsed = client.parse(**asked, extra_body=extras)
    (call,) = parsed.output
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "31"}
    asked["input"] = [{"role": "user", "content": asked["input"]}, *parsed.output, result]
    answer = client.parse(**asked, extra_body={"choice": ["31 degrés."]})

    assert json.loads(call.arguments) == call.parsed_arguments == {"city": "Suez", "days": 2}
    assert answer.output_text == "31 degrés."


# going on from calls


def rendered(served: ServedModel, *messages: dict[str, Any]) -> int:
    """The tokens of a chat with these messages and tools."""
    assert served.card.chat is not None
    fields = ("name", "description", "parameters", "strict")
    functions = [{name: tool[name] for name in fields if tool.get(name) is not None} for tool in TOOLS]
    tools = [{"type": "function", "function": function} for function in functions]
    said = Conversation.of(messages).with_extras(tools, None)
    return len(served.card.chat.prompt(said, served.tokenizer))


def as_chat(answer: Response, text: str) -> dict[str, Any]:
    """The message of a chat that holds all of a response."""
    calls = [
        {"id": item.call_id, "type": "function", "function": {"name": item.name, "arguments": item.arguments}}
        for item in answer.output
        if isinstance(item, ResponseFunctionToolCall)
    ]
    return {"role": "assistant", "content": text, "tool_calls": calls}


@pytest.mark.parametrize(("answer", "text"), [(CALLED, ""), (TWICE, "Je vois <é."), (BETWEEN, "Un\ndeux")])
@pytest.mark.parametrize("chains", [True, False], ids=["chained", "given"])
def test_calls_and_results_go_to_the_template_as_in_a_chat(
    tools_gateway: Gateway, tools_served: ServedModel, answer: str, text: str, chains: bool
) -> None:
    first = ask(tools_gateway, answer)
    calls = [item for item in first.output if isinstance(item, ResponseFunctionToolCall)]
    results = [{"type": "function_call_output", "call_id": call.call_id, "output": "31"} for call in calls]
    results[0]["output"] = [{"type": "input_text", "text": "3"}, {"type": "input_text", "text": "1"}]  # type: ignore[assignment]
    if chains:
        asked: dict[str, Any] = {"previous_response_id": first.id, "input": results}
    else:
        asked = {"input": [{"role": "user", "content": "How warm is Suez?"}, *first.output, *results]}

    second = ask(tools_gateway, "31 degrés.", **asked)

    results_of_chat = [
        {"role": "tool", "tool_call_id": call.call_id, "content": "31" if index else "3\n1"}
        for index, call in enumerate(calls)
    ]
    said = [{"role": "user", "content": "How warm is Suez?"}, as_chat(first, text), *results_of_chat]
    assert second.usage is not None
    assert second.usage.input_tokens == rendered(tools_served, *said)
    assert second.output_text == "31 degrés."


def test_the_input_items_have_calls_and_results(tools_gateway: Gateway) -> None:
    first = ask(tools_gateway, TWICE)
    results: list[Any] = [
        {"type": "function_call_output", "call_id": item.call_id, "output": "31"}
        for item in first.output
        if isinstance(item, ResponseFunctionToolCall)
    ]
    second = ask(tools_gateway, CALLED, previous_response_id=first.id, input=results)
    third = ask(tools_gateway, "Oui.", previous_response_id=second.id)

    listed: list[Any] = list(tools_gateway.client().responses.input_items.list(third.id, order="asc", limit=2))

    assert [item.type for item in listed] == [
        *("message", "message", "function_call", "function_call", "function_call_output", "function_call_output"),
        *("function_call", "message"),
    ]
    assert [item.id for item in listed[1:4]] == [item.id for item in first.output]
    assert listed[6].id == second.output[0].id
    assert len({item.id for item in listed}) == 8
    assert extras_in(listed) == set()


def test_texts_beside_a_call_are_one_message_and_those_without_one_are_several() -> None:
    one, call, two = MessageItem("assistant", ("un",)), CallItem("a", "time", "{}"), MessageItem("assistant", ("deux",))

    (joined,) = messages_of([one, call, two, call])

    assert (joined["content"], [each["id"] for each in joined["tool_calls"]]) == ("un\ndeux", ["a", "a"])
    assert [said["content"] for said in messages_of([one, two])] == ["un", "deux"]
    assert [said["role"] for said in messages_of([call, ResultItem("a", "1"), call])] == [
        "assistant",
        "tool",
        "assistant",
    ]


def test_items_are_the_same_out_of_a_record_and_nothing_else_is_one() -> None:
    items: list[Item] = [MessageItem("user", ("a", "b"), "x"), CallItem("a", "f", "{}", "y"), ResultItem("a", "1")]

    assert [item_of_json(json.loads(json.dumps(item.to_json()))) for item in items] == items
    for content in ([], ["user"], ["nobody", ["a"], None], ["function_call", "a", 1, "{}", None], ["user", [1], None]):
        with pytest.raises((ValueError, TypeError)):
            item_of_json(content)


CALL = {"type": "function_call", "call_id": "a", "name": "time", "arguments": "{}"}


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"tools": [{"type": "web_search"}]}, "tools", "tools must be of type function, others are not offered here"),
        ({"tools": [{"type": "mcp", "name": "x"}]}, "tools", "got 'mcp'"),
        ({"tools": [{"type": "function", "function": {"name": "x"}}]}, "tools", "got 'function'"),
        ({"tool_choice": {"type": "function", "function": {"name": "time"}}}, "tool_choice", '"name": "..."}, got'),
        ({"tool_choice": {"type": "function", "name": "none"}}, "tool_choice", "must name a function of tools"),
        ({"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": []}}, "tool_choice", "must be auto, none"),
        ({"tool_choice": {"type": "function", "name": "time", "mode": "auto"}}, "tool_choice", '"name": "..."}, got'),
        ({"tool_choice": "any"}, "tool_choice", "must be auto, none, required"),
        ({"tool_choice": "required", "text": {"format": {"type": "json_object"}}}, "tool_choice", "beside text.format"),
        ({"parallel_tool_calls": 1}, "parallel_tool_calls", "must be true or false"),
        ({"tool_choice": "required", "tools": [{**TOOLS[1], "parameters": {"type": "array"}}]}, "tools", "must be of"),
        ({"input": [{"type": "function_call_output", "call_id": "a", "output": ""}]}, "input", "must have the call_id"),
        ({"input": [{**CALL, "arguments": "[]"}]}, "input", "must have an object in JSON as arguments"),
        ({"input": [{**CALL, "arguments": "{"}]}, "input", "must have an object in JSON as arguments"),
        ({"input": [{**CALL, "name": 1}]}, "input", "must have a text as name"),
        ({"input": [{**CALL, "more": 1}]}, "input", "may have type, call_id"),
        ({"input": [CALL, {"type": "function_call_output", "call_id": "a"}]}, "input", "as output"),
        ({"input": [{"type": "web_search_call"}]}, "input", "must be of type message, function_call or"),
    ],
    ids=str,
)
def test_what_would_not_be_done_is_refused_by_name(
    tools_gateway: Gateway, fields: dict[str, Any], param: str, message: str
) -> None:
    with tools_gateway.http() as http:
        refused = http.post("/v1/responses", json=body_of(**fields))

    assert (refused.status_code, refused.json()["error"]["param"]) == (400, param), refused.text
    assert message in refused.json()["error"]["message"]
    assert "function.parameters" not in refused.text


def test_a_model_that_calls_nothing_refuses_a_choice(chat_gateway: Gateway) -> None:
    with chat_gateway.http() as http:
        refused = http.post("/v1/responses", json=body_of(tool_choice="required"))

    assert "chat template shows no way to call" in refused.json()["error"]["message"]
    assert refused.json()["error"]["param"] == "tool_choice"
