"""``minilab-worker redis``: the private server is started, shown and stopped by its commands."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from minilab_worker.cli import program

from minilab_gen.protocol import embedded

pytestmark = pytest.mark.usefixtures("home")


def redis_command(*words: str) -> Result:
    """``minilab-worker redis ...``, through the program, which says how --help is spelled: click keeps the first."""
    return CliRunner().invoke(program, ["redis", *words])


def test_the_redis_commands_start_show_and_stop() -> None:
    assert redis_command("status").exit_code == 4
    started = redis_command("start", "--json")
    assert started.exit_code == 0
    shown = redis_command("status", "--json")
    assert shown.exit_code == 0
    assert json.loads(shown.stdout) == json.loads(started.stdout)
    assert json.loads(shown.stdout)["pid"] == embedded.status().pid
    assert "stopped" in redis_command("stop").stdout
    assert json.loads(redis_command("stop", "--json").stdout) == {"stopped": False}
    gone = redis_command("status", "--json")
    assert gone.exit_code == 4
    assert json.loads(gone.stdout)["running"] is False


@pytest.mark.usefixtures("no_wheel")
def test_the_start_command_without_a_program_exits_with_4(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(home))
    ran = redis_command("start")
    assert ran.exit_code == 4
    assert ran.stderr.startswith("error: no Redis to start")


def test_the_commands_say_when_another_server_is_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINILAB_REDIS_URL", "redis://me:secret@host")
    ran = redis_command("status")
    assert "redis://***@host" in ran.stderr
    assert "secret" not in ran.output
