"""``minilab-worker --model file.gguf``, as it is typed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis
import torch
from support.client_process import environment
from support.client_program import client
from support.family_checkpoints import Kind
from support.gguf_bytes import Draft, Tensor
from support.gguf_files import Content, Type, Written, byte_level_tokens, write_gguf
from support.tokenizer_kinds import llama_3
from support.waiting import LIMIT, wait_until
from support.worker_process import start_of_worker

from minilab_gen.models.source import checkpoint_of
from minilab_gen.protocol.cards import announced_card
from minilab_gen.text.chat import Conversation

pytestmark = pytest.mark.slow

NOWHERE = "unix:///nowhere/redis.sock"

_PEAK = """
import atexit, re
from minilab_worker.cli import main
atexit.register(lambda: print(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]))
main()
"""
"""Says how many kilobytes the program took at most; what rusage says begins with what its parent has."""


@pytest.fixture
def written(tmp_path: Path) -> Written:
    template = "{% for m in messages %}{{ m.content }}<|eot_id|>{% endfor %}"
    tokens = byte_level_tokens(llama_3(), "llama-bpe", bos_token_id=0, eos_token_id=1)
    content = Content(lambda name: Type.Q8_0, {"tokenizer.chat_template": template})
    return write_gguf(tmp_path / "Tiny.Q8_0.gguf", Kind("Llama", {"intermediate_size": 96}), tokens, content)


@contextmanager
def worker(path: Path, connection: redis.Redis, url: str) -> Iterator[None]:
    """A worker of a file, announced."""
    command = [sys.executable, "-m", "minilab_worker", "--model", str(path), "--threads", "1", "--quiet"]
    process = subprocess.Popen(command, env=environment(url), stdin=subprocess.DEVNULL)
    try:
        wait_until(lambda: announced_card(connection, "Tiny.Q8_0") is not None)
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT) == 0


def test_a_chat_with_a_file_has_the_tokens_of_transformers(
    written: Written, server: redis.Redis, server_url: str
) -> None:
    with worker(written.path, server, server_url):
        answer = client(
            "submit", "--chat", "Fogg", "--model", "Tiny.Q8_0", "--max-new-tokens", "12", "--follow", "--json"
        )
    assert answer.exit_code == 0, answer.output
    events = [json.loads(line) for line in answer.stdout.splitlines()]
    tokens = [event["id"] for event in events if "id" in event and "text" in event]

    checkpoint = checkpoint_of(written.path)
    chat = checkpoint.chat_format()
    assert chat is not None
    ids = chat.prompt(Conversation.of("Fogg"), checkpoint.tokenizer())
    assert tokens
    for token in tokens:
        with torch.no_grad():
            assert token == written.model(torch.tensor([ids])).logits[0, -1, :330].argmax()
        ids.append(token)


def test_a_file_that_is_cut_short_is_refused_before_redis_is_asked(written: Written) -> None:
    os.truncate(written.path, written.path.stat().st_size - 100_000)

    code, said = start_of_worker("--model", str(written.path), url=NOWHERE)

    assert (code, said.count("\n")) == (2, 1)
    assert "is cut short or damaged: " in said


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="nothing says how much memory was taken")
def test_a_crafted_file_costs_neither_time_nor_memory(tmp_path: Path) -> None:
    path = tmp_path / "crafted.gguf"
    path.write_bytes(Draft(tensors=[Tensor("output.weight", (2**42 + 1, 2**20), data=bytes(64))]).file())
    start = time.monotonic()

    ended = subprocess.run(
        [sys.executable, "-c", _PEAK, "--model", str(path)],
        env=environment(NOWHERE),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )

    assert (ended.returncode, ended.stderr.count("\n")) == (2, 1), ended.stderr
    assert "output.weight" in ended.stderr
    assert int(ended.stdout) < 100_000  # kilobytes
    assert time.monotonic() - start < LIMIT


def test_a_file_that_is_not_there_is_no_model_of_the_hub() -> None:
    code, said = start_of_worker("--model", "models/nowhere.gguf", url=NOWHERE)

    assert (code, said.count("\n")) == (2, 1)
    assert said.endswith("there is no file models/nowhere.gguf\n")
