"""Tools and variables of a chat template, as the command line, Python and both forms of batch lines give them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import redis
from support.batch_files import asked_model
from support.client_program import client, fake_redis, queued

from minilab_gen import api
from minilab_gen.asked_model import AskedModel
from minilab_gen.batch.line import BadLine, Line
from minilab_gen.protocol.cards import publish_card
from minilab_gen.protocol.events import EndEvent
from minilab_gen.protocol.jobs import fetch, request_of
from minilab_gen.protocol.results import Answer
from minilab_gen.text.chat import ChatFormat

TEMPLATE = "{{ tools | tojson }} {{ enable_thinking | default('?') }} {{ messages[-1].content }}"
TOOLS = [{"type": "function", "function": {"name": "weather"}}]
KWARGS = {"enable_thinking": False}
BARE = "null ? Hello"
WHOLE = f"{json.dumps(TOOLS)} False Hello"


def chatting() -> AskedModel:
    base = asked_model()
    return AskedModel(replace(base.card, chat=ChatFormat(TEMPLATE)), base.tokenizer)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> redis.Redis:
    """The fake Redis that the program uses, in which a model that chats is announced."""
    fake = fake_redis(monkeypatch)
    publish_card(fake, chatting().card, chatting().tokenizer.to_json())
    return fake


@pytest.fixture
def tools(tmp_path: Path) -> str:
    file = tmp_path / "tools.json"
    file.write_text(json.dumps(TOOLS))
    return str(file)


def asked(connection: redis.Redis) -> str:
    """What the one job in the queue goes on with."""
    (job_id,) = queued(connection, "normal")
    return chatting().tokenizer.decode(list(request_of(fetch(connection, job_id)).prompt))


def line(**fields: Any) -> Line | BadLine:
    from minilab_client.batch.reader import LineReader

    from minilab_gen.batch.json_lines import RawLine

    raw = RawLine(1, json.dumps({"custom_id": "a", **fields}).encode())
    return next(LineReader(chatting()).read([raw]))


def prompt(found: Line | BadLine) -> str:
    assert isinstance(found, Line), found
    return chatting().tokenizer.decode(list(found.request.prompt))


def chat_completion(**body: Any) -> Line | BadLine:
    body = {"messages": [{"role": "user", "content": "Hello"}], **body}
    return line(method="POST", url="/v1/chat/completions", body=body)


def test_submit_hands_them_to_the_template(fake: redis.Redis, tools: str) -> None:
    kwargs = ("--tools", tools, "--chat-template-kwargs", json.dumps(KWARGS))

    assert client("submit", "--chat", "Hello", *kwargs).exit_code == 0
    assert asked(fake) == WHOLE


@pytest.mark.parametrize("option", [("--tools", "FILE"), ("--chat-template-kwargs", "{}"), ("--system", "x")])
def test_submit_refuses_them_without_a_chat(fake: redis.Redis, tools: str, option: tuple[str, str]) -> None:
    name, value = option
    refused = client("submit", "Hello", name, tools if value == "FILE" else value)

    assert refused.exit_code == 2
    assert f"{name} goes with --chat" in refused.stderr


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (("--chat-template-kwargs", "{"), "must be JSON, got '{'"),
        (("--chat-template-kwargs", "[]"), "chat_template_kwargs must be an object, got []"),
        (("--tools", "FILE"), "must be JSON"),
    ],
)
def test_submit_says_what_they_must_be(
    fake: redis.Redis, tmp_path: Path, option: tuple[str, str], message: str
) -> None:
    file = tmp_path / "tools.json"
    file.write_text("{")
    name, value = option
    refused = client("submit", "--chat", "Hello", name, str(file) if value == "FILE" else value)

    assert refused.exit_code == 2
    assert message in refused.stderr


def test_python_hands_them_to_the_template(fake: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "connect", lambda *_, **__: fake)
    api.submit(chat="Hello", tools=TOOLS, chat_template_kwargs=KWARGS)

    assert asked(fake) == WHOLE


def test_lines_of_a_batch_hand_them_to_the_template() -> None:
    assert prompt(line(chat="Hello")) == BARE
    assert prompt(line(chat="Hello", tools=TOOLS, chat_template_kwargs=KWARGS)) == WHOLE
    assert prompt(chat_completion()) == BARE
    assert prompt(chat_completion(tools=TOOLS, chat_template_kwargs=KWARGS)) == WHOLE


def test_lines_that_differ_in_them_are_other_lines() -> None:
    lines = [
        line(chat="Hello"),
        line(chat="Hello", tools=TOOLS),
        line(chat="Hello", chat_template_kwargs=KWARGS),
        line(chat=[{"role": "user", "content": "Hello", "name": "Fogg"}]),
        chat_completion(),
        chat_completion(tools=TOOLS),
    ]
    digests = {found.digest for found in lines if isinstance(found, Line)}

    assert len(digests) == len(lines)


def test_a_chat_completion_is_answered_in_its_own_form() -> None:
    from minilab_gen.batch import openai_form

    found = chat_completion(max_completion_tokens=5, seed=3)
    assert isinstance(found, Line)
    assert (found.request.max_new_tokens, found.request.settings.temperature) == (5, 1.0)
    given = Answer((5, 6), "Bonjour", EndEvent("length", 2, 9), 0.0, "fingerprint")
    body = openai_form.answer([(found, "job", given)], chatting())["response"]["body"]

    assert body["object"] == "chat.completion"
    assert body["id"].startswith("chatcmpl-")
    assert body["choices"][0]["message"] == {"role": "assistant", "content": "Bonjour"}
    assert body["choices"][0]["finish_reason"] == "length"
    assert body["usage"] == {"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"messages": "Hello"}, "messages must be a list of messages, got 'Hello'"),
        (
            {"max_tokens": 1, "max_completion_tokens": 2},
            "max_tokens must be what max_completion_tokens is, got 1 and 2",
        ),
        ({"n": 65}, "n must be a whole number from 1 to 64, got 65"),
        (
            {"best_of": 2},
            "body may have the fields messages, tools, chat_template_kwargs, tool_choice, parallel_tool_calls, n, ",
        ),
        ({"tool_choice": "required"}, "tool_choice must be auto or none without tools, got 'required'"),
        ({"response_format": {"type": "json"}}, "response_format must have a type of text, json_object, json_schema"),
        ({"prompt": "Hello"}, "body may have the fields messages, tools, chat_template_kwargs"),
        ({"tools": "x"}, "tools must be a list of objects, got 'x'"),
        ({"chat_template_kwargs": {"tools": []}}, "chat_template_kwargs must not set tools"),
    ],
    ids=str,
)
def test_a_chat_completion_that_breaks_a_rule_is_refused(body: dict[str, Any], message: str) -> None:
    found = chat_completion(**body)

    assert isinstance(found, BadLine)
    assert message in found.reason


def test_extras_without_a_chat_and_other_urls_are_refused() -> None:
    without = line(prompt="Hello", tools=TOOLS)
    elsewhere = line(method="POST", url="/v1/embeddings", body={})

    assert isinstance(without, BadLine)
    assert "tools goes with chat, got it with prompt" in without.reason
    assert isinstance(elsewhere, BadLine)
    assert "url must be /v1/completions or /v1/chat/completions, got '/v1/embeddings'" in elsewhere.reason
