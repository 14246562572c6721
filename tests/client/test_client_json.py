"""``--json``: errors, batches and looks at the service are JSON, too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import redis
from click.testing import Result
from support.client_program import announce_worker, client, end, fake_redis, run, start, submit, write

from minilab_gen.errors import RedisUnavailableError


@pytest.fixture(autouse=True)
def connection(monkeypatch: pytest.MonkeyPatch) -> redis.Redis:
    return fake_redis(monkeypatch)


def error_of(result: Result) -> dict[str, Any]:
    """The error on stderr, which is one line of strict JSON."""
    *_, last = result.stderr.splitlines()
    seen: dict[str, dict[str, Any]] = json.loads(last, parse_constant=pytest.fail)
    assert set(seen) == {"error"}
    assert set(seen["error"]) == {"type", "message"}
    assert not seen["error"]["message"].startswith("error: ")
    return seen["error"]


@pytest.mark.parametrize(
    ("arguments", "code", "kind"),
    [
        (("status", "nope", "--json"), 3, "UnknownJobError"),
        (("result", "nope", "--format", "json"), 3, "UnknownJobError"),
        (("result", "nope", "--format=json"), 3, "UnknownJobError"),
        (("tail", "x", "--json", "--from", "abc"), 2, "UsageError"),
        (("tail", "x", "--json", "--bogus"), 2, "UsageError"),
        (("nonsense", "--json"), 2, "UsageError"),
        (("--bogus", "jobs", "--json"), 2, "UsageError"),
        (("submit", "a", "--json", "--top-p", "0"), 2, "RequestError"),
        (("submit", "a", "--json", "--model", "other"), 2, "UnknownModelError"),
        (("retry", "nope", "--json"), 3, "UnknownJobError"),
        (("cancel", "nope", "--json"), 3, "UnknownJobError"),
    ],
)
def test_an_error_is_json_where_json_was_asked_for(arguments: tuple[str, ...], code: int, kind: str) -> None:
    result = client(*arguments)

    assert (result.exit_code, result.stdout) == (code, "")
    assert error_of(result)["type"] == kind


def test_an_error_is_for_people_where_json_is_only_a_text() -> None:
    assert client("status", "--", "--json").stderr.startswith("error: ")


def test_a_redis_that_is_away_is_json_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RedisUnavailableError("no Redis answers")

    monkeypatch.setattr("minilab_gen.protocol.connection.connect", fail)

    result = client("jobs", "--json")

    assert result.exit_code == 4
    assert error_of(result) == {"type": "RedisUnavailableError", "message": "no Redis answers"}


@pytest.mark.parametrize(
    ("reason", "details", "code", "kind"),
    [
        ("error", {"error": "out of\nluck"}, 1, "JobFailedError"),
        ("timeout", {"phase": "running"}, 1, "JobTimeoutError"),
        ("timeout", {"phase": "waiting"}, 1, "JobTimeoutError"),
        ("cancelled", {}, 5, "JobCancelledError"),
    ],
)
def test_a_job_that_ended_badly_is_json_on_stderr_beside_its_events(
    connection: redis.Redis, reason: Any, details: dict[str, str], code: int, kind: str
) -> None:
    run(connection, "x", ["a"], reason, **details)

    result = client("tail", "x", "--json")

    assert result.exit_code == code
    assert error_of(result)["type"] == kind
    assert [json.loads(line)["event"] for line in result.stdout.splitlines()] == ["token", "end"]


def test_a_wait_that_is_over_is_json_too(connection: redis.Redis) -> None:
    submit(connection, "x")
    start(connection, "x")

    for arguments in (("result", "x", "--json"), ("tail", "x", "--json", "--wait", "0")):
        assert error_of(client(*arguments))["type"] == "NotEndedError"


def test_the_help_says_where_errors_go() -> None:
    assert '{"error": {"type": ..., "message": ...}}' in " ".join(client("--help").stdout.split())


def test_a_batch_prints_its_outcome_once(connection: redis.Redis, tmp_path: Path) -> None:
    file, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    file.write_text('{"custom_id": "a"}\nnonsense\n')

    result = client("batch", str(file), "--output", str(out), "--json")

    assert result.exit_code == 2
    seen = json.loads(result.stdout)
    assert seen.pop("seconds") >= 0
    assert seen == {
        "total": 2,
        "kept": 0,
        "answered": 0,
        "failed": 0,
        "refused": 2,
        "tokens": 0,
        "output": str(out),
        "errors": str(tmp_path / "out.errors.jsonl"),
        "interrupted": False,
    }


def test_a_look_at_the_service_is_one_object(connection: redis.Redis) -> None:
    announce_worker(connection)
    submit(connection, "waiting")
    submit(connection, "x")
    start(connection, "x")
    write(connection, "x", "a", "b")
    run(connection, "y", ["a"])
    end(connection, "y", 1)

    result = client("watch", "--once", "--json")

    assert (result.exit_code, result.stderr) == (0, "")
    look = json.loads(result.stdout, parse_constant=pytest.fail)
    assert (look["queued"], look["fleet"]["up"]) == (1, 1)
    assert [model["name"] for model in look["models"]] == ["base"]
    assert [job["job_id"] for job in look["ended"]] == ["y"]
