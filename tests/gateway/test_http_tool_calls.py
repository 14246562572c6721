"""Calls of tools over HTTP, plain and streamed, as OpenAI's own client reads them.

A random model writes no call by itself: where a test needs a certain answer, the form of the answer leaves no other.
"""

from __future__ import annotations

import json
from typing import Any, Literal

import openai
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionMessageFunctionToolCall
from pydantic import BaseModel

from gateway.gateway_process import Gateway, events_in


class weather(BaseModel):  # noqa: N801 - the name of a function
    """How warm it is."""

    city: Literal["Suez", "Aden"]
    days: Literal[1, 2]


TOOLS: list[Any] = [openai.pydantic_function_tool(weather), {"type": "function", "function": {"name": "time"}}]
MESSAGES: list[Any] = [{"role": "user", "content": "How warm is Suez?"}]
SUEZ = '{"city": "Suez", "days": 2}'
CALLED = f'<tool_call>\n{{"name": "weather", "arguments": {SUEZ}}}\n</tool_call>'
TWICE = f"Je vois <é.\n{CALLED}\n{CALLED.replace('Suez', 'Aden')}"
ANSWERS = [TWICE, CALLED, "Non, <tool", "<tool_call>\n{}</tool_call> et"]


def asked(answer: str | None = None, **more: Any) -> dict[str, Any]:
    body = {"model": "base", "messages": MESSAGES, "tools": TOOLS, "temperature": 0, "max_tokens": 200, "seed": 1}
    return {**body, **({} if answer is None else {"extra_body": {"choice": [answer]}}), **more}


def body_of(answer: str, **more: Any) -> dict[str, Any]:
    return {**asked(), "choice": [answer], **more}


def functions(answer: ChatCompletion) -> list[tuple[str, str]]:
    called = answer.choices[0].message.tool_calls or []
    return [(one.function.name, one.function.arguments) for one in called if isinstance(one, FunctionCall)]


FunctionCall = ChatCompletionMessageFunctionToolCall


def test_calls_are_apart_from_the_content(tools_gateway: Gateway) -> None:
    answer = tools_gateway.chat(**asked(TWICE))

    message = answer.choices[0].message
    assert message.content == "Je vois <é."
    assert functions(answer) == [("weather", SUEZ), ("weather", SUEZ.replace("Suez", "Aden"))]
    assert answer.choices[0].finish_reason == "tool_calls"
    assert message.tool_calls is not None
    assert len({one.id for one in message.tool_calls}) == 2


def test_an_answer_that_is_a_call_has_no_content_and_the_same_ids_again(tools_gateway: Gateway) -> None:
    answer = tools_gateway.chat(**asked(CALLED, store=True))
    with tools_gateway.http() as http:
        again = http.get(f"/v1/chat/completions/{answer.id}").json()

    assert answer.choices[0].message.content is None
    assert again["choices"][0]["message"] == answer.choices[0].message.to_dict()
    assert again["choices"][0]["finish_reason"] == "tool_calls"


@pytest.mark.parametrize(
    "more", [{"tools": openai.omit}, {"tool_choice": "none"}, {"tools": [TOOLS[1]]}], ids=["no tools", "none", "other"]
)
def test_a_call_stays_text_without_tools_with_none_and_of_a_function_that_is_unknown(
    tools_gateway: Gateway, more: dict[str, Any]
) -> None:
    answer = tools_gateway.chat(**asked(CALLED, **more))

    assert answer.choices[0].message.to_dict() == {"role": "assistant", "content": CALLED}
    assert answer.choices[0].finish_reason == "stop"


def test_of_several_calls_the_first_is_given_where_no_more_are_wanted(tools_gateway: Gateway) -> None:
    assert functions(tools_gateway.chat(**asked(TWICE, parallel_tool_calls=False))) == [("weather", SUEZ)]


def test_an_answer_that_is_cut_off_within_a_call_keeps_it_as_content(tools_gateway: Gateway) -> None:
    answer = tools_gateway.chat(**asked(CALLED, max_tokens=20))

    assert answer.choices[0].finish_reason == "length"
    assert CALLED.startswith(answer.choices[0].message.content or "no")
    assert functions(answer) == []


def test_an_answer_that_is_cut_off_behind_a_call_has_that_call_and_says_so(tools_gateway: Gateway) -> None:
    usage = tools_gateway.chat(**asked(TWICE)).usage
    assert usage is not None

    answer = tools_gateway.chat(**asked(TWICE, max_tokens=usage.completion_tokens - 30))

    assert functions(answer) == [("weather", SUEZ)]
    assert answer.choices[0].finish_reason == "length"


@pytest.mark.parametrize("text", ANSWERS)
def test_a_stream_that_openais_client_joins_is_the_whole_answer(tools_gateway: Gateway, text: str) -> None:
    whole = tools_gateway.chat(**asked(text)).choices[0]

    create: Any = tools_gateway.client().chat.completions.stream
    with create(**asked(text)) as stream:
        done = [event for event in stream if event.type == "tool_calls.function.arguments.done"]
        joined = stream.get_final_completion().choices[0]

    assert joined.message.content == whole.message.content
    assert joined.finish_reason == whole.finish_reason
    calls = whole.message.tool_calls or []
    assert [event.arguments for event in done] == [
        one.function.arguments for one in calls if isinstance(one, FunctionCall)
    ]
    assert [(one.function.name, one.function.arguments) for one in joined.message.tool_calls or []] == functions(
        tools_gateway.chat(**asked(text))
    )


@pytest.mark.parametrize("text", ANSWERS)
def test_each_token_has_its_chunk_and_a_call_comes_whole_in_one(tools_gateway: Gateway, text: str) -> None:
    answer = tools_gateway.chat(**asked(text))

    chunks = tools_gateway.chat_chunks(**asked(text))

    calls = [one for chunk in chunks for one in chunk.choices[0].delta.tool_calls or []]
    whole = answer.choices[0].message.tool_calls or []
    assert [call.index for call in calls] == list(range(len(whole)))
    assert [call.function.to_dict() for call in calls if call.function] == [
        one.function.to_dict() for one in whole if isinstance(one, FunctionCall)
    ]
    assert answer.usage is not None
    assert len(chunks) >= answer.usage.completion_tokens + 2
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == (
        answer.choices[0].message.content or ""
    )


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("text", ANSWERS)
def test_a_stream_goes_on_behind_any_event_with_the_same_bytes(tools_gateway: Gateway, text: str, n: int) -> None:
    with tools_gateway.http() as http:
        raw = http.post("/v1/chat/completions", json=body_of(text, stream=True, n=n, store=True)).text
        whole = events_in(raw)
        name = whole[0][1]["id"]
        for number, (event_id, _) in list(enumerate(whole))[:: 1 if n == 1 else 11]:  # two answers take long
            if event_id is None:
                continue
            params = {"stream": "true", "starting_after": event_id}
            rest = http.get(f"/v1/chat/completions/{name}", params=params).text
            if n == 1:
                assert raw.endswith(rest)
            assert len(events_in(rest)) == len(whole) - number - 1


def test_a_retry_of_a_stream_gives_the_same_ids(tools_gateway: Gateway) -> None:
    headers = {"Idempotency-Key": "once"}
    with tools_gateway.http() as http:
        first, again = (
            http.post("/v1/chat/completions", json=body_of(TWICE, stream=True), headers=headers).text for _ in range(2)
        )

    assert first == again
    assert '"tool_calls":[{"index":1' in first


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}], ids=str)
@pytest.mark.parametrize("seed", range(3))
def test_a_call_that_is_asked_for_is_valid(tools_gateway: Gateway, choice: Any, seed: int) -> None:
    sampled = asked(tool_choice=choice, tools=TOOLS[:1], temperature=2, seed=seed, n=2)

    answer = tools_gateway.chat(**sampled)

    for each in answer.choices:
        assert each.message.content is None
        assert each.message.tool_calls is not None
        (call,) = each.message.tool_calls
        assert isinstance(call, FunctionCall)
        assert call.function.name == "weather"
        assert weather.model_validate_json(call.function.arguments).city in ("Suez", "Aden")
        assert each.finish_reason == "tool_calls"


def test_of_several_functions_the_model_chooses_one(tools_gateway: Gateway) -> None:
    create: Any = tools_gateway.client().chat.completions.stream
    with create(**asked(tool_choice="required")) as stream:
        (call,) = stream.get_final_completion().choices[0].message.tool_calls or []

    assert call.function.name in ("weather", "time")
    assert isinstance(json.loads(call.function.arguments), dict)


def test_openais_client_parses_the_arguments(tools_gateway: Gateway) -> None:
    parse: Any = tools_gateway.client().chat.completions.parse

    for more in (asked(CALLED, tools=TOOLS[:1]), asked(tools=TOOLS[:1], tool_choice="required")):
        (call,) = parse(**more).choices[0].message.tool_calls or []
        assert isinstance(call.function.parsed_arguments, weather)


def test_calls_and_results_go_back_into_the_conversation(tools_gateway: Gateway) -> None:
    first = tools_gateway.chat(**asked(CALLED)).choices[0].message
    assert first.tool_calls is not None
    result = {"role": "tool", "tool_call_id": first.tool_calls[0].id, "content": "31"}

    answer = tools_gateway.chat(**asked("31 degrés.", messages=[*MESSAGES, first, result]))

    assert answer.choices[0].message.content == "31 degrés."
    assert answer.choices[0].finish_reason == "stop"


def test_a_choice_that_cannot_be_kept_is_refused_by_its_name(chat_gateway: Gateway) -> None:
    with pytest.raises(openai.BadRequestError, match="chat template shows no way to call") as refused:
        chat_gateway.chat(**asked(tool_choice="required", max_tokens=5))

    assert refused.value.param == "tool_choice"
