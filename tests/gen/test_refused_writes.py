"""A Redis that refuses writes, for want of disk, of memory or of a primary: what stands in it is read all the same."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import redis
from chaos.server import BINARY, Server
from support.client_program import client, diagnosis, overdue, run
from support.waiting import wait_until

import minilab_gen
from minilab_gen.errors import RedisUnavailableError
from minilab_gen.protocol.connection import connect
from minilab_gen.protocol.refusals import redis_cli, refusal, refuses_writes

Spoil = Callable[[redis.Redis, Path], None]


def _fail_snapshots(connection: redis.Redis, folder: Path) -> None:
    """What a full disk does, for any user: a snapshot cannot get its name, which a folder has."""
    connection.config_set("save", "3600 1")
    (folder / "dump.rdb").mkdir()
    connection.bgsave()
    wait_until(lambda: connection.info("persistence")["rdb_last_bgsave_status"] == "err")


def _fill_memory(connection: redis.Redis, folder: Path) -> None:
    connection.config_set("maxmemory", "1")


def _make_a_replica(connection: redis.Redis, folder: Path) -> None:
    connection.execute_command("REPLICAOF", "127.0.0.1", "1")


REFUSALS = [
    pytest.param(_fail_snapshots, "Redis refuses writes: MISCONF", "disk of the Redis server", id="disk"),
    pytest.param(_fill_memory, "Redis is full", "raise its maxmemory", id="memory"),
    pytest.param(_make_a_replica, "Redis only serves readers", "address of the primary", id="replica"),
]


@pytest.fixture
def own_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[redis.Redis, Path]]:
    """A server of the test's own with one ended job ``x`` and one ``late`` that has waited too long; its folder."""
    if BINARY is None:
        pytest.skip("needs redis-server or valkey-server on the PATH")
    with TemporaryDirectory(prefix="ml-") as folder, Server(Path(folder)) as server, server.connect() as connection:
        monkeypatch.setenv("MINILAB_REDIS_URL", server.url)
        run(connection, "x", ["a", "b"])
        overdue(connection, "late")
        yield connection, Path(folder)


@pytest.mark.parametrize(("spoil", "found", "remedy"), REFUSALS)
def test_what_stands_in_it_is_read(own_server: tuple[redis.Redis, Path], spoil: Spoil, found: str, remedy: str) -> None:
    spoil(*own_server)

    assert client("tail", "x").stdout == "ab\n"
    assert client("result", "x").stdout == "ab\n"
    assert "finished" in client("status", "x").stdout
    late = client("status", "late")  # which cannot be ended now
    assert (late.exit_code, late.stderr) == (0, "")
    assert client("jobs", "--state", "finished").stdout.count("\n") == 2
    assert minilab_gen.result("x") is not None
    for command in (["jobs"], ["models"], ["workers"], ["watch", "--once"]):
        assert client(*command).exit_code == 0


@pytest.mark.parametrize(("spoil", "found", "remedy"), REFUSALS)
@pytest.mark.parametrize("command", [["submit", "Phileas Fogg"], ["retry", "x"]])
def test_a_command_that_writes_says_why_it_cannot(
    own_server: tuple[redis.Redis, Path], spoil: Spoil, found: str, remedy: str, command: list[str]
) -> None:
    spoil(*own_server)

    result = client(*command)

    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (4, "", 1)
    assert result.stderr.startswith(f"error: {found}")
    assert remedy in result.stderr


@pytest.mark.parametrize(("spoil", "found", "remedy"), REFUSALS)
def test_a_program_gets_the_same_words(
    own_server: tuple[redis.Redis, Path], spoil: Spoil, found: str, remedy: str
) -> None:
    spoil(*own_server)

    with pytest.raises(RedisUnavailableError, match=found) as caught:
        minilab_gen.submit("Phileas Fogg")

    assert remedy in str(caught.value)


@pytest.mark.parametrize(("spoil", "found", "remedy"), REFUSALS)
def test_the_doctor_says_so(own_server: tuple[redis.Redis, Path], spoil: Spoil, found: str, remedy: str) -> None:
    assert "writes" not in diagnosis()[1]

    spoil(*own_server)

    code, findings = diagnosis()
    assert code == 1
    assert findings["redis"][0]["level"] == "ok"
    assert findings["writes"][0]["found"].startswith(found)
    assert remedy in findings["writes"][0]["remedy"]


def test_a_failed_snapshot_names_its_folder(own_server: tuple[redis.Redis, Path]) -> None:
    _fail_snapshots(*own_server)

    assert str(own_server[1]) in diagnosis()[1]["persistence"][0]["remedy"]


def test_the_commands_of_the_remedy_work_as_they_stand(own_server: tuple[redis.Redis, Path]) -> None:
    connection, folder = own_server
    _fail_snapshots(connection, folder)

    first, second = client("submit", "Phileas Fogg").stderr.split("`")[1::2]

    shown = subprocess.run(shlex.split(first), capture_output=True, text=True, check=True).stdout
    assert "rdb_last_bgsave_status:err" in shown
    (folder / "dump.rdb").rmdir()
    subprocess.run(shlex.split(second), capture_output=True, check=True)
    wait_until(lambda: client("submit", "Phileas Fogg").exit_code == 0)


@pytest.mark.parametrize(
    ("message", "refuses"),
    [
        ("MISCONF Errors writing to the AOF file: No space left on device", True),
        ("Command # 1 (XADD MISCONF) of pipeline caused error: MISCONF Errors writing to the AOF file", True),
        ("Error running script (call to f_1): @user_script:1: @user_script: 1: -MISCONF Errors writing", True),
        ("NOREPLICAS Not enough good replicas to write.", True),
        ("Command # 1 (SET MISCONF OOM) of pipeline caused error: WRONGTYPE Operation against a key", False),
        ("this user has no permissions to run the 'xadd' command", False),
        ("unknown command 'BOOM'", False),
    ],
)
def test_a_refusal_is_known_by_its_word(message: str, refuses: bool) -> None:
    assert refuses_writes(redis.ResponseError(message)) == refuses


def test_only_the_reason_of_a_refusal_is_told() -> None:
    told = "MISCONF Errors writing to the AOF file: No space left on device script: ff967d, on @user_script:1."

    found, _ = refusal(redis.ResponseError(told))

    assert found == "Redis refuses writes: MISCONF Errors writing to the AOF file: No space left on device"


def test_a_lost_connection_is_no_refusal() -> None:
    assert not refuses_writes(redis.ConnectionError("READONLY was lost"))


@pytest.mark.parametrize(
    ("url", "command"),
    [
        ("redis://127.0.0.1:6390/2", "redis-cli -h 127.0.0.1 -p 6390"),
        ("redis://localhost", "redis-cli -h localhost -p 6379"),
        ("redis://me:secret@localhost", "redis-cli -h localhost -p 6379 --askpass"),
        ("rediss://localhost", "redis-cli -h localhost -p 6379 --tls"),
        ("unix:///run/my redis.sock", "redis-cli -s '/run/my redis.sock'"),
    ],
)
def test_a_command_to_be_typed_leads_to_the_same_server(url: str, command: str) -> None:
    with redis.Redis.from_url(url) as connection:
        assert redis_cli(connection) == command


def test_a_connection_is_made_to_a_server_that_can_be_read(own_server: tuple[redis.Redis, Path]) -> None:
    _fail_snapshots(*own_server)

    with connect() as connection:
        assert connection.exists("minilab:tokens:x")
        with pytest.raises(redis.ResponseError, match="MISCONF"):
            connection.ping()
