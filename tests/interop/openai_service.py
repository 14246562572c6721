"""A service behind OpenAI's routes: the base model, and a small one that chats, whose gateway asks for keys."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx2 as httpx
import redis
from chaos.server import Server
from gateway.gateway_process import Gateway
from support.own_service import LIMIT
from support.waiting import wait_until

from minilab_gen.protocol.cards import all_cards
from minilab_gen.text.tokenizer import BASE_CHECKPOINT

CHAT_MODEL: Final = "SmolLM2-135M-Instruct"
"""The name that the pages use; here it is the base model's, which has the markers of chats."""

TEMPLATE: Final = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

REQUESTS_PER_MINUTE: Final = 6
"""Of the key that has a limit: fewer than a program sends on the most loaded machine, and a retry waits ten seconds."""

_PROGRAM_LIMIT: Final = 240.0
"""Seconds for a program of others: a loaded machine takes ten times as long as an idle one."""


@dataclass(frozen=True, slots=True)
class OpenAIService:
    """Where it is, and a folder for what programs need."""

    url: str
    locked_url: str
    """Of the gateway that asks for keys."""
    key: str
    """One that has a limit."""
    connection: redis.Redis
    folder: Path

    def completion(self, prompt: str, **fields: Any) -> str:
        """What the base model answers to the pages' settings."""
        body = {"model": "base", "prompt": prompt, "max_tokens": 20, "temperature": 0, **fields}
        return str(self._ask("/v1/completions", body)["text"])

    def chat(self, content: str, **fields: Any) -> str:
        """What the model that chats answers."""
        messages = [{"role": "user", "content": content}]
        body = {"model": CHAT_MODEL, "messages": messages, "max_tokens": 20, "temperature": 0, **fields}
        return str(self._ask("/v1/chat/completions", body)["message"]["content"])

    def _ask(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        answer = httpx.post(f"{self.url}{path}", json=body, timeout=60).raise_for_status()
        choice: dict[str, Any] = answer.json()["choices"][0]
        return choice

    def run(self, command: Sequence[str | Path], folder: Path | None = None, **variables: str) -> str:
        """What a program prints; it must end well, and reads nothing from other machines."""
        settings = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(self.folder / "hub")}
        settings |= {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "NO_PROXY": "127.0.0.1", "HOME": str(self.folder)}
        kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "OPENAI_API_KEY")}
        ended = subprocess.run(
            list(map(str, command)),
            cwd=folder or self.folder,
            env=kept | settings | variables,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_PROGRAM_LIMIT,
            check=False,
        )
        assert ended.returncode == 0, f"{command}\n{ended.stdout[-2000:]}\n{ended.stderr[-4000:]}"
        return ended.stdout


def write_chat_model(folder: Path) -> Path:
    """The base model with a chat template."""
    model = folder / CHAT_MODEL
    shutil.copytree(BASE_CHECKPOINT, model)
    settings = json.loads((model / "tokenizer_config.json").read_text(encoding="utf-8"))
    settings |= {"chat_template": TEMPLATE, "eos_token": "<|im_end|>"}
    (model / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    return model


def _new_key() -> tuple[str, str]:
    """A key, and its line in a file of keys."""
    command = [sys.executable, "-m", "minilab_gateway", "key", "alice"]
    made = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=True).stdout
    key, line = (said.partition(": ")[2] for said in made.splitlines())
    return key, line


@contextmanager
def openai_service(folder: Path) -> Iterator[OpenAIService]:
    """Run it for the time of a block."""
    key, line = _new_key()
    keys = folder / "keys"
    keys.write_text(f"{line} requests-per-minute={REQUESTS_PER_MINUTE}\n", encoding="utf-8")
    chat_model = str(write_chat_model(folder))
    with Server(folder) as server, server.connect() as connection:
        plain = Gateway(server.url, folder / "gateway.log", "--with-worker")
        chats = ("--with-worker", "--model", chat_model, "--api-keys", str(keys))
        with plain, Gateway(server.url, folder / "locked.log", *chats) as locked:
            wait_until(lambda: len(all_cards(connection)) == 2, LIMIT)
            yield OpenAIService(plain.url, locked.url, key, connection, folder)
