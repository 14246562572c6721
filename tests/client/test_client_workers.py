"""What ``minilab-client workers`` shows of each worker."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import struct
import termios
import time
from dataclasses import replace
from typing import Any

import pytest
import redis
from support.client_process import Program
from support.client_program import announce_worker, client, fake_redis

from minilab_gen.protocol import keys
from minilab_gen.protocol.worker_stats import WorkerStats, publish_stats

REPORT = WorkerStats(
    model="base",
    slots=64,
    used=3,
    tokens=12_345,
    tokens_per_second=678.4,
    exactness="exact: 100 rows of logits equal bit for bit",
    fingerprint="f" * 16,
    started_at=0.0,
    reported_at=0.0,
)


@pytest.fixture
def connection(monkeypatch: pytest.MonkeyPatch) -> redis.Redis:
    """The fake Redis that the program uses."""
    return fake_redis(monkeypatch)


def listed() -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(client("workers", "--json").stdout)
    return rows


def cells(line: str) -> list[str]:
    return re.split(r" {2,}", line)


def test_workers_are_listed_with_whether_they_live(connection: redis.Redis) -> None:
    announce_worker(connection, "minilab-a")
    announce_worker(connection, "minilab-b", alive=False)
    announce_worker(connection, "ordinary")

    assert [(worker["name"], worker["alive"]) for worker in listed()] == [
        ("minilab-a", True),
        ("minilab-b", False),
        ("ordinary", None),
    ]
    states = [line.split()[1] for line in client("workers").stdout.splitlines()]
    assert states == ["STATE", "unknown", "gone", "unknown"]


def test_a_worker_is_shown_with_its_slots_speed_and_exactness(connection: redis.Redis) -> None:
    announce_worker(connection, "minilab-a")
    publish_stats(connection, "minilab-a", replace(REPORT, reported_at=time.time()))

    heading, line = client("workers").stdout.splitlines()

    shown = dict(zip(heading.split(), cells(line), strict=True))
    assert (shown["MODEL"], shown["SLOTS"], shown["TOKENS/S"], shown["EXACT"]) == ("base", "3/64", "678", "yes")
    assert shown["SEEN"].endswith(" ago")
    (worker,) = listed()
    names = ("model", "used", "slots", "tokens", "tokens_per_second", "exactness", "fingerprint")
    assert {name: worker[name] for name in names} == {name: getattr(REPORT, name) for name in names}


def test_a_gone_worker_is_shown_with_its_last_report_but_no_speed(connection: redis.Redis) -> None:
    announce_worker(connection, "minilab-a", alive=False)
    publish_stats(connection, "minilab-a", REPORT)

    heading, line = client("workers").stdout.splitlines()

    shown = dict(zip(heading.split(), cells(line), strict=True))
    assert (shown["STATE"], shown["SLOTS"], shown["TOKENS/S"]) == ("gone", "3/64", "-")


def test_a_worker_that_is_not_exact_is_shown_as_such(connection: redis.Redis) -> None:
    announce_worker(connection, "minilab-a")
    publish_stats(connection, "minilab-a", replace(REPORT, exactness="not exact: 3 of 100 rows of logits differ"))

    assert client("workers").stdout.splitlines()[1].split()[-1] == "no"


def render(url: str, columns: int) -> list[str]:
    """The lines on a terminal of so many columns, each of which is one line of the screen only if it fits."""
    screen, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    shown = b""
    with Program(url, "workers", stdout=terminal, TERM="xterm") as program:
        os.close(terminal)
        while True:
            try:
                shown += os.read(screen, 1000)
            except OSError:  # how Linux tells that the other side is closed
                break
        assert program.ended() == (0, "")
    os.close(screen)
    return shown.decode().splitlines()


def test_the_list_fits_a_terminal_of_80_columns(server: redis.Redis, server_url: str) -> None:
    long_host = "minilab-" + "compute-node-with-a-long-name" + "-1234567-abc123"
    announce_worker(server, long_host)
    announce_worker(server, "minilab-b-7-ffffff", alive=False)
    publish_stats(server, long_host, replace(REPORT, model="SmolLM2-135M-Instruct", reported_at=time.time()))

    lines = render(server_url, 80)

    assert max(map(len, lines)) <= 80
    (name,) = [line.split()[0] for line in lines if "abc123" in line]  # what tells two workers of one host apart
    assert name.startswith("minilab")
    assert "…" in name
    assert long_host in client("workers").stdout, "a file gets it whole"
    assert long_host in "".join(render(server_url, 150))


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
    connection.set(keys.worker_stats("minilab-a"), '{"slots": 3}')

    (worker,) = listed()

    assert (worker["alive"], worker["slots"]) == (True, None)


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
