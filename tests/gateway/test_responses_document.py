"""docs/responses.md: its snippets run as they stand, and it names what the service says."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from gateway.gateway_process import Gateway
from gateway.test_http_document import run
from minilab_gen.openai.response_bodies import LOGPROBS, RESPONSES

DOCUMENT = (Path(__file__).parent.parent.parent / "docs" / "responses.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", DOCUMENT, re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("number", [0, 1])
def test_the_python_snippets_run(gateway: Gateway, number: int) -> None:
    snippets = blocks("python")
    assert len(snippets) == 3

    printed = run(gateway, sys.executable, "-W", "error", "-c", snippets[number])

    assert printed if number == 0 else not printed


def test_the_loop_of_an_agent_runs(tools_gateway: Gateway) -> None:
    snippet = blocks("python")[2]

    printed = run(tools_gateway, sys.executable, "-W", "error", "-c", snippet)

    assert re.match(r'temperature \{"city":"(Suez|Aden)"\}\n', printed)


def test_the_curl_snippets_run(gateway: Gateway) -> None:
    (snippet,) = blocks("sh")
    create, resume = snippet.split("curl -sN")

    printed = run(gateway, "bash", "-ec", create)
    (name,) = re.findall(r'"id":"(resp_\w+)"', printed)
    waited = run(gateway, "bash", "-ec", 'curl -sN "http://127.0.0.1:8000/v1/responses/$ID?stream=true"', ID=name)
    rest = run(gateway, "bash", "-ec", f"curl -sN{resume}", ID=name)

    assert rest.startswith("event: response.output_text.delta\nid: 13\ndata: {")
    assert waited.endswith(rest)


def test_fields_are_named() -> None:
    asked = set(RESPONSES.others) - {"structured_outputs", "reasoning", "user"}
    named = [name for name in asked if not name.startswith("guided_")]
    assert [name for name in (*named, LOGPROBS) if f"`{name}" not in DOCUMENT] == []
