"""``minilab-client jobs``: which jobs it lists, in which order, and how little it reads for that."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import redis
from rq.job import Job
from support.client_program import client, end, fake_redis, run, start, submit, write

from minilab_gen.protocol import keys
from minilab_gen.protocol.endings import cancel
from minilab_gen.protocol.jobs import fetch, queue_of
from minilab_gen.protocol.listing import PAGE, Wanted, newest_jobs
from minilab_gen.protocol.submission import Submission, enqueue
from minilab_gen.request import GenerationRequest

TEXTS = (" é", "", "tait\n", " là")
NOON = datetime(2026, 11, 29, 12, tzinfo=UTC)


@pytest.fixture
def connection(monkeypatch: pytest.MonkeyPatch) -> redis.Redis:
    """The fake Redis that the program uses."""
    return fake_redis(monkeypatch)


def listed(*arguments: str) -> list[dict[str, Any]]:
    """What the program lists as JSON."""
    result = client("jobs", "--json", *arguments)
    assert (result.exit_code, result.stderr) == (0, "")
    rows: list[dict[str, Any]] = json.loads(result.stdout)
    return rows


def ids(*arguments: str) -> list[str]:
    return [row["job_id"] for row in listed(*arguments)]


def submit_to(connection: redis.Redis, job_id: str, model: str, priority: keys.Priority) -> None:
    enqueue(connection, GenerationRequest((5,)), Submission(model, job_id, priority))


def backdate(connection: redis.Redis, job_id: str, moment: datetime) -> None:
    """Make a job seem submitted at another time."""
    connection.hset(Job.key_for(job_id), "created_at", moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ"))


def many(connection: redis.Redis, count: int, place: str, status: str, order: Sequence[int] | None = None) -> None:
    """Records of jobs j0, j1, ..., a second apart, in a list or registry of RQ's in a given order."""
    connection.sadd("rq:queues", "rq:queue:minilab.base")
    with connection.pipeline(transaction=False) as pipeline:
        for n in order or range(count):
            created = (NOON + timedelta(seconds=n)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
            pipeline.hset(f"rq:job:j{n}", mapping={"created_at": created, "status": status, "origin": "minilab.base"})
        if status == "queued":
            pipeline.rpush(place, *(f"j{n}" for n in order or range(count)))
        else:
            pipeline.zadd(place, {f"j{n}": score for score, n in enumerate(order or range(count))})
        pipeline.execute()


def five_jobs(connection: redis.Redis) -> None:
    """One job in each state, the oldest first."""
    run(connection, "finished", TEXTS)
    run(connection, "failed", TEXTS, "error", error="no reason")
    submit(connection, "cancelled")
    cancel(connection, "cancelled")
    submit(connection, "started")
    start(connection, "started")
    job = fetch(connection, "started")
    connection.zadd(f"rq:wip:{job.origin}", {f"{job.id}:1": 1})  # as late as after a worker's end
    write(connection, "started", "a")
    submit(connection, "queued")


def test_jobs_are_listed_newest_first(connection: redis.Redis) -> None:
    five_jobs(connection)

    (listed,) = [json.loads(client("jobs", "--json").stdout)]

    assert [job["job_id"] for job in listed] == ["queued", "started", "cancelled", "failed", "finished"]
    assert [job["state"] for job in listed] == ["queued", "started", "cancelled", "failed", "finished"]
    assert [job["tokens"] for job in listed] == [0, 1, 0, 4, 4]
    assert [job["end"] for job in listed] == [None, None, "cancelled", "error", "length"]


@pytest.mark.parametrize("state", ["queued", "started", "finished", "failed", "cancelled"])
def test_jobs_of_one_state_can_be_asked_for(connection: redis.Redis, state: str) -> None:
    five_jobs(connection)

    listed = json.loads(client("jobs", "--state", state, "--json").stdout)

    assert [job["job_id"] for job in listed] == [state]


def test_listing_does_not_declare_a_late_job_failed(connection: redis.Redis) -> None:
    five_jobs(connection)

    client("jobs")

    assert fetch(connection, "started").get_status() == "started"


def test_a_job_that_an_ordinary_rq_worker_stopped_is_cancelled(connection: redis.Redis) -> None:
    run(connection, "x", TEXTS, "cancelled")

    (job,) = json.loads(client("jobs", "--state", "cancelled", "--json").stdout)

    assert job["state"] == json.loads(client("status", "x", "--json").stdout)["state"] == "cancelled"


def test_jobs_are_at_most_as_many_as_asked_for(connection: redis.Redis) -> None:
    five_jobs(connection)

    table = client("jobs", "--limit", "2").stdout.splitlines()

    assert [line.split()[0] for line in table] == ["JOB", "queued", "started"]


def test_a_job_whose_record_is_damaged_hides_no_other(connection: redis.Redis) -> None:
    submit(connection, "whole")
    submit(connection, "damaged")
    connection.hset("rq:job:damaged", "created_at", "yesterday")
    connection.rpush("rq:queue:minilab.base", b"\xff")

    result = client("jobs", "--json")

    assert [row["job_id"] for row in json.loads(result.stdout)] == ["whole"]
    assert "job damaged is skipped" in result.stderr
    assert result.exit_code == 0


def test_jobs_of_one_model_or_priority_can_be_asked_for(connection: redis.Redis) -> None:
    submit_to(connection, "a", "base", "normal")
    submit_to(connection, "b", "base", "high")
    submit_to(connection, "c", "other", "high")

    assert ids() == ["c", "b", "a"]
    assert ids("--model", "base") == ["b", "a"]
    assert ids("--priority", "high") == ["c", "b"]
    assert ids("--model", "other", "--priority", "low") == []
    kinds = [(row["model"], row["priority"]) for row in listed()]
    assert kinds == [("other", "high"), ("base", "high"), ("base", "normal")]


def test_jobs_submitted_since_a_time_can_be_asked_for(connection: redis.Redis) -> None:
    for job_id, hours in (("old", 30), ("day", 3), ("new", 0)):
        submit(connection, job_id)
        backdate(connection, job_id, datetime.now(UTC) - timedelta(hours=hours))

    assert ids("--since", "1d") == ["new", "day"]
    assert ids("--since", "90m") == ["new"]
    assert ids("--since", (datetime.now(UTC) - timedelta(hours=4)).isoformat()) == ["new", "day"]
    assert ids("--since", "0s") == []


@pytest.mark.parametrize(
    "since", ["1", "-1h", "1_0m", "１h", "1w", "", "yesterday", "9" * 30 + "d", "2026-13-01", "nan"]
)
def test_a_time_that_is_none_is_refused_before_a_connection_is_made(
    monkeypatch: pytest.MonkeyPatch, since: str
) -> None:
    monkeypatch.setattr("minilab_gen.protocol.connection.connect", pytest.fail)

    result = client("jobs", "--since", since)

    assert (result.exit_code, result.stdout) == (2, "")
    assert f"got {since!r}" in result.stderr


@pytest.mark.parametrize("limit", ["0", "-1", "1_000", "１２", "0x5", "1.0", "", "nan", "9" * 30])
def test_a_limit_that_is_no_count_is_refused_before_a_connection_is_made(
    monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    monkeypatch.setattr("minilab_gen.protocol.connection.connect", pytest.fail)

    for command in (("jobs", "--limit"), ("verify", "--last")):
        assert client(*command, limit).exit_code == 2


def test_jobs_of_several_queues_are_put_in_one_order(connection: redis.Redis) -> None:
    priorities: list[keys.Priority] = ["high", "low", "normal", "low", "high"]
    for n, priority in enumerate(priorities):
        submit_to(connection, f"j{n}", "base", priority)
        backdate(connection, f"j{n}", NOON + timedelta(seconds=n))

    assert ids() == ["j4", "j3", "j2", "j1", "j0"]


def test_jobs_that_ended_in_another_order_are_listed_as_submitted(connection: redis.Redis) -> None:
    count, late = PAGE * 2, 700  # each hundredth job takes as long as 700 others
    order = sorted(range(count), key=lambda n: n + late * (n % 100 == 0))
    many(connection, count, "rq:finished:minilab.base", "finished", order)

    assert ids("--limit", str(count)) == [f"j{n}" for n in reversed(range(count))]


def test_a_job_that_goes_on_to_another_place_is_listed_once(connection: redis.Redis) -> None:
    run(connection, "x", TEXTS)
    queue = queue_of(connection, "minilab.base")
    connection.rpush(queue.key, "x")
    connection.zadd(queue.started_job_registry.key, {"x:1": 1})

    assert ids() == ["x"]


def test_a_registry_of_many_names_of_expired_jobs_hides_no_other(connection: redis.Redis) -> None:
    connection.zadd("rq:finished:minilab.base", {f"gone{n}": n + 1 for n in range(PAGE * 2)})
    connection.zadd("rq:finished:minilab.base", {"x": 0})
    submit(connection, "x")
    start(connection, "x")
    end(connection, "x", 0)
    connection.zadd("rq:finished:minilab.base", {"x": 0})

    assert ids() == ["x"]


def test_of_20_000_jobs_only_the_newest_are_read(server: redis.Redis) -> None:
    many(server, 20_000, "rq:queue:minilab.base", "queued")
    server.config_resetstat()

    newest = ids("--limit", "5")

    assert newest == ["j19999", "j19998", "j19997", "j19996", "j19995"]
    stats: Any = server.info("commandstats")
    assert stats["cmdstat_hget"]["calls"] < 5 * PAGE
    assert "cmdstat_hgetall" not in stats


def test_a_list_is_read_as_far_as_its_reader_goes(server: redis.Redis) -> None:
    many(server, 10 * PAGE, "rq:failed:minilab.base", "failed")
    server.config_resetstat()
    rows = newest_jobs(server, Wanted(state="failed"), pytest.fail)

    assert next(rows).job_id == f"j{10 * PAGE - 1}"
    stats: Any = server.info("commandstats")
    assert stats["cmdstat_hget"]["calls"] < 5 * PAGE
    assert [row.job_id for row in rows] == [f"j{n}" for n in reversed(range(10 * PAGE - 1))]
