"""Large bodies: what may be asked is read, what would hold up others is refused before it is."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from minilab_gateway.json_bytes import MOST_STRINGS, MOST_VALUES, parsed_object

from gateway.gateway_process import Gateway
from minilab_gen.errors import RequestError
from minilab_gen.request import MAX_PROMPT_IDS
from minilab_gen.text.chat import MAX_MESSAGES

MANY = 1_000_000

CALL = {"id": "call-1", "type": "function", "function": {"name": "look", "arguments": '{"where": "\\\\"}'}}

LARGE: dict[str, Callable[[], dict[str, Any]]] = {
    "ids": lambda: {"prompt": [1234] * MANY},
    "fields": lambda: {"prompt": [1], **{f"f{number}": None for number in range(MANY)}},
    "biases": lambda: {"prompt": [1], "logit_bias": {str(number): 1 for number in range(MANY)}},
    "stops": lambda: {"prompt": [1], "stop": ["x"] * MANY},
    "messages": lambda: {"messages": [{"role": "user", "content": ""}] * (MANY // 3)},
    "texts": lambda: {"prompt": "a " * (8 * MANY)},
}


def dumped(content: Any) -> bytes:
    return json.dumps(content, separators=(",", ":")).encode()


@pytest.mark.parametrize("kind", LARGE)
def test_a_body_of_millions_of_values_holds_up_nobody_and_is_forgotten(gateway: Gateway, kind: str) -> None:
    content, gaps = dumped({"model": "base", **LARGE[kind]()}), [0.0]
    path = "/v1/chat/completions" if kind == "messages" else "/v1/completions"

    def ask() -> tuple[int, str]:
        with gateway.http() as other:
            answer = other.post(path, content=content)
            return answer.status_code, answer.json()["error"]["message"]

    with gateway.http() as http, ThreadPoolExecutor(1) as pool:
        http.get("/health")
        before = memory_of(gateway)
        asked = pool.submit(ask)
        while not asked.done():
            began = time.monotonic()
            assert http.get("/health").status_code == 200
            gaps.append(time.monotonic() - began)
    status, message = asked.result()

    assert status == 400
    assert re.search("a body may hold at most|at most 1000000 characters", message)
    assert max(gaps) < 0.5  # 20 to 100 ms where nothing else runs
    assert memory_of(gateway) < before + 130


def memory_of(gateway: Gateway) -> int:
    """MB that the process holds."""
    status = Path(f"/proc/{gateway.process.pid}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) // 1024


def test_the_largest_requests_that_may_be_asked_are_read() -> None:
    ids = [123_456] * MAX_PROMPT_IDS
    message = {"role": "assistant", "content": "", "tool_calls": [CALL]}
    for content in (
        {"prompt": ids, "allowed_token_ids": ids, "logit_bias": {str(number): 1 for number in range(1024)}},
        {"messages": [message] * MAX_MESSAGES},
        {"prompt": '",[{\\' * 200_000},  # letters of a text are no values
    ):
        assert parsed_object(dumped(content)) == content


@pytest.mark.parametrize("over", [0, 1])
def test_what_a_body_may_hold_is_counted_to_the_last(over: int) -> None:
    texts = dumped({"a": [r"\"" + "\\"] * (MOST_STRINGS - 1 + over)})
    values = dumped({"a": [1] * (MOST_VALUES - 1 + over)})  # an opening bracket each, and the commas between
    if not over:
        assert len(parsed_object(texts)["a"]) == MOST_STRINGS - 1
        assert len(parsed_object(values)["a"]) == MOST_VALUES - 1
        return
    with pytest.raises(RequestError, match=f"at most {MOST_STRINGS} texts"):
        parsed_object(texts)
    with pytest.raises(RequestError, match=f"at most {MOST_VALUES} values"):
        parsed_object(values)
