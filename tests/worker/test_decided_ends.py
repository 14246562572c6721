"""A terminal entry in a job's stream says how it ended, whatever RQ's record says yet: everywhere where a user looks.

A worker writes the entry first and RQ's record after it. If it is killed in between, that follows after its lease.
"""

from __future__ import annotations

import json
from typing import Final

import pytest
import redis
from rq.job import JobStatus
from rq.registry import CanceledJobRegistry
from support.client_program import TTL, announce_worker, client, fake_redis, queued, start, submit, write

from minilab_gen.protocol import endings, keys
from minilab_gen.protocol.events import EndEvent, EndReason, JobState
from minilab_gen.protocol.jobs import fetch, queue_of, states_of
from minilab_gen.protocol.streams import publish

WORKER: Final = "minilab-gone"

ENDS: Final[list[tuple[EndReason, JobState, int]]] = [
    ("length", "finished", 0),
    ("stop", "finished", 0),
    ("cancelled", "cancelled", 5),
    ("timeout", "failed", 1),
    ("error", "failed", 1),
]
"""How a job ended, the word for its state, and the exit code of its readers."""

every_end = pytest.mark.parametrize(("reason", "state", "code"), ENDS)


@pytest.fixture(params=["started", "given back"])
def ended(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> redis.Redis:
    """Job x with one token, whose end has been written and not recorded; its worker's lease has expired.

    By RQ's record it is running, or back in its queue, since another worker has requeued it.
    """
    connection = fake_redis(monkeypatch)
    announce_worker(connection, WORKER, alive=False)
    submit(connection, "x")
    if request.param == "started":
        start(connection, "x")
        job = fetch(connection, "x")
        connection.hset(job.key, "worker_name", WORKER)
        connection.zadd(job.started_job_registry.key, {"x:1": 9e12})
    write(connection, "x", "a")
    return connection


def close(connection: redis.Redis, reason: EndReason) -> None:
    details = {"error": "too hot"} if reason == "error" else {}
    publish(connection, [("x", EndEvent(reason, 1, 3, **details))], running_ttl=TTL)  # type: ignore[arg-type]


@every_end
def test_cancel_says_how_it_ended_and_leaves_it(
    ended: redis.Redis, reason: EndReason, state: JobState, code: int
) -> None:
    close(ended, reason)
    before = fetch(ended, "x").get_status(), queued(ended)

    assert client("cancel", "x").stdout == f"x  had already ended: {state}\n"
    assert endings.cancel(ended, "x") == state

    assert (fetch(ended, "x").get_status(), queued(ended)) == before
    assert not ended.exists(keys.cancel_flag("x"))


@every_end
def test_status_says_how_it_ended_and_names_no_worker(
    ended: redis.Redis, reason: EndReason, state: JobState, code: int
) -> None:
    close(ended, reason)

    told = client("status", "x")
    found = json.loads(client("status", "x", "--json").stdout)

    assert (found["state"], found["end"], found["position"], found["worker"]) == (state, reason, None, None)
    assert found["error"] == ("too hot" if reason == "error" else None)
    lines = {line.split()[0] for line in told.stdout.splitlines()}
    assert {"state", "end"} <= lines
    assert not {"worker", "position"} & lines
    assert ("error" in lines) == (reason == "error")


@every_end
def test_jobs_lists_it_as_ended(ended: redis.Redis, reason: EndReason, state: JobState, code: int) -> None:
    close(ended, reason)

    def listed(*arguments: str) -> list[tuple[str, str]]:
        rows = json.loads(client("jobs", "--json", *arguments).stdout)
        return [(row["state"], row["end"]) for row in rows]

    assert listed() == [(state, reason)]
    assert listed("--state", "started") == listed("--state", "queued") == []
    if fetch(ended, "x").get_status() == JobStatus.STARTED:  # else it stands at the head of the queue for a moment
        assert listed("--state", state) == [(state, reason)]


@every_end
def test_its_answer_can_be_read_and_asked_for_again(
    ended: redis.Redis, reason: EndReason, state: JobState, code: int
) -> None:
    close(ended, reason)

    assert client("result", "x").exit_code == client("tail", "x").exit_code == code
    again = client("retry", "x")
    assert again.exit_code == 0
    taken = client("submit", "--ids", "5", "--job-id", "x")
    assert (taken.exit_code, f"in use by a job that is {state}" in taken.stderr) == (2, True)


@every_end
def test_a_batch_need_not_wait_for_rqs_books(ended: redis.Redis, reason: EndReason, state: JobState, code: int) -> None:
    close(ended, reason)
    recorded = "queued" if queued(ended) else state  # the worker that requeued it claims it at once

    assert states_of(ended, ["nope", "x"]) == [None, recorded]


def test_doctor_does_not_call_it_stuck(ended: redis.Redis) -> None:
    is_started = not queued(ended)
    assert ("begun by workers that are gone" in client("doctor").stdout) == is_started

    close(ended, "length")

    assert "begun by workers that are gone" not in client("doctor").stdout


def test_a_job_that_ends_while_it_is_cancelled_is_not_said_to_be_asked_to_stop(
    ended: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    def end_first(connection: redis.Redis, job_id: str) -> JobState:
        state = cancel(connection, job_id)
        close(connection, "length")
        return state

    waits = queued(ended)  # then it ends by being cancelled
    cancel = endings.cancel
    monkeypatch.setattr(endings, "cancel", end_first)

    told = client("cancel", "x").stdout
    assert told == f"x  was {'queued, now cancelled' if waits else 'started, ended by itself meanwhile: finished'}\n"


def test_a_running_job_that_is_cancelled_is_said_to_be_asked_to_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    connection = fake_redis(monkeypatch)
    submit(connection, "x")
    start(connection, "x")

    assert client("cancel", "x").stdout == "x  was started, asked to stop\n"
    assert connection.exists(keys.cancel_flag("x"))


def test_a_cancel_again_completes_the_record_of_one_whose_canceller_was_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its end stands in the stream and it in no queue, so no worker will ever record it, nor let its record expire."""
    connection = fake_redis(monkeypatch)
    submit(connection, "x")
    job = fetch(connection, "x")
    assert endings.take_from_queue(connection, job)
    endings.close_stream(connection, job, "cancelled")

    assert endings.cancel(connection, "x") == "cancelled"

    assert fetch(connection, "x").get_status() == JobStatus.CANCELED
    registry = CanceledJobRegistry(queue=queue_of(connection, job.origin))
    assert registry.get_job_ids(cleanup=False) == ["x"]
    assert connection.ttl(job.key) > 0
