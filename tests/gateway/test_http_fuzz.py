"""Whatever stands in a body, in an address or in a header: an answer or a refusal, never a failure of the gateway."""

from __future__ import annotations

import json
from typing import Any

import httpx2 as httpx
import pytest
from minilab_gateway.schemas import body_schema

from gateway.gateway_process import Gateway
from minilab_gen.openai.bodies import CHAT_COMPLETIONS, COMPLETIONS, Route

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
}


def post(http: httpx.Client, path: str, body: dict[str, Any]) -> httpx.Response:
    """With half characters as JSON can spell them."""
    return http.post(path, content=json.dumps(body))


@pytest.mark.parametrize("route", [COMPLETIONS, CHAT_COMPLETIONS], ids=lambda route: route.url)
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
