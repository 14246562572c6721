"""What ``minilab-client workers`` shows of each worker."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import Any

import pytest
import redis
from client_program import announce_worker, client, fake_redis

from minilab_gen.protocol import keys
from minilab_gen.protocol.worker_stats import WorkerStats, publish_stats

REPORT = WorkerStats(
    model="base",
    places=64,
    used=3,
    tokens=12_345,
    tokens_per_second=678.4,
    exactness="exact: 100 rows of logits equal bit for bit",
    fingerprint="f" * 16,
    started_at=0.0,
    reported_at=0.0,
)


@pytest.fixture(autouse=True)
def connection(monkeypatch: pytest.MonkeyPatch) -> redis.Redis:
    """The fake Redis that the program uses."""
    return fake_redis(monkeypatch)


def listed() -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(client("workers", "--json").stdout)
    return rows


def cells(line: str) -> list[str]:
    return line.split(maxsplit=9)


def test_workers_are_listed_with_whether_they_live(connection: redis.Redis) -> None:
    announce_worker(connection, "minilab-a")
    announce_worker(connection, "minilab-b", alive=False)
    announce_worker(connection, "ordinary")

    assert [(worker["name"], worker["alive"]) for worker in listed()] == [
        ("minilab-a", True),
        ("minilab-b", False),
        ("ordinary", None),
    ]
    assert [line.split()[1] for line in client("workers").stdout.splitlines()] == ["LIFE", "alive", "gone", "-"]


def test_a_worker_is_shown_with_its_places_speed_and_exactness(connection: redis.Redis) -> None:
    announce_worker(connection, "minilab-a")
    publish_stats(connection, "minilab-a", replace(REPORT, reported_at=time.time()))

    heading, line = client("workers").stdout.splitlines()

    shown = dict(zip(heading.split(), cells(line), strict=True))
    assert (shown["PLACES"], shown["TOKENS/S"], shown["EXACTNESS"]) == ("3/64", "678", REPORT.exactness)
    (worker,) = listed()
    names = ("model", "used", "places", "tokens", "tokens_per_second", "exactness", "fingerprint")
    assert {name: worker[name] for name in names} == {name: getattr(REPORT, name) for name in names}


def test_a_gone_worker_is_shown_with_its_last_report_but_no_speed(connection: redis.Redis) -> None:
    announce_worker(connection, "minilab-a", alive=False)
    publish_stats(connection, "minilab-a", REPORT)

    heading, line = client("workers").stdout.splitlines()

    shown = dict(zip(heading.split(), cells(line), strict=True))
    assert (shown["LIFE"], shown["PLACES"], shown["TOKENS/S"]) == ("gone", "3/64", "-")


def test_the_heartbeat_is_the_last_sign_of_life(connection: redis.Redis) -> None:
    for name in ("minilab-a", "minilab-b"):
        announce_worker(connection, name)
        connection.hset(f"rq:worker:{name}", "last_heartbeat", "2026-11-29T12:00:00.000000Z")
    publish_stats(connection, "minilab-b", replace(REPORT, reported_at=time.time() - 50))

    old, reported = (worker["heartbeat_age"] for worker in listed())

    assert abs(reported - 50) < 30
    assert abs(old - reported) > 60


def test_a_report_of_another_version_is_left_out(connection: redis.Redis) -> None:
    announce_worker(connection, "minilab-a")
    connection.set(keys.worker_stats("minilab-a"), '{"places": 3}')

    (worker,) = listed()

    assert (worker["alive"], worker["places"]) == (True, None)


def test_workers_of_other_queues_are_none_of_ours(connection: redis.Redis) -> None:
    announce_worker(connection, "minilab-a")
    connection.sadd("rq:workers", "rq:worker:elsewhere", "rq:worker:forgotten")
    connection.hset("rq:worker:elsewhere", mapping={"queues": "mail,reports", "state": "idle"})

    assert [worker["name"] for worker in listed()] == ["minilab-a"]


def test_a_worker_whose_record_is_odd_hides_no_other(connection: redis.Redis) -> None:
    announce_worker(connection, "minilab-a")
    announce_worker(connection, "minilab-b")
    connection.hset("rq:worker:minilab-b", mapping={"last_heartbeat": "yesterday", "pid": "many"})

    assert [(worker["name"], worker["pid"] is None) for worker in listed()] == [
        ("minilab-a", False),
        ("minilab-b", True),
    ]
