"""``--wait SECONDS``: a reader that waits for so long, and no longer, and what it says then."""

from __future__ import annotations

import pytest
import redis
from support.client_program import client, end, fake_redis, run, start, submit, write

from minilab_gen.errors import NotEndedError
from minilab_gen.protocol import tail as tails


@pytest.fixture(autouse=True)
def connection(monkeypatch: pytest.MonkeyPatch) -> redis.Redis:
    return fake_redis(monkeypatch)


def running(connection: redis.Redis, *texts: str) -> None:
    submit(connection, "x")
    start(connection, "x")
    write(connection, "x", *texts)


def test_a_tail_shows_what_there_is_by_the_end_of_its_wait(connection: redis.Redis) -> None:
    running(connection, "a", "b")

    result = client("tail", "x", "--wait", "0.1")

    assert (result.exit_code, result.stdout) == (124, "ab")
    *_, last = result.stderr.splitlines()
    assert last == ("error: job x has not ended within 0.1 s; it goes on, read on with: minilab-client tail x --from 2")


@pytest.mark.parametrize("wait", ["0", "60"])
def test_a_tail_of_an_ended_job_waits_for_nothing(connection: redis.Redis, wait: str) -> None:
    run(connection, "x", ["a"] * 2500)  # more than one read brings

    result = client("tail", "x", "--wait", wait)

    assert (result.exit_code, result.stdout) == (0, "a" * 2500 + "\n")


def test_the_wait_ends_although_tokens_keep_coming(connection: redis.Redis) -> None:
    running(connection, "a")
    seen = []

    def read() -> None:
        for event in tails.tail(connection, "x", wait=0.2):
            seen.append(event.number)
            write(connection, "x", "b", after=event.number)

    with pytest.raises(NotEndedError, match=r"within 0\.2 s"):
        read()

    assert seen == list(range(1, len(seen) + 1))


def test_a_result_that_does_not_come_says_how_to_ask_again(connection: redis.Redis) -> None:
    running(connection, "a")

    result = client("result", "x", "--wait", "0.1")

    assert (result.exit_code, result.stdout) == (124, "")
    *_, last = result.stderr.splitlines()
    assert last == (
        "error: job x has not ended within 0.1 s; it goes on, ask again with: minilab-client result x --wait"
    )


def test_a_result_that_is_there_is_not_waited_for(connection: redis.Redis) -> None:
    run(connection, "x", ["a"])

    assert client("result", "x", "--wait", "60").stdout == "a\n"
    assert client("result", "x", "--wait").stdout == "a\n"


@pytest.mark.parametrize("command", [("submit", "Phileas Fogg", "--job-id", "x"), ("retry", "old")])
def test_following_a_new_job_ends_with_wait(connection: redis.Redis, command: tuple[str, ...]) -> None:
    run(connection, "old", ["a"])

    result = client(*command, "--follow", "--wait", "0.1")

    assert (result.exit_code, result.stdout) == (124, "")
    assert "has not ended within 0.1 s; it goes on, read on with: minilab-client tail " in result.stderr


@pytest.mark.parametrize("command", [("submit", "Phileas Fogg"), ("retry", "old")])
def test_a_wait_without_anything_to_follow_is_refused(connection: redis.Redis, command: tuple[str, ...]) -> None:
    run(connection, "old", ["a"])

    result = client(*command, "--wait", "5")

    assert result.exit_code == 2
    assert "--wait goes with --follow" in result.stderr


@pytest.mark.parametrize("wait", ["-1", "nan", "x", "9999999"])
def test_a_wait_that_is_no_time_is_refused(connection: redis.Redis, wait: str) -> None:
    end_of_nothing = client("tail", "x", f"--wait={wait}")

    assert end_of_nothing.exit_code == 2


def test_a_job_that_ends_within_the_wait_is_read_to_its_end(connection: redis.Redis) -> None:
    running(connection, "a")
    events = tails.tail(connection, "x", wait=60)
    assert next(events).text == "a"

    end(connection, "x", 1)

    assert [event.number for event in events] == [2]
