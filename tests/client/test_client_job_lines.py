"""What ``jobs`` and ``status`` show of a job: how its prompt begins, how fast it is, and when."""

from __future__ import annotations

import json
import time
import zlib
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import fakeredis
import pytest
import redis
from minilab_client.times import ago, shown
from rq.job import Job
from support.client_program import client, fake_redis, run, start, submit, write

from minilab_gen.protocol.details import FIRST_IDS, details
from minilab_gen.protocol.submission import Submission, enqueue
from minilab_gen.request import GenerationRequest
from minilab_gen.text.tokenizer import get_tokenizer

NOON = datetime(2026, 11, 29, 12, tzinfo=UTC)


@pytest.fixture
def connection(monkeypatch: pytest.MonkeyPatch) -> redis.Redis:
    return fake_redis(monkeypatch)


def ask(connection: redis.Redis, job_id: str, text: str, model: str = "base") -> str:
    ids = tuple(get_tokenizer().encode(text))
    return enqueue(connection, GenerationRequest(ids), Submission(model, job_id))


def set_times(connection: redis.Redis, job_id: str, **times: datetime) -> None:
    for name, moment in times.items():
        connection.hset(Job.key_for(job_id), f"{name}_at", moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ"))


def only_row(*arguments: str) -> dict[str, Any]:
    (row,) = json.loads(client("jobs", "--json", *arguments).stdout)
    assert isinstance(row, dict)
    return row


def lines_of_status(*arguments: str) -> dict[str, str]:
    return dict(line.split(maxsplit=1) for line in client("status", "x", *arguments).stdout.splitlines())


def test_a_prompt_is_shown_by_its_beginning(connection: redis.Redis) -> None:
    ask(connection, "x", "Phileas Fogg\nétait")

    assert client("jobs").stdout.splitlines()[1].endswith("  Phileas Fogg était")
    assert (only_row()["prompt"], only_row()["prompt_tokens"]) == ("Phileas Fogg était", 4)
    assert lines_of_status()["prompt"] == "Phileas Fogg était  (4 tokens)"


def test_a_long_prompt_is_cut_and_counted(connection: redis.Redis) -> None:
    count = len(get_tokenizer().encode("Phileas Fogg " * 20))
    ask(connection, "x", "Phileas Fogg " * 20)

    prompt = only_row()["prompt"]

    assert prompt.startswith("Phileas Fogg Phileas")
    assert prompt.endswith("…")
    assert len(prompt) <= 60
    assert only_row()["prompt_tokens"] == count


def test_of_a_model_without_a_known_tokenizer_the_ids_are_counted(connection: redis.Redis) -> None:
    ask(connection, "x", "Phileas Fogg", model="other")

    assert client("jobs").stdout.splitlines()[1].endswith("  2 ids")
    assert (only_row()["prompt"], only_row()["prompt_tokens"]) == (None, 2)
    assert lines_of_status()["prompt"] == "2 ids"


def test_a_prompt_cannot_move_the_cursor(connection: redis.Redis) -> None:
    ask(connection, "x", "Phileas\x1b[2JFogg")

    assert "\x1b" not in client("jobs").stdout + client("status", "x").stdout


def test_a_job_tells_its_speed(connection: redis.Redis) -> None:
    run(connection, "x", ["a"] * 30)
    set_times(connection, "x", created=NOON, started=NOON + timedelta(seconds=2), ended=NOON + timedelta(seconds=12))

    assert only_row()["tokens_per_second"] == 3.0
    assert client("jobs").stdout.splitlines()[1].split()[5] == "3"
    assert lines_of_status()["speed"] == "3 tokens/s"


def test_a_running_job_tells_its_speed_so_far(connection: redis.Redis) -> None:
    submit(connection, "x")
    start(connection, "x")
    write(connection, "x", *["a"] * 30)
    set_times(connection, "x", started=datetime.now(UTC) - timedelta(seconds=100))

    seen = json.loads(client("status", "x", "--json").stdout)
    assert 0 < seen["tokens_per_second"] <= 0.3
    assert (seen["state"], seen["ended"]) == ("started", None)


def test_a_job_that_waits_has_no_speed(connection: redis.Redis) -> None:
    submit(connection, "x")

    assert only_row()["tokens_per_second"] is None
    assert "speed" not in lines_of_status()


@pytest.mark.parametrize(
    ("seconds", "seen"),
    [(-5, "0 s ago"), (3, "3 s ago"), (200, "3 min ago"), (7300, "2 h ago"), (200_000, "2 d ago")],
)
def test_an_age_is_shown_in_words(seconds: int, seen: str) -> None:
    assert ago(NOON, NOON + timedelta(seconds=seconds)) == seen


@pytest.fixture
def tokyo(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine nine hours before UTC."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "JST-9")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("tokyo")
def test_times_are_local_and_with_utc_in_utc(connection: redis.Redis) -> None:
    submit(connection, "x")
    set_times(connection, "x", created=NOON)

    assert "2026-11-29 21:00:00, " in client("jobs").stdout
    assert "2026-11-29 12:00:00Z, " in client("jobs", "--utc").stdout
    assert lines_of_status()["created"].startswith("2026-11-29 21:00:00, ")
    assert lines_of_status("--utc")["created"].startswith("2026-11-29 12:00:00Z, ")


def test_a_moment_of_today_is_shown_without_its_date() -> None:
    assert shown(NOON, NOON + timedelta(minutes=5), utc=True) == "12:00:00Z, 5 min ago"
    assert shown(NOON, NOON + timedelta(days=1), utc=True) == "2026-11-29 12:00:00Z, 1 d ago"


def test_only_the_jobs_that_are_shown_are_read(connection: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    for n in range(30):
        submit(connection, f"j{n}")
    read: list[str] = []
    pipeline = fakeredis.FakeRedis.pipeline

    def watched(self: Any, *arguments: Any, **named: Any) -> Any:
        made = pipeline(self, *arguments, **named)
        hget = made.hget

        def note(key: str, field: str) -> Any:
            read.extend([key] if field == "data" else [])
            return hget(key, field)

        monkeypatch.setattr(made, "hget", note)
        return made

    monkeypatch.setattr(fakeredis.FakeRedis, "pipeline", watched)

    client("jobs", "--limit", "3")

    assert sorted(read) == ["rq:job:j27", "rq:job:j28", "rq:job:j29"]


def test_of_the_longest_prompt_only_the_first_ids_are_read(connection: redis.Redis) -> None:
    enqueue(connection, GenerationRequest(tuple(range(131_072))), Submission(job_id="x"))

    (found,) = details(connection, ["x"])

    assert found.first_ids == tuple(range(FIRST_IDS))
    assert found.prompt_tokens == 131_072


@pytest.mark.parametrize(
    "data", [b"", b"nonsense", zlib.compress(b"nonsense"), zlib.compress(b'[null, {"prompt": ["a"]}]'), b'{"prompt": [']
)
def test_a_damaged_record_is_shown_as_far_as_it_can_be(connection: redis.Redis, data: bytes) -> None:
    submit(connection, "x")
    connection.hset(Job.key_for("x"), mapping={"data": data, "started_at": "yesterday", "description": "é"})

    (row,) = json.loads(client("jobs", "--json").stdout)

    assert (row["job_id"], row["prompt"], row["prompt_tokens"], row["tokens_per_second"]) == ("x", None, None, None)


def test_an_id_that_is_cut_is_not_taken_for_a_shorter_one(connection: redis.Redis) -> None:
    submit(connection, "x")
    filler = "x" * (2048 - len('["f", null, ["'))
    cut = f'["f", null, ["{filler[:-20]}", {{"prompt": [1, 234567, 8]'
    connection.hset(Job.key_for("x"), "data", zlib.compress(cut.encode()))

    (found,) = details(connection, ["x"])

    assert found.first_ids in ((), (1,))
