"""What ``minilab-client doctor`` finds of a Redis that is well and of others, and that it changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import redis
from chaos.server import BINARY, Server
from minilab_worker.worker import Worker
from support.client_program import client, diagnosis, finding, run, submit
from support.waiting import wait_until

from minilab_gen.protocol import keys


@pytest.fixture
def own_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[redis.Redis]:
    """A server of the test's own, whose settings may be spoilt."""
    if BINARY is None:
        pytest.skip("needs redis-server or valkey-server on the PATH")
    with TemporaryDirectory(prefix="ml-") as folder, Server(Path(folder)) as server, server.connect() as connection:
        monkeypatch.setenv("MINILAB_REDIS_URL", server.url)
        yield connection


def test_a_service_that_is_well_has_nothing_to_be_warned_of(
    server: redis.Redis, start_worker: Callable[..., Worker]
) -> None:
    worker = start_worker()
    wait_until(lambda: server.exists(keys.worker_stats(worker.name), keys.model_card("base")) == 2)

    code, found = diagnosis()

    checks = {"redis", "version", "persistence", "eviction", "memory", "connections", "rights", "clock"}
    assert found.keys() == checks | {"workers", "model"}
    assert {each["level"] for findings in found.values() for each in findings} == {"ok"}
    assert code == 0


def test_each_finding_is_one_line_with_its_remedy(own_server: redis.Redis) -> None:
    result = client("doctor")

    lines = {line.split()[1]: line for line in result.stdout.splitlines()}
    assert lines["version"].startswith("ok    version")
    assert lines["workers"] == "warn  workers      none is alive, so jobs wait; start one: minilab-worker"
    assert (result.exit_code, result.stderr) == (0, "")


def test_an_eviction_policy_that_drops_keys_is_a_failure_where_there_is_a_limit(own_server: redis.Redis) -> None:
    own_server.config_set("maxmemory-policy", "volatile-lru")
    assert finding("eviction")["level"] == "warn"

    own_server.config_set("maxmemory", "200mb")

    code, found = diagnosis()
    assert code == 1
    assert found["eviction"][0]["level"] == "fail"
    assert "volatile-lru" in found["eviction"][0]["found"]
    assert found["eviction"][0]["remedy"] == "set it to noeviction"


def test_memory_that_is_nearly_full_is_told(own_server: redis.Redis) -> None:
    own_server.config_set("maxmemory", "40mb")
    assert finding("memory")["level"] == "ok"

    for n in range(8):
        own_server.set(f"other{n}", b"x" * 4_000_000)

    assert finding("memory")["level"] == "warn"


@pytest.mark.parametrize(
    ("settings", "level", "words"),
    [
        ({"appendonly": "yes", "appendfsync": "everysec"}, "ok", "flushed everysec"),
        ({"appendonly": "yes", "appendfsync": "no"}, "warn", "appendfsync no"),
        ({"appendonly": "no", "save": ""}, "warn", "nothing is written to disk"),
        ({"appendonly": "no", "save": "3600 1"}, "warn", "only snapshots"),
    ],
)
def test_what_redis_writes_to_disk_is_told(
    own_server: redis.Redis, settings: dict[str, str], level: str, words: str
) -> None:
    for name, value in settings.items():
        own_server.config_set(name, value)

    found = finding("persistence")

    assert found["level"] == level
    assert words in found["found"]


def test_a_replica_is_a_failure(own_server: redis.Redis) -> None:
    own_server.execute_command("REPLICAOF", "127.0.0.1", "1")

    code, found = diagnosis()

    assert (code, found["role"][0]["level"]) == (1, "fail")


@pytest.fixture
def restricted(own_server: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Let the program be a user with fewer rights."""

    def restrict(*rules: str) -> None:
        own_server.execute_command("ACL", "SETUSER", "narrow", "reset", "on", ">secret", "~*", "+@all", *rules)
        socket = own_server.connection_pool.connection_kwargs["path"]
        monkeypatch.setenv("MINILAB_REDIS_URL", f"unix://narrow:secret@{socket}")

    return restrict


def test_what_redis_does_not_tell_is_said_to_be_unknown(restricted: Callable[..., None]) -> None:
    restricted("-info", "-config", "-time", "-acl")

    code, found = diagnosis()

    assert code == 0
    assert "INFO is not allowed" in found["server"][0]["found"]
    assert "TIME is not allowed" in found["clock"][0]["found"]
    assert not {"version", "persistence", "eviction"} & found.keys()
    assert found["rights"][0]["level"] == "ok"


def test_without_config_the_rest_of_persistence_is_told(restricted: Callable[..., None]) -> None:
    restricted("-config")

    found = finding("persistence")

    assert found["level"] == "ok"
    assert "CONFIG is not allowed" in found["found"]


@pytest.mark.parametrize(
    ("rules", "missing"),
    [
        (["-xadd"], "XADD minilab:tokens:doctor"),
        (["-rpush", "-set"], "SET minilab:cancel:doctor, RPUSH rq:queue:minilab.base"),
        (["resetkeys", "~rq:*"], "GET minilab:model:base"),
        (["-multi"], "MULTI"),
    ],
)
def test_a_right_that_a_client_lacks_is_a_failure_that_names_it(
    restricted: Callable[..., None], own_server: redis.Redis, rules: list[str], missing: str
) -> None:
    restricted(*rules)

    code, found = diagnosis()

    assert code == 1
    assert missing in found["rights"][0]["found"]
    assert own_server.keys() == []


def test_a_service_that_redis_hides_is_a_warning(restricted: Callable[..., None]) -> None:
    restricted("-smembers")

    code, found = diagnosis()

    assert (code, found["service"][0]["level"]) == (1, "warn")
    assert "SMEMBERS" in found["rights"][0]["found"]


def test_without_a_redis_there_is_one_line_and_its_exit_code() -> None:
    result = client("doctor", "--redis-url", "unix:///nowhere/redis.sock")

    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (4, "", 1)


def test_nothing_is_changed_and_little_is_asked_however_many_jobs_there_are(server: redis.Redis) -> None:
    run(server, "x", ["a", "b"])
    submit(server, "y")
    server.rpush("rq:queue:minilab.base", *(f"j{n}" for n in range(20_000)))
    server.zadd("rq:wip:minilab.base", {f"j{n}:1": n for n in range(20_000)})
    before = everything_in(server)
    server.config_resetstat()

    diagnosis()

    stats: dict[str, Any] = server.info("commandstats")
    assert sum(each["calls"] for each in stats.values()) < 2000
    assert "cmdstat_scan" not in stats
    assert everything_in(server) == before


def everything_in(server: redis.Redis) -> dict[bytes, tuple[Any, bool]]:
    """All values as Redis serialises them, and whether they expire."""
    return {key: (server.dump(key), server.ttl(key) > 0) for key in sorted(server.scan_iter())}


def test_the_address_is_shown_without_its_password(own_server: redis.Redis) -> None:
    socket = own_server.connection_pool.connection_kwargs["path"]
    own_server.execute_command("ACL", "SETUSER", "narrow", "on", ">secret", "~*", "+@all")

    result = client("doctor", MINILAB_REDIS_URL=f"unix://narrow:secret@{socket}")

    assert f"unix://***@{socket} answers" in result.stdout
    assert "secret" not in result.stdout
