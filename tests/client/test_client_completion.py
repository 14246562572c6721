"""What ``minilab-client`` tells a shell that completes what is typed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import redis
from click.shell_completion import get_completion_class
from minilab_client.cli import main
from minilab_client.completion import SHELLS
from support.client_program import client, fake_redis

from minilab_gen.protocol.cards import ModelCard, publish_card
from minilab_gen.text.tokenizer import get_tokenizer


def completed(*words: str) -> list[str]:
    """What the last word may become."""
    kind = get_completion_class("bash")
    assert kind is not None
    *before, typed = words
    return [str(item.value) for item in kind(main, {}, "minilab-client", "").get_completions(before, typed)]


@pytest.mark.parametrize("shell", SHELLS)
def test_each_shell_gets_a_script_that_asks_the_program(shell: str) -> None:
    result = client("completion", shell)

    assert (result.exit_code, result.stderr) == (0, "")
    assert f"_MINILAB_CLIENT_COMPLETE={shell}_complete" in result.stdout
    assert "_minilab_client_completion" in result.stdout


def test_another_shell_is_refused() -> None:
    assert client("completion", "tcsh").exit_code == 2


def test_a_real_bash_completes_a_command(tmp_path: Path) -> None:
    program = tmp_path / "minilab-client"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m minilab_client "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    script = """
        eval "$(minilab-client completion bash)"
        COMP_WORDS=(minilab-client ver) COMP_CWORD=1
        _minilab_client_completion minilab-client ver minilab-client
        echo "${COMPREPLY[@]}"
    """
    folders = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"

    done = subprocess.run(
        ["bash", "-c", script],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PATH": folders, "PYTHONPATH": os.pathsep.join(sys.path)},
    )

    assert (done.stdout, done.stderr) == ("verify\n", "")


def test_commands_options_and_choices_are_completed() -> None:
    assert completed("re") == ["result", "retry"]
    assert "--all-queued" in completed("cancel", "--")
    assert completed("jobs", "--state", "f") == ["finished", "failed"]


@pytest.mark.parametrize("command", ["submit", "jobs", "cancel", "verify"])
def test_models_are_completed_by_their_cards(monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    connection: redis.Redis = fake_redis(monkeypatch)
    monkeypatch.setenv("MINILAB_REDIS_URL", "redis://here")
    for name in ("other", "old", "new"):
        card = ModelCard(name, 64, 2048, (0,), "f" * 16, "exact", "t" * 32)
        publish_card(connection, card, get_tokenizer().to_json())

    assert completed(command, "--model", "o") == ["old", "other"]
    assert completed(command, "--model", "") == ["base", "new", "old", "other"]


def test_without_a_redis_nothing_is_started_and_nothing_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("MINILAB_REDIS_URL", raising=False)
    monkeypatch.setenv("MINILAB_HOME", str(tmp_path))
    assert completed("submit", "--model", "") == ["base"]
    assert list(tmp_path.iterdir()) == []

    monkeypatch.setenv("MINILAB_REDIS_URL", "unix:///nowhere/redis.sock")

    assert completed("submit", "--model", "") == ["base"]
