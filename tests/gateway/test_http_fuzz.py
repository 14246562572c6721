"""Whatever stands in a body, in an address or in a header: an answer or a refusal, never a failure of the gateway."""

from __future__ import annotations

import json
from typing import Any

import httpx2 as httpx
import pytest
from minilab_gateway.schemas import body_schema

from gateway.gateway_process import Gateway
from minilab_gen.openai.bodies import CHAT_COMPLETIONS, COMPLETIONS, Route
from minilab_gen.openai.response_bodies import RESPONSES

ODD: list[Any] = [
    None,
    True,
    -1,
    0,
    1.5,
    2**63,
    1e300,
    "",
    "x",
    "\ud800",
    [],
    [[]],
    ["x", 1],
    {},
    {"x": {}},
    [{}],
    [-1],
]

GOOD: dict[str, dict[str, Any]] = {
    COMPLETIONS.url: {"model": "base", "prompt": [5, 6], "max_tokens": 1},
    CHAT_COMPLETIONS.url: {"model": "base", "messages": [{"role": "user", "content": "x"}], "max_tokens": 1},
    RESPONSES.url: {"model": "base", "input": "x", "max_output_tokens": 1},
}


def post(http: httpx.Client, path: str, body: dict[str, Any]) -> httpx.Response:
    """With half characters as JSON can spell them."""
    return http.post(path, content=json.dumps(body))


@pytest.mark.parametrize("route", [COMPLETIONS, CHAT_COMPLETIONS, RESPONSES], ids=lambda route: route.url)
def test_no_value_of_any_field_gives_a_500(chat_gateway: Gateway, route: Route) -> None:
    failed = []
    with chat_gateway.http() as http:
        for name in [*body_schema(route)["properties"], "unknown"]:
            for value in ODD:
                answer = post(http, route.url, {**GOOD[route.url], name: value})
                if answer.status_code >= 500:
                    failed.append((name, value, answer.text))

    assert failed == []


@pytest.mark.parametrize("path", ["/tokenize", "/detokenize"])
def test_no_value_of_the_tokenizers_fields_gives_a_500(chat_gateway: Gateway, path: str) -> None:
    failed = []
    with chat_gateway.http() as http:
        for name in ("model", "prompt", "messages", "tools", "chat_template_kwargs", "tokens", "unknown"):
            for value in ODD:
                answer = post(http, path, {"model": "base", name: value})
                if answer.status_code >= 500:
                    failed.append((name, value, answer.text))

    assert failed == []


def test_messages_of_any_shape_give_no_500(chat_gateway: Gateway) -> None:
    message = {"role": "user", "content": "x"}
    odd = [
        {**message, name: value} for name in ("role", "content", "name", "tool_calls", "tool_call_id") for value in ODD
    ]
    bodies: list[list[Any]] = [*([one] for one in odd), [message] * 20_000, [None], ["x"], [[]]]
    failed = []
    with chat_gateway.http() as http:
        for messages in bodies:
            answer = post(http, CHAT_COMPLETIONS.url, {**GOOD[CHAT_COMPLETIONS.url], "messages": messages})
            if answer.status_code >= 500:
                failed.append((messages[:1], answer.text))

    assert failed == []


def test_no_item_of_a_response_gives_a_500(chat_gateway: Gateway) -> None:
    item, part = {"role": "user", "content": "x"}, {"type": "input_text", "text": "x"}
    inputs = [
        *({**item, name: value} for name in ("type", "role", "content", "id", "status", "phase") for value in ODD),
        *({**item, "content": [{**part, name: value}]} for name in ("type", "text", "annotations") for value in ODD),
        *({**item, "content": [value]} for value in ODD),
        *ODD,
    ]
    tool, schema = {"type": "function", "name": "x"}, {"type": "json_schema", "name": "x", "schema": {"type": "null"}}
    bodies: list[dict[str, Any]] = [
        *({"input": [given]} for given in inputs),
        *({"tools": [{**tool, name: v}]} for name in ("type", "name", "description", "parameters") for v in ODD),
        *({"text": {"format": {**schema, name: v}}} for name in ("type", "name", "schema", "strict") for v in ODD),
        *({"text": {name: v}} for name in ("format", "verbosity", "x") for v in ODD),
        *({name: {"x": v}} for name in ("metadata", "reasoning", "stream_options") for v in ODD),
        *({"include": ["message.output_text.logprobs"], "top_logprobs": v} for v in ODD),
    ]
    failed = []
    with chat_gateway.http() as http:
        for body in bodies:
            answer = post(http, RESPONSES.url, {**GOOD[RESPONSES.url], **body})
            if answer.status_code >= 500 and answer.json()["error"]["code"] != "job_failed":
                failed.append((body, answer.text))

    assert failed == []


def test_no_address_of_a_response_gives_a_500(chat_gateway: Gateway) -> None:
    odd = ["", "x", "-1", "0", "1.5", "9" * 30, "%00", "%ff", "..", "true", "%F0%9F%98%80", "a" * 3000]
    failed = []
    with chat_gateway.http() as http:
        made = http.post(RESPONSES.url, json={**GOOD[RESPONSES.url], "background": True}).json()["id"]
        asked = [
            ("GET", f"/{made}?{name}={value}") for name in ("stream", "starting_after", "include") for value in odd
        ]
        asked += [("GET", f"/{made}/input_items?{name}={v}") for name in ("order", "limit", "after") for v in odd]
        asked += [(method, f"/{value}") for method in ("GET", "DELETE") for value in odd]
        asked += [("POST", f"/{value}/cancel") for value in odd]
        for method, path in asked:
            answer = http.request(method, RESPONSES.url + path)
            if answer.status_code >= 500:
                failed.append((method, path, answer.text))

    assert failed == []
