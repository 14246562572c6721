"""A Redis and a worker process of the benchmark's own, both stopped at its end."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import redis

from minilab_gen.errors import MiniLabError
from minilab_gen.measurement import peak_memory
from minilab_gen.protocol import embedded, keys
from minilab_gen.protocol.connection import connect
from minilab_gen.protocol.jobs import workers_alive

QUEUE: Final = keys.queue_name(keys.DEFAULT_MODEL)

_START_SECONDS: Final = 120.0
"""For a worker to load and check its model: 4 s on an idle machine."""
_STOP_SECONDS: Final = 60.0
"""For an idle worker to leave."""
_LEASE: Final = "600"
"""Seconds: a worker that is made to stand still for a while keeps its lease."""


@contextmanager
def private_redis() -> Iterator[redis.Redis]:
    """A connection to a server such as users get without naming one, with an empty data folder; ended at the end."""
    named = os.environ.pop("MINILAB_REDIS_URL", None)
    before = os.environ.get("MINILAB_HOME")
    on_sigterm = signal.signal(signal.SIGTERM, _leave)
    with tempfile.TemporaryDirectory(prefix="minilab-bench-") as home:
        os.environ["MINILAB_HOME"] = home
        try:
            embedded.start()
            with closing(connect()) as connection:
                yield connection
        finally:
            embedded.stop()
            signal.signal(signal.SIGTERM, on_sigterm)
            for name, value in (("MINILAB_HOME", before), ("MINILAB_REDIS_URL", named)):
                os.environ.pop(name, None)
                if value is not None:
                    os.environ[name] = value


def _leave(number: int, *_: object) -> None:
    """Unwind, so that nothing is left running."""
    sys.exit(128 + number)


def server_version(connection: redis.Redis) -> str:
    """The name and version of the server behind a connection."""
    info: dict[str, Any] = connection.info("server")
    name = "valkey" if "valkey_version" in info else "redis"
    return f"{name} {info[f'{name}_version']}"


@dataclass(frozen=True, slots=True)
class WorkerProcess:
    """A ``minilab-worker`` that serves."""

    process: subprocess.Popen[bytes]

    @property
    def peak_bytes(self) -> int | None:
        """Most memory that it has held."""
        return peak_memory(self.process.pid)

    def check_alive(self) -> None:
        """Raise MiniLabError if it has ended, so that no caller waits for it."""
        if self.process.poll() is not None:
            raise MiniLabError(f"the worker ended with code {self.process.returncode}")

    @contextmanager
    def standing_still(self) -> Iterator[None]:
        """Let it use no processor meanwhile, and claim nothing: what is submitted waits until all of it is there."""
        self.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)


@contextmanager
def worker(connection: redis.Redis, folder: Path, max_batch: int, threads: int | None) -> Iterator[WorkerProcess]:
    """A worker process on the private server, ready for jobs; told to stop at the end."""
    command = [sys.executable, "-m", "minilab_worker.cli", "--quiet", "--lease", _LEASE]
    command += ["--model", str(folder), "--name", keys.DEFAULT_MODEL, "--max-batch", str(max_batch)]
    command += ["--threads", str(threads)] if threads else []
    running = WorkerProcess(subprocess.Popen(command, stdin=subprocess.DEVNULL))
    try:
        give_up = time.monotonic() + _START_SECONDS
        while not workers_alive(connection, QUEUE):
            running.check_alive()
            if time.monotonic() > give_up:
                raise MiniLabError(f"a worker must serve within {_START_SECONDS:.0f} s, this one does not")
            time.sleep(0.05)
        yield running
    finally:
        _end(running.process)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_STOP_SECONDS)
    if process.poll() is None:
        process.kill()
        process.wait()
