"""docs/http.md and docs/tools.md: their snippets run as they stand, and /docs describes the bodies that are taken."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from minilab_gateway.completion_routes import HTTP_FIELDS
from minilab_gateway.schemas import body_schema

from gateway.gateway_process import Gateway
from minilab_gen.openai.bodies import CHAT_COMPLETIONS, COMPLETIONS, Route
from minilab_gen.openai.response_bodies import RESPONSES

DOCUMENTS = Path(__file__).parent.parent.parent / "docs"


def blocks(language: str, name: str = "http.md") -> list[str]:
    text = (DOCUMENTS / name).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def run(gateway: Gateway, *command: str, **variables: str) -> str:
    """What a snippet prints, asked of this gateway."""
    words = [word.replace("http://127.0.0.1:8000", gateway.url) for word in command]
    ended = subprocess.run(
        words, env={**os.environ, **variables}, capture_output=True, text=True, timeout=120, check=False
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_the_python_snippet_runs(gateway: Gateway) -> None:
    (snippet,) = blocks("python")

    assert run(gateway, sys.executable, "-W", "error", "-c", snippet)


def test_the_loop_of_an_agent_runs(tools_gateway: Gateway) -> None:
    (snippet,) = blocks("python", "tools.md")

    printed = run(tools_gateway, sys.executable, "-W", "error", "-c", snippet)

    assert re.match(r'temperature \{"city":"(Suez|Aden)"\}\n', printed)


def test_the_curl_snippets_run(gateway: Gateway) -> None:
    snippet, resume = (block for block in blocks("sh") if block.startswith("curl"))

    printed = run(gateway, "bash", "-ec", snippet)
    assert '"object":"list"' in printed
    assert printed.endswith("data: [DONE]\n\n")
    (name, *_) = re.findall(r'"id":"(cmpl-\w+)"', printed)
    assert run(gateway, "bash", "-ec", resume, ID=name).startswith("id: 13\ndata: {")


@pytest.mark.parametrize("route", [COMPLETIONS, CHAT_COMPLETIONS, RESPONSES], ids=lambda route: route.url)
def test_docs_describe_each_field_that_is_taken_and_no_other(shared_gateway: Gateway, route: Route) -> None:
    with shared_gateway.http() as http:
        described = http.get("/openapi.json").json()["paths"][route.url]["post"]["requestBody"]
        assert http.get("/docs").status_code == 200

    schema = described["content"]["application/json"]["schema"]
    assert schema == body_schema(route)
    assert set(schema["properties"]) == {*route.fields, *route.off, *route.ignored, *HTTP_FIELDS}
    assert [name for name in route.fields if not schema["properties"][name]] == []
