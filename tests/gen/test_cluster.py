"""Servers that answer and are of no use: a Redis Cluster and a Sentinel are told from a Redis at once."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from chaos.server import BINARY, Server
from support.client_program import client
from support.scripted_server import ScriptedServer, free_port
from support.waiting import wait_until
from support.worker_process import start_of_worker

import minilab_gen
from minilab_gen.errors import RedisUnavailableError
from minilab_gen.protocol.connection import connect

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cluster() -> Iterator[Server]:
    """A cluster of one node that serves all slots."""
    if BINARY is None:
        pytest.skip("needs redis-server or valkey-server on the PATH")
    with TemporaryDirectory(prefix="ml-") as folder:
        options = ["--cluster-enabled", "yes", "--cluster-port", str(free_port()), "--bind", "127.0.0.1"]
        with Server(Path(folder), "--port", str(free_port()), *options) as server, server.connect() as connection:
            connection.execute_command("CLUSTER", "ADDSLOTSRANGE", "0", "16383")
            wait_until(lambda: b"cluster_state:ok" in connection.execute_command("CLUSTER", "INFO"))
            yield server


@pytest.mark.parametrize("command", [["doctor"], ["submit", "Phileas Fogg"], ["jobs"], ["watch", "--once"]])
def test_the_client_says_that_a_cluster_is_not_supported(cluster: Server, command: list[str]) -> None:
    result = client(*command, MINILAB_REDIS_URL=cluster.url)

    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (4, "", 1)
    assert result.stderr.startswith("error: Redis Cluster is not supported")
    assert "set MINILAB_REDIS_URL to a single Redis" in result.stderr


def test_a_program_is_told_as_well(cluster: Server) -> None:
    with pytest.raises(RedisUnavailableError, match="Redis Cluster is not supported"):
        minilab_gen.submit("Phileas Fogg", redis_url=cluster.url)


def test_a_cluster_is_not_waited_for(cluster: Server) -> None:
    began = time.monotonic()

    with pytest.raises(RedisUnavailableError, match="Redis Cluster is not supported"):
        connect(cluster.url, wait=60)

    assert time.monotonic() - began < 10


def test_a_worker_says_so_before_it_loads_anything(cluster: Server) -> None:
    code, said = start_of_worker(url=cluster.url)

    assert (code, said.count("\n")) == (4, 1), said
    assert said.startswith("error: Redis Cluster is not supported")


def test_a_sentinel_is_not_taken_for_a_redis() -> None:
    about = b"*4\r\n$6\r\nserver\r\n$5\r\nredis\r\n$4\r\nmode\r\n$8\r\nsentinel\r\n"
    with (
        ScriptedServer(b"+PONG\r\n", hello=about) as sentinel,
        pytest.raises(RedisUnavailableError, match=r"is a Sentinel .* sentinel://"),
    ):
        connect(f"redis://127.0.0.1:{sentinel.port}", wait=30)


def test_a_server_that_does_not_know_hello_is_a_redis() -> None:
    with (
        ScriptedServer(b"+PONG\r\n", hello=b"-ERR unknown command 'HELLO'\r\n") as old,
        connect(f"redis://127.0.0.1:{old.port}"),
    ):
        assert old.asked.count(b"PING") == 1
