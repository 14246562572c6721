"""``submit --n`` and every command that takes the id of a group. No server is needed."""

from __future__ import annotations

import json

import pytest
import redis
from support.client_program import announce_worker, client, end, events, fake_redis, queued, run, start, write

from minilab_gen.protocol.endings import cancel
from minilab_gen.protocol.events import EndReason
from minilab_gen.protocol.jobs import fetch, request_of
from minilab_gen.protocol.keys import cancel_flag

SUBMIT = ("submit", "Phileas Fogg", "--job-id", "x", "--temperature", "0.9", "--seed", "7")


@pytest.fixture(autouse=True)
def connection(monkeypatch: pytest.MonkeyPatch) -> redis.Redis:
    """The fake Redis that the program uses, with a worker for what is submitted."""
    connection = fake_redis(monkeypatch)
    announce_worker(connection)
    return connection


def seeds(connection: redis.Redis, *job_ids: str) -> list[int]:
    return [request_of(fetch(connection, job_id)).settings.seed for job_id in job_ids]


def ended_group(connection: redis.Redis, *reasons: EndReason) -> None:
    """Group x, with an answer for each of these ends, all of two tokens."""
    assert client(*SUBMIT, "--n", str(len(reasons))).stdout == "x\n"
    for index, reason in enumerate(reasons):
        start(connection, f"x-{index}")
        write(connection, f"x-{index}", f"a{index}", " b")
        details = {"error": "it broke"} if reason == "error" else {}
        end(connection, f"x-{index}", 2, reason, **details)


def test_submit_prints_the_id_of_the_group_alone(connection: redis.Redis) -> None:
    result = client("submit", "Phileas Fogg", "--n", "3")

    group = result.stdout.removesuffix("\n")
    assert (result.exit_code, result.stderr) == (0, "")
    assert queued(connection) == [f"{group}-0", f"{group}-1", f"{group}-2"]


def test_one_answer_is_a_job_as_without_the_option(connection: redis.Redis) -> None:
    assert client(*SUBMIT, "--n", "1").stdout == "x\n"

    assert queued(connection) == ["x"]


def test_answers_have_the_seed_and_those_after_it(connection: redis.Redis) -> None:
    client("submit", "Phileas", "--job-id", "x", "--temperature", "1", "--seed", "4294967294", "--n", "3")

    assert seeds(connection, "x-0", "x-1", "x-2") == [4294967294, 4294967295, 0]


def test_the_seeds_that_were_drawn_are_said(connection: redis.Redis) -> None:
    result = client("submit", "Phileas", "--job-id", "x", "--temperature", "1", "--n", "3")

    first, _, last = seeds(connection, "x-0", "x-1", "x-2")
    assert result.stderr == f"seeds {first} to {last}\n"


def test_json_names_the_jobs_of_a_group() -> None:
    (submitted,) = events(client(*SUBMIT, "--n", "2", "--json"))

    assert submitted == {
        "event": "submitted",
        "job_id": "x",
        "model": "base",
        "seed": 7,
        "job_ids": ["x-0", "x-1"],
    }


@pytest.mark.parametrize("n", ["0", "-1", "65", "1.5", "four", ""])
def test_a_number_of_answers_out_of_range_is_refused(connection: redis.Redis, n: str) -> None:
    result = client("submit", "Phileas", "--n", n)

    assert (result.exit_code, result.stdout) == (2, "")
    assert "must be a whole number" in result.stderr
    assert queued(connection) == []


@pytest.mark.parametrize("n", ["1", "2", "4"])
def test_an_id_that_a_group_has_is_refused(connection: redis.Redis, n: str) -> None:
    client(*SUBMIT, "--n", "2")

    result = client(*SUBMIT, "--n", n)

    assert result.exit_code == 2
    assert "is in use by a" in result.stderr
    assert "choose another --job-id" in result.stderr
    assert queued(connection) == ["x-0", "x-1"]


def test_tail_prints_one_answer_after_the_other(connection: redis.Redis) -> None:
    ended_group(connection, "stop", "length", "context")

    result = client("tail", "x")

    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == "==> x-0 <==\na0 b\n\n==> x-1 <==\na1 b\n\n==> x-2 <==\na2 b\n"


def test_tail_of_one_answer_is_that_of_any_job(connection: redis.Redis) -> None:
    ended_group(connection, "stop", "length")

    assert client("tail", "x-1", "--from", "1").stdout == " b\n"


def test_json_events_name_their_job(connection: redis.Redis) -> None:
    ended_group(connection, "stop", "length")

    found = events(client("tail", "x", "--json"))

    assert [(event["event"], event["job_id"], event["index"]) for event in found] == [
        *(("token", "x-0", 0), ("token", "x-0", 0), ("end", "x-0", 0)),
        *(("token", "x-1", 1), ("token", "x-1", 1), ("end", "x-1", 1)),
    ]


def test_a_group_is_read_from_its_beginning(connection: redis.Redis) -> None:
    ended_group(connection, "stop", "length")

    result = client("tail", "x", "--from", "1")

    assert result.exit_code == 2
    assert "--from goes with one job, x is a group; name one: x-0 to x-1" in result.stderr


@pytest.mark.parametrize("command", ["tail", "result"])
@pytest.mark.parametrize(
    ("reasons", "code"),
    [
        (["stop", "length"], 0),
        (["cancelled", "length"], 5),
        (["length", "error"], 1),
        (["error", "cancelled"], 1),
        (["timeout", "stop"], 1),
    ],
)
def test_the_exit_code_is_that_of_the_worst_end(
    connection: redis.Redis, command: str, reasons: list[EndReason], code: int
) -> None:
    ended_group(connection, *reasons)

    result = client(command, "x")

    assert result.exit_code == code
    assert result.stdout == "==> x-0 <==\na0 b\n\n==> x-1 <==\na1 b\n"


@pytest.mark.parametrize(
    "command",
    [["tail", "x"], ["tail", "x", "--json"], ["result", "x"], ["status", "x"], ["verify", "x"], ["cancel", "x"]],
)
def test_an_answer_that_has_expired_does_not_hide_the_others(connection: redis.Redis, command: list[str]) -> None:
    ended_group(connection, "stop", "length")
    connection.delete("rq:job:x-0", "minilab:tokens:x-0")
    if command[0] == "verify":
        connection.delete("rq:job:x-1", "minilab:tokens:x-1")
        run(connection, "x-1", [], "cancelled")  # equal without a worker
        connection.hset("rq:job:x-1", "meta", '{"group": {"id": "x", "index": 1, "n": 2}}')

    result = client(*command)

    assert result.exit_code == 3
    assert "x-1" in result.stdout
    assert "unknown or expired job: x-0" in result.stderr


def test_the_answers_of_a_group_are_json_objects_in_their_order(connection: redis.Redis) -> None:
    ended_group(connection, "stop", "length")

    found = events(client("result", "x", "--json"))

    assert [(answer["job_id"], answer["index"], answer["text"], answer["seed"]) for answer in found] == [
        ("x-0", 0, "a0 b", 7),
        ("x-1", 1, "a1 b", 8),
    ]


def test_the_ids_of_each_answer_are_a_line(connection: redis.Redis) -> None:
    ended_group(connection, "stop", "length")

    assert client("result", "x", "--format", "ids").stdout == "101,102\n101,102\n"


def test_a_result_says_which_answers_have_not_come_yet(connection: redis.Redis) -> None:
    client(*SUBMIT, "--n", "2")
    start(connection, "x-1")
    write(connection, "x-1", "a")
    end(connection, "x-1", 1)

    result = client("result", "x")

    assert (result.exit_code, result.stdout) == (1, "==> x-0 <==\n\n==> x-1 <==\na\n")
    assert "job x-0 has not ended: it is queued, with 0 tokens so far" in result.stderr


@pytest.mark.parametrize(
    ("command", "again"),
    [
        (["tail", "x"], "read on with: minilab-client tail x-1 --from 1; all answers: minilab-client tail x"),
        (["tail", "x", "--json"], "read again with: minilab-client tail x --json"),
        (["result", "x"], "ask again with: minilab-client result x --wait"),
    ],
)
def test_all_answers_share_the_time_to_wait(connection: redis.Redis, command: list[str], again: str) -> None:
    client(*SUBMIT, "--n", "2")
    start(connection, "x-0")
    write(connection, "x-0", "a")
    end(connection, "x-0", 1)
    start(connection, "x-1")
    write(connection, "x-1", "b")

    result = client(*command, "--wait", "0.1")

    assert result.exit_code == 124
    assert f"job x-1 has not ended within 0.1 s; it goes on, {again}" in result.stderr


def test_the_status_of_a_group_shows_each_job(connection: redis.Redis) -> None:
    ended_group(connection, "stop", "error", "cancelled")

    lines = client("status", "x").stdout.splitlines()

    assert lines[:2] == ["group    x", "state    failed"]
    assert [line.split()[:4] for line in lines[-3:]] == [
        ["x-0", "finished", "7", "2"],
        ["x-1", "failed", "8", "2"],
        ["x-2", "cancelled", "9", "2"],
    ]


def test_the_status_of_a_group_in_json(connection: redis.Redis) -> None:
    client(*SUBMIT, "--n", "2")
    start(connection, "x-0")

    found = json.loads(client("status", "x", "--json").stdout)

    assert (found["job_id"], found["state"], found["model"], found["tokens"]) == ("x", "started", "base", 0)
    assert [(job["job_id"], job["state"]) for job in found["jobs"]] == [("x-0", "started"), ("x-1", "queued")]


def test_cancel_stops_all_jobs_of_a_group(connection: redis.Redis) -> None:
    client(*SUBMIT, "--n", "3")
    start(connection, "x-1")

    result = client("cancel", "x")

    assert result.stdout == (
        "x-0  was queued, now cancelled\nx-1  was started, asked to stop\nx-2  was queued, now cancelled\n"
    )
    assert connection.exists(cancel_flag("x-1"))
    assert queued(connection) == []


def test_one_answer_is_cancelled_by_itself(connection: redis.Redis) -> None:
    client(*SUBMIT, "--n", "3")

    client("cancel", "x-1")

    assert queued(connection) == ["x-0", "x-2"]


def test_a_group_is_submitted_again_as_a_group(connection: redis.Redis) -> None:
    ended_group(connection, "stop", "error", "length")

    result = client("retry", "x")

    group = result.stdout.removesuffix("\n")
    assert (result.exit_code, result.stderr) == (0, "")
    assert queued(connection) == [f"{group}-{index}" for index in range(3)]
    assert seeds(connection, *queued(connection)) == [7, 8, 9]


def test_one_answer_is_submitted_again_as_a_job(connection: redis.Redis) -> None:
    ended_group(connection, "stop", "error")

    new_id = client("retry", "x-1").stdout.removesuffix("\n")

    assert queued(connection) == [new_id]
    assert seeds(connection, new_id) == [8]


def test_a_group_that_has_not_ended_is_not_submitted_again(connection: redis.Redis) -> None:
    client(*SUBMIT, "--n", "2")
    cancel(connection, "x-0")

    result = client("retry", "x")

    assert result.exit_code == 2
    assert "x-1 is queued" in result.stderr
    assert queued(connection) == ["x-1"]


def test_jobs_lists_the_jobs_of_a_group() -> None:
    client(*SUBMIT, "--n", "2")

    assert {job["job_id"] for job in json.loads(client("jobs", "--json").stdout)} == {"x-0", "x-1"}
