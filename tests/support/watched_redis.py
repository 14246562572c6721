"""A Redis with replicas, watched by Sentinels: a test's own processes, ended by their ids. It must hold no test."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
from pathlib import Path
from typing import Final, Self

import redis
from chaos.server import BINARY
from redis.backoff import NoBackoff
from redis.retry import Retry

from minilab_gen.protocol.connection import connect
from support.waiting import wait_until

SERVICE: Final = "minilab"
LIMIT: Final = 120.0
"""Seconds for anything here to come true on a loaded machine."""

_SENTINEL: Final = """
port {port}
dir {folder}
sentinel monitor {service} 127.0.0.1 {master} 2
sentinel down-after-milliseconds {service} 1000
sentinel failover-timeout {service} 5000
"""


class WatchedRedis:
    """A master, two replicas and three Sentinels."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        ports = _free_ports(6)
        self.nodes, self.sentinels = ports[:3], ports[3:]

    @property
    def url(self) -> str:
        hosts = ",".join(f"127.0.0.1:{port}" for port in self.sentinels)
        return f"sentinel://{hosts}/{SERVICE}"

    @property
    def master(self) -> int:
        """The port of the master, as the Sentinels have it."""
        with _client(self.sentinels[0]) as sentinel:
            return int(sentinel.sentinel_get_master_addr_by_name(SERVICE)[1])

    def __enter__(self) -> Self:
        try:
            self._start_all()
        except BaseException:  # a test's limit, too: a test that gets no servers cannot end them
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes.values():
            process.kill()
            process.wait()

    def _start_all(self) -> None:
        first, *others = self.nodes
        self.start_node(first)
        for port in others:
            self.start_node(port, "--replicaof", "127.0.0.1", str(first))
        for port in self.sentinels:
            file = self._folder / f"sentinel-{port}.conf"
            file.write_text(_SENTINEL.format(port=port, folder=self._folder, service=SERVICE, master=first))
            self._start(port, str(file), "--sentinel")
        wait_until(self._is_complete, LIMIT)

    def start_node(self, port: int, *options: str) -> None:
        """Start a Redis, which a Sentinel turns into a replica where it is not the master."""
        settings = ["--port", str(port), "--save", "", "--appendonly", "no", "--dir", str(self._folder)]
        # A replica that has no data yet would wait five seconds for others before it gets them.
        self._start(port, *settings, "--repl-diskless-sync-delay", "0", "--dbfilename", f"{port}.rdb", *options)

    def kill(self, port: int) -> None:
        """SIGKILL to one of them."""
        self._processes[port].kill()
        self._processes[port].wait()

    def fail_over(self) -> None:
        """Have a replica promoted although the master is well."""
        with _client(self.sentinels[0]) as sentinel:
            sentinel.sentinel_failover(SERVICE)

    def wait_for_another_master(self, old: int) -> None:
        """Until the Sentinels name another and nothing can be written to the old one any more."""
        wait_until(lambda: self.master != old and not _is_master(old), LIMIT)

    def connect(self) -> redis.Redis:
        """A connection to the present master, as programs make it. The caller closes it."""
        return connect(self.url, wait=LIMIT)

    def wait_for_replicas(self) -> None:
        """Until two replicas have everything that the master has."""
        with self.connect() as master:
            wait_until(lambda: master.wait(2, 100) == 2, LIMIT)

    def _start(self, port: int, *command: str) -> None:
        assert BINARY is not None
        with (self._folder / f"{port}.log").open("ab") as log:
            self._processes[port] = subprocess.Popen(
                [BINARY, *command], stdout=log, stderr=log, env={**os.environ, "LC_ALL": "C"}
            )
        with _client(port) as client:
            wait_until(lambda: _answers(client), LIMIT)

    def _is_complete(self) -> bool:
        """Whether every Sentinel knows both replicas and both other Sentinels."""
        for port in self.sentinels:
            with _client(port) as sentinel:
                state = sentinel.sentinel_masters()[SERVICE]
            if (state["num-slaves"], state["num-other-sentinels"]) != (2, 2):
                return False
        return True


def _client(port: int) -> redis.Redis:
    return redis.Redis(port=port, protocol=2, legacy_responses=True, retry=Retry(NoBackoff(), 0))


def _answers(client: redis.Redis) -> bool:
    with contextlib.suppress(redis.RedisError):
        return bool(client.ping())
    return False


def _is_master(port: int) -> bool:
    with _client(port) as client, contextlib.suppress(redis.RedisError):
        return bool(client.info("replication")["role"] == "master")
    return False


def _free_ports(count: int) -> list[int]:
    """So many different ones: all are held until the last is found, or one might be found twice."""
    with contextlib.ExitStack() as held:
        found = [held.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [int(one.getsockname()[1]) for one in found]
