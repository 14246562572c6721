"""``minilab-client`` whatever the command: without Redis, with its address anywhere, its help. No server is needed."""

from __future__ import annotations

import pytest
import redis
from minilab_client.cli import main
from support.client_program import announce_worker, client, fake_redis, refusal

from minilab_gen.errors import RedisUnavailableError


@pytest.fixture(autouse=True)
def connection(monkeypatch: pytest.MonkeyPatch) -> redis.Redis:
    """The fake Redis that the program uses, with a worker for what is submitted."""
    connection = fake_redis(monkeypatch)
    announce_worker(connection)
    return connection


def test_an_unknown_option_is_one_line_on_stderr() -> None:
    assert "see minilab-client submit --help" in refusal("Phileas Fogg", "--temprature", "1")


def test_no_redis_is_one_line_and_its_own_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    def connect(url: str | None) -> redis.Redis:
        raise RedisUnavailableError("no Redis answers\n  start one")

    monkeypatch.setattr("minilab_gen.protocol.connection.connect", connect)

    result = client("submit", "Phileas Fogg")

    assert (result.exit_code, result.stdout, result.stderr) == (4, "", "error: no Redis answers start one\n")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (redis.ConnectionError("Connection closed by server."), "error: Redis was lost: Connection closed by server;"),
        (redis.TimeoutError("Timeout reading"), "error: Redis was lost: Timeout reading;"),
        (redis.ReadOnlyError("READONLY You can't write"), "error: Redis only serves readers: READONLY"),
        (
            redis.OutOfMemoryError("Command # 1 (HSET rq:job:x secret) of pipeline caused error: OOM not allowed"),
            "error: Redis is full: OOM not allowed;",
        ),
    ],
)
def test_redis_failing_in_the_middle_is_one_line_with_its_reason(
    monkeypatch: pytest.MonkeyPatch, error: redis.RedisError, said: str
) -> None:
    def fail(*_: object) -> str:
        raise error

    monkeypatch.setattr("minilab_gen.protocol.submission.enqueue", fail)

    result = client("submit", "Phileas Fogg")

    assert (result.exit_code, result.stdout) == (4, "")
    assert result.stderr.startswith(said)
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "arguments", [("--redis-url", "redis://here", "jobs"), ("jobs", "--redis-url", "redis://here")]
)
def test_the_redis_url_may_stand_before_or_after_the_command(
    monkeypatch: pytest.MonkeyPatch, connection: redis.Redis, arguments: tuple[str, ...]
) -> None:
    asked = []

    def connect(url: str | None) -> redis.Redis:
        asked.append(url)
        return connection

    monkeypatch.setattr("minilab_gen.protocol.connection.connect", connect)

    client(*arguments, MINILAB_REDIS_URL="redis://elsewhere")

    assert asked == ["redis://here"]


@pytest.mark.parametrize("command", main.commands)
def test_the_help_of_every_command_has_an_example(command: str) -> None:
    result = client(command, "--help")

    assert result.exit_code == 0
    assert f"  minilab-client {command}" in result.stdout.partition("Example")[2]


def test_the_program_without_a_command_shows_its_help_as_bad_usage() -> None:
    result = client()

    assert result.exit_code == 2
    assert "Commands:" in result.stderr


def test_the_version_is_shown() -> None:
    assert client("--version").stdout.startswith("minilab-client ")
