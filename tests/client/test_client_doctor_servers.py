"""What ``minilab-client doctor`` says of servers of other makes, versions and clocks. No server is needed."""

from __future__ import annotations

import time
from typing import Any

import fakeredis
import pytest
from support.client_program import diagnosis, fake_redis, finding


class OtherServer(fakeredis.FakeRedis):
    """A server that tells what a test says."""

    told: dict[str, Any]
    ahead: float = 0.0

    def info(self, section: str | None = None, *args: Any, **kwargs: Any) -> dict[str, Any]:
        return self.told

    def time(self, **kwargs: Any) -> tuple[int, int]:
        now = time.time() + self.ahead
        return int(now), int(now % 1 * 1e6)


@pytest.fixture
def other(monkeypatch: pytest.MonkeyPatch) -> OtherServer:
    """The one server to which the program connects."""
    fake_redis(monkeypatch)
    server = OtherServer(server=fakeredis.FakeServer(), protocol=2, legacy_responses=True)
    monkeypatch.setattr("minilab_gen.protocol.connection.connect", lambda *_: server)
    return server


@pytest.mark.parametrize(
    ("told", "level", "found"),
    [
        ({"redis_version": "6.2.0"}, "ok", "Redis 6.2.0"),
        ({"redis_version": "6.0.16"}, "fail", "Redis 6.0.16, and workers need LMOVE of 6.2"),
        ({"redis_version": "7.2.4", "valkey_version": "8.1.0"}, "ok", "Valkey 8.1.0"),
    ],
)
def test_a_server_without_the_commands_that_workers_need_is_a_failure(
    other: OtherServer, told: dict[str, str], level: str, found: str
) -> None:
    other.told = told

    told_of = finding("version")

    assert (told_of["level"], told_of["found"]) == (level, found)


def test_of_what_a_server_does_not_tell_nothing_is_said(other: OtherServer) -> None:
    other.told = {"redis_version": "unstable"}

    code, found = diagnosis()

    assert code == 0
    assert not {"server", "version", "role", "persistence", "eviction", "memory", "connections"} & found.keys()


def test_connections_that_run_short_are_told(other: OtherServer) -> None:
    other.told = {"connected_clients": 74, "maxclients": 100}
    assert finding("connections")["level"] == "ok"

    other.told = {"connected_clients": 75, "maxclients": 100}

    assert finding("connections") == {
        "check": "connections",
        "level": "warn",
        "found": "75 connections of 100",
        "remedy": "raise maxclients: every reader of a stream takes two",
    }


@pytest.mark.parametrize("name", ["aof_last_write_status", "rdb_last_bgsave_status"])
def test_a_write_to_disk_that_failed_is_a_failure(other: OtherServer, name: str) -> None:
    other.told = {"aof_enabled": 1, name: "err"}

    code, found = diagnosis()

    assert (code, found["persistence"][0]["level"]) == (1, "fail")
    assert found["persistence"][0]["found"].startswith(name)


@pytest.mark.parametrize(("ahead", "words"), [(90.0, "90.0 s ahead of ours"), (-90.0, "90.0 s behind ours")])
def test_a_clock_that_is_far_from_ours_is_told(other: OtherServer, ahead: float, words: str) -> None:
    other.told = {"redis_version": "7.0.0"}
    assert finding("clock")["level"] == "ok"

    other.ahead = ahead

    told = finding("clock")
    assert (told["level"], told["remedy"]) == ("warn", "let NTP set both")
    assert words in told["found"]
