"""``minilab-worker`` as it is typed: its help, its variables, and one line for whatever was typed wrong."""

from __future__ import annotations

import sys

import click
import pytest
from minilab_worker import cli
from support.worker_process import start_of_worker

WORKER_COMMANDS = [[], ["redis"], ["redis", "status"], ["health"]]


def typed(monkeypatch: pytest.MonkeyPatch, *arguments: str, **variables: str) -> int | str | None:
    """The exit code of the program, which runs in this process."""
    monkeypatch.setattr(sys, "argv", ["minilab-worker", *arguments])
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return ended.value.code


@pytest.mark.parametrize("command", WORKER_COMMANDS, ids=" ".join)
def test_h_shows_the_same_as_help(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    assert typed(monkeypatch, *command, "--help") == 0
    shown = capsys.readouterr().out

    assert typed(monkeypatch, *command, "-h") == 0
    assert capsys.readouterr().out == shown
    assert shown.startswith("Usage: minilab-worker")


def test_the_help_names_the_variable_of_each_option(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    typed(monkeypatch, "-h")
    shown = " ".join(capsys.readouterr().out.split())

    options = [each for each in cli.program.params if isinstance(each, click.Option) and not each.hidden]
    options = [each for each in options if each.name != "version"]
    assert len(options) > 15
    assert shown.count("[env var: MINILAB_") == len(options)
    for named in ("MINILAB_REDIS_URL", "MINILAB_CHECKPOINT", "MINILAB_MAX_BATCH", "MINILAB_QUEUES"):
        assert f"[env var: {named}" in shown


def test_a_variable_that_the_help_names_counts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert typed(monkeypatch, MINILAB_MAX_BATCH="0") == 2

    assert "Invalid value for '--max-batch'" in capsys.readouterr().err


@pytest.mark.slow
def test_a_version_in_the_environment_is_no_option() -> None:
    code, said = start_of_worker("--model", "/nope", url="", MINILAB_VERSION="1.2.3")

    assert (code, "there is no folder /nope" in said) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--max-btach", "3"], "error: No such option '--max-btach'"),
        (["--max-batch", "0"], "error: Invalid value for '--max-batch': 0 is not in the range 1<=x<=1024; see minilab"),
        (["nonsense"], "error: No such command 'nonsense'; see minilab-worker --help"),
        (["redis", "nonsense"], "error: No such command 'nonsense'; see minilab-worker redis --help"),
        (["health"], "error: Missing option '--lease-file'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_was_typed_wrong_is_one_line_as_the_client_has_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str], line: str
) -> None:
    assert typed(monkeypatch, *arguments) == 2

    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(line)
    assert said.err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--model", "/nope"], "error: a checkpoint must be a folder"),
        (["--name", "a b"], "error: a model name must be"),
        (["--redis-url", "nonsense"], "error: a Redis URL must begin with"),
    ],
    ids=["model", "name", "address"],
)
@pytest.mark.slow
def test_what_can_never_be_served_is_one_line_of_the_same_form(arguments: list[str], line: str) -> None:
    code, said = start_of_worker(*arguments, url="")

    assert (code, said.count("\n")) == (2, 1)
    assert said.startswith(line)
