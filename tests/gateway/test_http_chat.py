"""Chats, plain and streamed, as OpenAI's own client asks for them."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from gateway.gateway_process import Gateway, events_in, extra

ASKED: dict[str, Any] = {
    "model": "base",
    "messages": [{"role": "user", "content": "Passepartout"}],
    "temperature": 0,
    "max_tokens": 8,
    "extra_body": {"ignore_eos": True},
}


def test_a_chat_is_answered(chat_gateway: Gateway) -> None:
    answer = chat_gateway.chat(**ASKED)

    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].message.content
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 8
    assert answer.id.startswith("chatcmpl-")


@pytest.mark.parametrize("n", [1, 2])
def test_the_first_chunk_of_each_answer_and_no_other_gives_the_role(chat_gateway: Gateway, n: int) -> None:
    plain = chat_gateway.chat(**ASKED, n=n)

    chunks = chat_gateway.chat_chunks(**ASKED, n=n)

    for index in range(n):
        first, *others = [chunk.choices[0] for chunk in chunks if chunk.choices[0].index == index]
        assert first.delta.role == "assistant"
        assert all(choice.delta.role is None for choice in others)
        assert "".join(choice.delta.content or "" for choice in others) == plain.choices[index].message.content
        assert others[-1].finish_reason == "length"
        assert others[-1].delta.to_dict() == {}


def test_an_empty_answer_has_its_role_too(chat_gateway: Gateway) -> None:
    first_id = extra(chat_gateway.chat(**ASKED).choices[0], "token_ids")[0]

    chunks = chat_gateway.chat_chunks(**{**ASKED, "extra_body": {"stop_token_ids": [first_id]}})

    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == ""
    assert chunks[-1].choices[0].finish_reason == "stop"


@pytest.mark.parametrize(
    ("limits", "tokens"),
    [
        ({"max_tokens": 3}, 3),
        ({"max_completion_tokens": 3}, 3),
        ({"max_tokens": 3, "max_completion_tokens": 3}, 3),
        ({"max_tokens": None, "max_completion_tokens": 4}, 4),
    ],
)
def test_both_names_of_the_limit_are_taken(chat_gateway: Gateway, limits: dict[str, Any], tokens: int) -> None:
    answer = chat_gateway.chat(**{**ASKED, "max_tokens": openai.omit, **limits})

    assert answer.usage is not None
    assert (answer.usage.completion_tokens, answer.choices[0].finish_reason) == (tokens, "length")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": 3, "max_completion_tokens": 7}, "max_tokens"),
        ({"max_completion_tokens": 0, "max_tokens": None}, "max_completion_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"parallel_tool_calls": 0}, "parallel_tool_calls"),
        ({"modalities": ["audio"]}, "modalities"),
        ({"reasoning_effort": "high"}, "reasoning_effort"),
        ({"unknown": 1}, None),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"messages": []}, None),
        ({"messages": "Hello"}, "messages"),
    ],
    ids=str,
)
def test_what_a_chat_does_not_offer_is_refused_by_name(
    chat_gateway: Gateway, fields: dict[str, Any], param: str | None
) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        chat_gateway.chat(**{**ASKED, "extra_body": fields})

    assert refused.value.param == param
    assert next(iter(fields)).split("_")[0] in refused.value.message or param is None


def test_null_asks_for_nothing_whatever_the_name(chat_gateway: Gateway) -> None:
    names = (
        "functions",
        "function_call",
        "modalities",
        "audio",
        "prediction",
        "reasoning_effort",
        "service_tier",
        "tools",
    )
    body = {"model": "base", "messages": [{"role": "user", "content": "x"}], "max_tokens": 2, "temperature": 0}
    with chat_gateway.http() as http:
        plain = http.post("/v1/chat/completions", json=body).json()
        answer = http.post("/v1/chat/completions", json={**body, **dict.fromkeys(names)})

    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"] == plain["choices"]


def test_what_changes_nothing_is_accepted(chat_gateway: Gateway) -> None:
    plain = chat_gateway.chat(**ASKED)

    answer = chat_gateway.chat(**ASKED, user="x", metadata={"a": "b"}, store=True, response_format={"type": "text"})

    assert answer.choices[0].message.content == plain.choices[0].message.content


def test_tools_and_variables_reach_the_template(chat_gateway: Gateway) -> None:
    plain = chat_gateway.chat(**ASKED)
    tool = {"type": "function", "function": {"name": "weather", "parameters": {}}}

    with_tools = chat_gateway.chat(**ASKED, tools=[tool])
    kwargs = {"chat_template_kwargs": {"shout": True}, "ignore_eos": True}
    with_kwargs = chat_gateway.chat(**{**ASKED, "extra_body": kwargs})

    assert plain.usage is not None
    assert with_tools.usage is not None
    assert with_kwargs.usage is not None
    assert with_tools.usage.prompt_tokens > plain.usage.prompt_tokens
    assert with_kwargs.usage.prompt_tokens == plain.usage.prompt_tokens + 1


def test_logprobs_of_a_stream_are_those_of_the_whole(chat_gateway: Gateway) -> None:
    asked = {**ASKED, "logprobs": True, "top_logprobs": 3}
    whole = chat_gateway.chat(**asked).choices[0].logprobs
    assert whole is not None
    assert whole.content is not None

    chunks = chat_gateway.chat_chunks(**asked)

    parts = [one for chunk in chunks if chunk.choices[0].logprobs for one in chunk.choices[0].logprobs.content or []]
    assert parts == whole.content
    assert [len(one.top_logprobs) for one in parts] == [3] * 8


def test_a_model_without_a_template_refuses_a_chat(gateway: Gateway) -> None:
    with pytest.raises(openai.BadRequestError, match="has no chat template"):
        gateway.chat(**ASKED)


def test_a_chat_is_no_completion_under_another_route(chat_gateway: Gateway) -> None:
    answer = chat_gateway.chat(**ASKED)
    with chat_gateway.http() as http:
        assert http.get(f"/v1/chat/completions/{answer.id}").json()["choices"][0]["message"]["content"]
        assert http.get(f"/v1/completions/{answer.id}").status_code == 404


def test_tokenize_and_detokenize(chat_gateway: Gateway) -> None:
    with chat_gateway.http() as http:
        text = "Passepartout, Phileas Fogg et les autres"
        ids = http.post("/tokenize", json={"model": "base", "prompt": text}).json()
        chat = http.post("/tokenize", json={"model": "base", "messages": ASKED["messages"]}).json()
        back = http.post("/detokenize", json={"model": "base", "tokens": ids["tokens"]}).json()
        bad = http.post("/detokenize", json={"model": "base", "tokens": [10**9]})
        both = http.post("/tokenize", json={"model": "base", "prompt": "a", "messages": []})

    assert ids["count"] == len(ids["tokens"])
    assert back == {"prompt": text}
    usage = chat_gateway.chat(**ASKED).usage
    assert usage is not None
    assert chat["count"] == usage.prompt_tokens
    assert (bad.status_code, bad.json()["error"]["param"]) == (400, "tokens")
    assert both.status_code == 400


def test_models_are_listed_and_found(chat_gateway: Gateway) -> None:
    client = chat_gateway.client()

    assert [model.id for model in client.models.list()] == ["base"]
    assert extra(client.models.retrieve("base"), "max_model_len") == 64
    assert client.models.retrieve("owner/base").id == "base"  # a name that works in a body
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("owner/nobody")


@pytest.mark.parametrize("n", [1, 2])
def test_a_chat_goes_on_behind_any_event_and_gives_no_role_again(chat_gateway: Gateway, n: int) -> None:
    fields = {name: value for name, value in ASKED.items() if name != "extra_body"}
    body = {**fields, "ignore_eos": True, "n": n, "stream": True}
    with chat_gateway.http() as http:
        whole = events_in(http.post("/v1/chat/completions", json=body).text)
        name = whole[0][1]["id"]
        for number, (event_id, _) in enumerate(whole):
            if event_id is None:
                continue
            params = {"stream": "true", "starting_after": event_id}
            rest = events_in(http.get(f"/v1/chat/completions/{name}", params=params).text)
            if n == 1:
                assert rest == whole[number + 1 :]
            assert len(rest) == len(whole) - number - 1
            assert not any("role" in chunk["choices"][0]["delta"] for _, chunk in rest[:-1])
