"""``minilab-client tail``: the text of a job from any token on, and how it ended. No server is needed."""

from __future__ import annotations

import pytest
import redis
from rq.job import JobStatus
from support.client_program import (
    client,
    events,
    fake_redis,
    overdue,
    run,
    start,
    submit,
)

from minilab_gen.protocol import keys
from minilab_gen.protocol.events import EndReason
from minilab_gen.protocol.jobs import fetch

TEXTS = (" é", "", "tait\n", " là")


@pytest.fixture(autouse=True)
def connection(monkeypatch: pytest.MonkeyPatch) -> redis.Redis:
    """The fake Redis that the program uses."""
    return fake_redis(monkeypatch)


def test_tail_prints_the_text_of_an_ended_job_and_a_line_end(connection: redis.Redis) -> None:
    run(connection, "x", TEXTS)

    result = client("tail", "x")

    assert (result.exit_code, result.stdout, result.stderr) == (0, " était\n là\n", "")


def test_tail_begins_after_the_token_that_it_is_given(connection: redis.Redis) -> None:
    run(connection, "x", TEXTS)

    shown = events(client("tail", "x", "--from", "2", "--json"))

    assert [event["n"] for event in shown[:-1]] == [3, 4]


def test_two_tails_joined_at_any_token_are_the_whole(connection: redis.Redis) -> None:
    run(connection, "x", TEXTS)
    whole = events(client("tail", "x", "--json"))

    for place in range(len(TEXTS) + 1):
        assert whole[:place] + events(client("tail", "x", "--from", str(place), "--json")) == whole


def test_tail_from_behind_the_end_shows_only_the_end(connection: redis.Redis) -> None:
    run(connection, "x", TEXTS)

    (event,) = events(client("tail", "x", "--from", "99", "--json"))

    assert event == {"event": "end", "end": "length", "tokens": 4, "prompt_tokens": 3}


@pytest.mark.parametrize("place", ["-1", "abc", "1-", "5-5-5", "", "$", " 0", "+", "1.0", "1_0", "１", "²", "9" * 30])
def test_tail_refuses_a_start_that_is_no_token_number(monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    monkeypatch.setattr("minilab_gen.protocol.connection.connect", pytest.fail)

    result = client("tail", "x", "--from", place)

    assert (result.exit_code, result.stdout) == (2, "")
    assert f"got {place!r}" in result.stderr


def test_tail_shows_many_tokens_of_one_moment_in_order(connection: redis.Redis) -> None:
    run(connection, "x", [f"{n} " for n in range(2500)])

    assert client("tail", "x").stdout.split() == [str(n) for n in range(2500)]


@pytest.mark.parametrize(
    ("reason", "details", "code", "said"),
    [
        ("stop", {"stop_id": 103}, 0, ""),
        ("context", {}, 0, ""),
        ("cancelled", {}, 5, "job x was cancelled after 1 token\n"),
        (
            "timeout",
            {"phase": "running"},
            1,
            "error: job x ran out of time after 1 token; submit it again with a longer",
        ),
        ("error", {"error": "non-finite\nlogits"}, 1, "error: job x failed after 1 token: non-finite logits\n"),
    ],
)
@pytest.mark.parametrize("command", ["tail", "result"])
def test_the_exit_code_tells_how_the_job_ended(
    connection: redis.Redis, command: str, reason: EndReason, details: dict[str, str], code: int, said: str
) -> None:
    run(connection, "x", ["was"], reason, **details)

    result = client(command, "x")

    assert (result.exit_code, result.stdout) == (code, "was\n")
    assert result.stderr.startswith(said)
    assert result.stderr.count("\n") == bool(said)


def test_every_reader_is_told_the_stop_text(connection: redis.Redis) -> None:
    run(connection, "x", ["was", ""], "stop", stop_text="\n\nÀ")

    ends = [events(client(command, "x", "--json"))[-1] for command in ("tail", "result", "status")]

    assert [(end["end"], end["stop_text"], end["tokens"]) for end in ends] == [("stop", "\n\nÀ", 2)] * 3
    assert client("result", "x").stdout == client("tail", "x").stdout == "was\n"
    assert 'end      stop ("\\n\\nÀ")\n' in client("status", "x").stdout


def test_a_job_that_failed_before_its_first_token_prints_nothing(connection: redis.Redis) -> None:
    run(connection, "x", [], "error", error="no reason")

    assert client("tail", "x").stdout == client("result", "x").stdout == ""


def test_an_answer_without_text_is_an_empty_line(connection: redis.Redis) -> None:
    run(connection, "x", [""], "stop", stop_id=0)

    assert client("tail", "x").stdout == client("result", "x").stdout == "\n"


def test_the_rest_of_a_character_cut_short_is_shown(connection: redis.Redis) -> None:
    run(connection, "x", ["a", ""], text="�")

    assert client("tail", "x").stdout == client("result", "x").stdout == "a�\n"


def test_tail_of_a_job_that_waited_too_long_ends_with_expired(connection: redis.Redis) -> None:
    overdue(connection, "x")

    result = client("tail", "x")

    assert (result.exit_code, result.stdout) == (1, "")
    assert "job x expired" in result.stderr


def test_tail_of_a_job_that_failed_unread_ends_with_its_reason(connection: redis.Redis) -> None:
    submit(connection, "x")
    start(connection, "x")
    fetch(connection, "x").set_status(JobStatus.FAILED)

    result = client("tail", "x")

    assert result.exit_code == 1
    assert "job x failed after 0 tokens" in result.stderr


def test_tail_prints_a_stream_whose_job_is_forgotten(connection: redis.Redis) -> None:
    run(connection, "x", TEXTS)
    fetch(connection, "x").delete()

    result = client("tail", "x")

    assert (result.exit_code, result.stdout) == (0, " était\n là\n")


def test_a_stream_with_a_hole_is_not_shown_as_whole(connection: redis.Redis) -> None:
    run(connection, "x", TEXTS)
    connection.xdel(keys.token_stream("x"), "2-0")

    result = client("tail", "x")

    assert result.exit_code == 1
    assert result.stderr == "error: the stream has a gap: token 2 is missing\n"


def test_a_stream_that_expired_before_its_job_is_unknown(connection: redis.Redis) -> None:
    run(connection, "x", TEXTS)
    connection.delete(keys.token_stream("x"))

    for command in ("tail", "result"):
        result = client(command, "x")
        assert result.exit_code == 3
        assert "expired" in result.stderr
