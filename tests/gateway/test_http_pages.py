"""docs/http: the snippets for curl and Python run as they stand; what needs other programs is run by make interop."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import redis
from interop.openai_service import CHAT_MODEL, write_chat_model
from interop.snippets import snippets, without_installing
from minilab_worker.serving import ServedModel, load_served_model
from minilab_worker.worker import Worker, WorkerSettings
from support.waiting import wait_until

from gateway.gateway_process import Gateway
from gateway.test_http_document import run
from minilab_gen.protocol import keys
from minilab_gen.protocol.cards import all_cards
from minilab_gen.text.tokenizer import BASE_CHECKPOINT

BETWEEN = "=" * 20
ORIGIN = "http://localhost:3000"
DOCS = Path(__file__).parent.parent.parent / "docs"


@pytest.fixture(scope="module")
def models_of_pages(tmp_path_factory: pytest.TempPathFactory) -> list[ServedModel]:
    """The two models that the pages name."""
    folders = {"base": BASE_CHECKPOINT, CHAT_MODEL: write_chat_model(tmp_path_factory.mktemp("pages"))}
    return [load_served_model(folder, name, max_batch=8, threads=1) for name, folder in folders.items()]


@pytest.fixture(scope="module")
def idle_gateway(server_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """A gateway for a page of another origin, too."""
    with Gateway(server_url, tmp_path_factory.mktemp("gateway") / "log", "--cors-origin", ORIGIN) as started:
        yield started


@pytest.fixture
def pages_gateway(idle_gateway: Gateway, server: redis.Redis, models_of_pages: list[ServedModel]) -> Iterator[Gateway]:
    """The same with a worker of each model."""
    with ExitStack() as stack:
        for model in models_of_pages:
            worker = Worker(WorkerSettings(tuple(keys.queue_names(model.card.name)), max_batch=8), model)
            thread = threading.Thread(target=worker.serve)
            thread.start()
            stack.callback(thread.join)
            stack.callback(worker.stop)
        wait_until(lambda: [card.chat is not None for card in all_cards(server)] == [True, False])
        yield idle_gateway


def test_the_curl_page_runs(pages_gateway: Gateway) -> None:
    plain, chat, form, stream, resume, retry = snippets("curl", "sh")

    assert '"object":"text_completion"' in run(pages_gateway, "bash", "-ec", plain)
    assert '"object":"chat.completion"' in run(pages_gateway, "bash", "-ec", chat)
    assert '"complete":true' in run(pages_gateway, "bash", "-ec", form)
    streamed = run(pages_gateway, "bash", "-ec", stream)
    (name, *_) = re.findall(r'"id":"(cmpl-\w+)"', streamed)
    resumed = run(pages_gateway, "bash", "-ec", resume, ID=name)
    assert resumed.startswith("id: 13\ndata: {")
    assert streamed.endswith(resumed.partition("data: [DONE]")[0] + "data: [DONE]\n\n")
    assert '"object":"completion.cancelled"' in resumed
    assert run(pages_gateway, "bash", "-ec", retry) == run(pages_gateway, "bash", "-ec", retry)


def test_the_python_page_runs(pages_gateway: Gateway) -> None:
    program = f"\nprint('{BETWEEN}')\n".join(snippets("python", "python"))  # importing openai takes long

    printed = run(pages_gateway, sys.executable, "-W", "error", "-c", program)

    first, streams, structured, tools, going_on = printed.split(f"{BETWEEN}\n")
    assert first.strip()
    assert "CompletionUsage(completion_tokens=" in streams
    assert re.fullmatch(r"name='(Paris|Londres|Suez)' large=(True|False)\n", structured)
    assert tools.startswith("ChatCompletionMessage(content=")
    assert "id: 6\ndata: {" in going_on


def test_the_page_about_pages_runs_and_other_origins_may_read_the_answers(pages_gateway: Gateway) -> None:
    start, ask = snippets("open-webui", "sh")

    models, _, chat = run(pages_gateway, "bash", "-ec", ask).partition("data: ")
    with pages_gateway.http() as http:
        answer = http.get("/v1/models", headers={"Origin": ORIGIN})

    assert f'"id":"{CHAT_MODEL}"' in models
    assert chat.endswith("data: [DONE]\n\n")
    assert '"usage":{"prompt_tokens":' in chat
    assert start == f"minilab-gateway --cors-origin {ORIGIN}\n"
    assert answer.headers["access-control-allow-origin"] == ORIGIN


def test_the_document_names_each_page() -> None:
    document = (DOCS / "http.md").read_text(encoding="utf-8")

    assert [page.stem for page in (DOCS / "http").glob("*.md") if f"(http/{page.name})" not in document] == []


def test_what_installs_is_left_out_and_nothing_else() -> None:
    assert without_installing("pip install x\nnpm install y\nllm -m z\n") == "llm -m z\n"
