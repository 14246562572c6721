"""``minilab-gateway`` as a process of its own, on a real socket. It must not hold a test."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Self

import httpx2 as httpx
import openai
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from pydantic import BaseModel
from support.waiting import LIMIT, wait_until


class Gateway:
    """A gateway process, ready to answer; ended at the end of a ``with`` block."""

    def __init__(self, url: str, log: Path, *options: str, **variables: str) -> None:
        self._log, self._clients = log, ExitStack()
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "minilab_gateway", "--port", "0", *options],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, "MINILAB_REDIS_URL": url, "PYTHONPATH": os.pathsep.join(sys.path), **variables},
            )

    def __enter__(self) -> Self:
        try:
            wait_until(lambda: self._address() or self.process.poll() is not None, 4 * LIMIT)
            assert self.process.poll() is None, self.said
            wait_until(self._listens, LIMIT)  # it says where before it does
        except BaseException:
            self.process.kill()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._clients.close()
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(2 * LIMIT)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.process.wait()

    @property
    def said(self) -> str:
        return self._log.read_text(encoding="utf-8", errors="replace")

    @property
    def url(self) -> str:
        found = self._address()
        assert found is not None
        return found

    def _address(self) -> str | None:
        found = re.search(r"https?://[^ /]+", self.said)
        return found[0] if found else None

    def _listens(self) -> bool:
        try:
            return httpx.get(f"{self.url}/health").status_code == 200
        except httpx.TransportError:
            return False

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def client(self, key: str = "none", **options: Any) -> openai.OpenAI:
        """OpenAI's client, closed with the gateway."""
        client = openai.OpenAI(base_url=f"{self.url}/v1", api_key=key, **{"max_retries": 0, **options})
        return self._clients.enter_context(client)

    def async_client(self, key: str = "none", **options: Any) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(base_url=f"{self.url}/v1", api_key=key, **{"max_retries": 0, **options})

    def complete(self, **asked: Any) -> Completion:
        """A whole completion; its extra parameters need no types here."""
        create: Any = self.client().completions.create
        answer = create(**asked)
        assert isinstance(answer, Completion)
        return answer

    def chunks(self, **asked: Any) -> list[Completion]:
        """All of a stream."""
        create: Any = self.client().completions.create
        return list(create(**asked, stream=True))

    def chat(self, **asked: Any) -> ChatCompletion:
        """A whole answer in a chat."""
        create: Any = self.client().chat.completions.create
        answer = create(**asked)
        assert isinstance(answer, ChatCompletion)
        return answer

    def chat_chunks(self, **asked: Any) -> list[ChatCompletionChunk]:
        """All of its stream."""
        create: Any = self.client().chat.completions.create
        return list(create(**asked, stream=True))

    def http(self, **options: Any) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=60, **options)

    def figure(self, name: str) -> float:
        """A figure of /metrics without labels."""
        found = re.search(rf"^{name} ([0-9.e+]+)$", httpx.get(f"{self.url}/metrics").text, re.MULTILINE)
        assert found is not None, name
        return float(found[1])


def extra(part: BaseModel, name: str) -> Any:
    """A field that OpenAI's types do not have."""
    return (part.model_extra or {})[name]


@contextmanager
def stream_of(client: httpx.Client, path: str, body: dict[str, Any], **options: Any) -> Iterator[Iterator[str]]:
    """The lines of a stream, as they come."""
    with client.stream("POST", path, json={**body, "stream": True}, **options) as response:
        assert response.status_code == 200, response.read()
        yield response.iter_lines()


def events_in(raw: str) -> list[tuple[str | None, Any]]:
    """The events of a whole stream: their ids, and what stands in their data."""
    events = []
    for block in filter(None, raw.split("\n\n")):
        fields = dict(line.split(": ", 1) for line in block.split("\n") if line and line[0] != ":")
        if "data" in fields:
            data = fields["data"]
            events.append((fields.get("id"), data if data == "[DONE]" else json.loads(data)))
    return events
