"""``minilab-client retry``: a new job that asks the same, and nothing changed about the old one."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
import redis
from minilab_worker.worker import Worker
from support.client_program import (
    announce_worker,
    client,
    end,
    events,
    fake_redis,
    overdue,
    queued,
    run,
    start,
    submit,
    write,
)

from minilab_gen.protocol import keys
from minilab_gen.protocol.endings import cancel
from minilab_gen.protocol.events import EndReason
from minilab_gen.protocol.jobs import fetch, request_of
from minilab_gen.protocol.results import result
from minilab_gen.protocol.streams import read_stream
from minilab_gen.protocol.submission import EXPIRES_AT, Submission, enqueue
from minilab_gen.request import GenerationRequest, SamplingSettings

NO_WORKER = "waiting: no worker serves the model base; start one in another terminal: minilab-worker\n"

SAMPLED = GenerationRequest((5, 12, 7), 9, SamplingSettings(0.8, 20, 0.9, seed=41), stop_ids=(3,))


@pytest.fixture
def connection(monkeypatch: pytest.MonkeyPatch) -> redis.Redis:
    """The fake Redis that the program uses, with a worker for what is submitted."""
    connection = fake_redis(monkeypatch)
    announce_worker(connection)
    return connection


def retried(job_id: str) -> str:
    """The id of the new job."""
    done = client("retry", job_id)
    assert (done.exit_code, done.stderr) == (0, "")
    return done.stdout.removesuffix("\n")


def test_the_new_job_asks_the_same_in_the_same_way(connection: redis.Redis) -> None:
    enqueue(connection, SAMPLED, Submission(job_id="x", priority="high", timeout=77, ttl=1000))
    start(connection, "x")
    end(connection, "x", 0, "error", error="it broke")

    new_id = retried("x")

    assert queued(connection, "high") == [new_id]
    old, new = fetch(connection, "x"), fetch(connection, new_id)
    assert request_of(new) == SAMPLED
    assert (new.timeout, round(new.meta[EXPIRES_AT] - new.created_at.timestamp())) == (77, 1000)
    assert new.id != old.id


@pytest.mark.parametrize("reason", ["stop", "length", "context", "cancelled", "timeout", "error"])
def test_a_job_can_be_retried_however_it_ended(connection: redis.Redis, reason: EndReason) -> None:
    run(connection, "x", ["a", "b"], reason)
    before = read_stream(connection, "x")

    new_id = retried("x")

    assert queued(connection) == [new_id]
    assert read_stream(connection, "x") == before
    assert EXPIRES_AT not in fetch(connection, new_id).meta


def test_a_job_that_was_cancelled_while_it_waited_can_be_retried(connection: redis.Redis) -> None:
    submit(connection, "x")
    cancel(connection, "x")

    new_id = retried("x")

    assert queued(connection) == [new_id]


def test_a_job_that_waited_too_long_can_be_retried_that_no_command_has_noticed_yet(connection: redis.Redis) -> None:
    overdue(connection, "x")

    new_id = retried("x")

    assert queued(connection) == [new_id]


def test_a_job_that_has_not_ended_is_refused(connection: redis.Redis) -> None:
    submit(connection, "waits")
    submit(connection, "runs")
    start(connection, "runs")
    write(connection, "runs", "a")

    for job_id, state in (("waits", "queued, with 0"), ("runs", "started, with 1")):
        done = client("retry", job_id)
        assert (done.exit_code, done.stdout) == (2, "")
        assert done.stderr == f"error: a job must have ended, but {job_id} is {state} tokens so far\n"
    assert queued(connection) == ["waits"]


def test_the_others_are_retried_beside_one_that_cannot_be(connection: redis.Redis) -> None:
    run(connection, "x", ["a"])
    submit(connection, "waits")
    run(connection, "y", ["a"])

    done = client("retry", "x", "waits", "nope", "y", "--json")

    assert done.exit_code == 3
    assert [event["retry_of"] for event in events(done)] == ["x", "y"]
    assert len(done.stderr.splitlines()) == 2


def test_json_tells_old_and_new_id_model_and_seed(connection: redis.Redis) -> None:
    enqueue(connection, SAMPLED, Submission(job_id="x"))
    cancel(connection, "x")

    (seen,) = events(client("retry", "x", "--json"))

    (new_id,) = queued(connection)
    assert seen == {"event": "submitted", "job_id": new_id, "model": "base", "seed": 41, "retry_of": "x"}


def test_a_retried_job_that_draws_nothing_has_no_seed_to_tell(connection: redis.Redis) -> None:
    enqueue(connection, GenerationRequest((5, 12), 4), Submission(job_id="x"))
    cancel(connection, "x")

    assert [event["seed"] for event in events(client("retry", "x", "--json"))] == [None]


def test_a_model_that_no_worker_announces_any_more_is_refused(connection: redis.Redis) -> None:
    enqueue(connection, SAMPLED, Submission("other", "x"))
    cancel(connection, "x")

    done = client("retry", "x")

    assert (done.exit_code, done.stdout) == (2, "")
    assert "no worker has announced the model other" in done.stderr


def test_a_request_that_can_never_run_is_refused_again(connection: redis.Redis) -> None:
    enqueue(connection, GenerationRequest((1_000_000,)), Submission(job_id="x"))
    cancel(connection, "x")

    done = client("retry", "x")

    assert (done.exit_code, done.stdout) == (2, "")
    assert "got 1000000 at position 0" in done.stderr


def test_several_jobs_are_not_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minilab_gen.protocol.connection.connect", pytest.fail)

    done = client("retry", "x", "y", "--follow")

    assert (done.exit_code, "--follow takes one JOB, got 2" in done.stderr) == (2, True)


def test_a_worker_gives_a_retried_job_the_same_tokens(server: redis.Redis, start_worker: Callable[..., Worker]) -> None:
    start_worker()
    first = json.loads(client("submit", "Phileas Fogg", "--temperature", "1", "--job-id", "x", "--json").stdout)
    assert client("result", "x", "--wait").exit_code == 0

    done = client("retry", "x", "--follow", "--json")

    submitted, *_, ended = events(done)
    assert (done.exit_code, submitted["seed"], ended["end"]) == (0, first["seed"], "context")
    old, new = result(server, "x"), result(server, submitted["job_id"])
    assert old is not None
    assert new is not None
    assert (new.ids, new.text) == (old.ids, old.text)
    assert server.exists(keys.token_stream("x"))


def test_that_no_worker_is_there_is_said_once_for_all(connection: redis.Redis) -> None:
    run(connection, "x", ["a"])
    run(connection, "y", ["a"])
    connection.delete(keys.worker_lease("minilab-test"))

    done = client("retry", "x", "y")

    assert (done.exit_code, done.stdout.count("\n")) == (0, 2)
    assert done.stderr == NO_WORKER
