"""What commands print stays whole, whatever stdout can carry and whatever a model says."""

from __future__ import annotations

import io

import pytest
import redis
from minilab_client.output import flush, write_json
from minilab_client.output import write as write_text
from support.client_program import (
    client,
)

TEXTS = (" é", "", "tait\n", " là")
JOB_COMMANDS = ("tail", "status", "result", "cancel", "retry", "verify")


# output


def test_json_stays_whole_where_stdout_cannot_carry_its_letters(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(raw, encoding="ascii"))

    write_json({"text": "é"})
    flush()

    assert raw.getvalue() == b'{"text": "\\u00e9"}\n'


def test_a_terminal_is_not_at_the_mercy_of_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr("sys.stdout", terminal)

    write_text("a\x1b[2J\tb\n")

    assert terminal.getvalue() == "a�[2J\tb\n"


def test_a_prompt_that_is_too_long_is_refused_before_it_is_read_whole(connection: redis.Redis) -> None:
    result = client("submit", "-", stdin=b"x" * 4_000_001)

    assert result.exit_code == 2
    assert "a prompt must hold at most 1000000 characters, got more" in result.stderr
