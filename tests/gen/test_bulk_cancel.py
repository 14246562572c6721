"""``cancel --all-queued``: every job that waits for a model ends, and no other is touched."""

from __future__ import annotations

import json
from typing import Any

import pytest
import redis
from rq.job import Job
from rq.registry import CanceledJobRegistry
from support.client_program import client, fake_redis, start, submit, write

from minilab_gen.protocol import keys
from minilab_gen.protocol.bulk_cancel import BATCH, cancel_waiting, count_waiting
from minilab_gen.protocol.events import EndEvent, TokenEvent
from minilab_gen.protocol.jobs import fetch, recorded_state, view
from minilab_gen.protocol.streams import publish, read_stream
from minilab_gen.protocol.submission import Submission, enqueue
from minilab_gen.protocol.tail import tail
from minilab_gen.request import GenerationRequest


def wait_for(connection: redis.Redis, job_id: str, model: str = "base", priority: keys.Priority = "normal") -> str:
    return enqueue(connection, GenerationRequest((5, 12, 7)), Submission(model, job_id, priority))


def requeued(connection: redis.Redis, job_id: str, tokens: int) -> None:
    """A job that a worker gave back after some tokens."""
    wait_for(connection, job_id)
    events = [(job_id, TokenEvent(n, 100 + n, "a")) for n in range(1, tokens + 1)]
    publish(connection, events, running_ttl=600)


def states(connection: redis.Redis, *job_ids: str) -> list[str]:
    return [recorded_state(fetch(connection, job_id)) for job_id in job_ids]


def test_jobs_of_every_priority_are_cancelled_and_those_of_other_models_are_not(connection: redis.Redis) -> None:
    for priority in keys.PRIORITIES:
        wait_for(connection, priority, priority=priority)
    wait_for(connection, "other", model="other")
    assert count_waiting(connection, "base") == 3

    assert sum(cancel_waiting(connection, "base")) == 3

    assert states(connection, *keys.PRIORITIES, "other") == ["cancelled"] * 3 + ["queued"]
    assert count_waiting(connection, "base") == 0
    assert count_waiting(connection, "other") == 1


def test_each_of_many_jobs_gets_one_end_and_expires(connection: redis.Redis) -> None:
    job_ids = [wait_for(connection, f"j{n}") for n in range(2 * BATCH + 50)]

    assert list(cancel_waiting(connection, "base")) == [BATCH, BATCH, 50]

    for job_id in job_ids:
        assert read_stream(connection, job_id) == [EndEvent("cancelled", 0, prompt_tokens=3)]
        assert 0 < connection.ttl(keys.token_stream(job_id)) <= keys.RETENTION
        assert 0 < connection.ttl(Job.key_for(job_id)) <= keys.RETENTION
    assert set(CanceledJobRegistry("minilab.base", connection).get_job_ids(cleanup=False)) == set(job_ids)


def test_running_and_claimed_jobs_are_untouched(connection: redis.Redis) -> None:
    submit(connection, "runs")
    start(connection, "runs")
    submit(connection, "claimed")
    connection.lmove("rq:queue:minilab.base", "rq:queue:minilab.base:intermediate")
    submit(connection, "waits")

    assert sum(cancel_waiting(connection, "base")) == 1

    assert states(connection, "runs", "claimed", "waits") == ["started", "queued", "cancelled"]
    assert not connection.exists(keys.token_stream("runs"), keys.token_stream("claimed"))
    assert not connection.exists(keys.cancel_flag("runs"), keys.cancel_flag("claimed"))
    assert connection.lrange("rq:queue:minilab.base:intermediate", 0, -1) == [b"claimed"]


def test_a_job_that_a_worker_takes_at_that_moment_is_untouched(
    connection: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    for job_id in ("quick", "slow"):
        submit(connection, job_id)
    execute = redis.client.Pipeline.execute

    def take_first(pipeline: Any, *arguments: Any, **options: Any) -> Any:
        if any("EVAL" in command[0] for command in pipeline.command_stack):
            connection.lrem("rq:queue:minilab.base", 1, "quick")
        return execute(pipeline, *arguments, **options)

    monkeypatch.setattr(redis.client.Pipeline, "execute", take_first)

    assert sum(cancel_waiting(connection, "base")) == 1

    assert states(connection, "quick", "slow") == ["queued", "cancelled"]
    assert not connection.exists(keys.token_stream("quick"))


def test_a_job_that_waits_to_be_continued_keeps_its_tokens(connection: redis.Redis) -> None:
    requeued(connection, "x", tokens=3)

    assert sum(cancel_waiting(connection, "base")) == 1

    *tokens, end = tail(connection, "x")
    assert len(tokens) == 3
    assert end == EndEvent("cancelled", 3, prompt_tokens=3)


def test_jobs_that_cannot_be_cancelled_stay_and_hold_up_no_other(connection: redis.Redis) -> None:
    queue = "rq:queue:minilab.base"
    connection.rpush(queue, *(f"gone{n}" for n in range(BATCH + 1)), b"\xff")
    submit(connection, "damaged")
    connection.hset(Job.key_for("damaged"), "created_at", "yesterday")
    submit(connection, "ended")
    publish(connection, [("ended", EndEvent("timeout", 0, 3, phase="waiting"))], running_ttl=600)
    submit(connection, "waits")

    assert sum(cancel_waiting(connection, "base")) == 1

    assert states(connection, "waits") == ["cancelled"]
    assert connection.llen(queue) == BATCH + 1 + 3
    assert [event.reason for event in read_stream(connection, "ended") if isinstance(event, EndEvent)] == ["timeout"]


def test_a_canceller_who_dies_before_rqs_books_leaves_an_end_that_all_can_see(
    connection: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit(connection, "x")

    def be_killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(CanceledJobRegistry, "add", be_killed)

    with pytest.raises(KeyboardInterrupt):
        list(cancel_waiting(connection, "base"))

    assert view(connection, "x").state == "cancelled"
    assert [getattr(event, "reason", None) for event in tail(connection, "x")] == ["cancelled"]
    assert connection.ttl(Job.key_for("x")) > 0


# the command


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> redis.Redis:
    """The fake Redis that the program uses."""
    return fake_redis(monkeypatch)


def test_the_number_of_cancelled_jobs_is_printed(fake: redis.Redis) -> None:
    for n in range(3):
        submit(fake, f"j{n}")
    submit(fake, "runs")
    start(fake, "runs")
    write(fake, "runs", "a")

    result = client("cancel", "--all-queued", "--yes")

    assert (result.exit_code, result.stdout, result.stderr) == (0, "3 cancelled\n", "")
    assert client("tail", "j0").exit_code == 5
    assert client("status", "runs").stdout.splitlines()[1] == "state    started"


def test_no_job_that_waits_is_no_error(fake: redis.Redis) -> None:
    result = client("cancel", "--all-queued", "--yes", "--json")

    assert (result.exit_code, json.loads(result.stdout)) == (0, {"model": "base", "cancelled": 0})


def test_the_model_is_chosen_by_flag_or_variable(fake: redis.Redis) -> None:
    wait_for(fake, "a")
    wait_for(fake, "b", model="other")

    assert client("cancel", "--all-queued", "--yes", MINILAB_MODEL="other").stdout == "1 cancelled\n"
    assert client("cancel", "--all-queued", "--yes", "--model", "base").stdout == "1 cancelled\n"


@pytest.mark.parametrize(
    ("arguments", "rule"),
    [
        ((), "give either JOB... or --all-queued"),
        (("x", "--all-queued", "--yes"), "give either JOB... or --all-queued"),
        (("--all-queued",), "give --yes where there is no terminal"),
        (("--all-queued", "--yes", "--model", "a b"), "a model name must be"),
    ],
)
def test_what_is_not_clear_is_refused_before_a_connection_is_made(
    monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], rule: str
) -> None:
    monkeypatch.setattr("minilab_gen.protocol.connection.connect", pytest.fail)

    result = client("cancel", *arguments)

    assert (result.exit_code, result.stdout) == (2, "")
    assert rule in result.stderr
