"""A Redis of a test's own, on a unix socket, with its data on disk, that can be killed and started again."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Final, Self

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

BINARY: Final = shutil.which("redis-server") or shutil.which("valkey-server")
_START_LIMIT: Final = 60.0  # seconds; far above what a small append-only file takes on a loaded machine


class Server:
    """A server process; its folder's name must be short enough for a unix socket."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.socket = folder / "redis.sock"
        self.url = f"unix://{self.socket}"
        self._folder, self._options = folder, options
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:  # a test's limit, too: a test that gets no server cannot end it
            self.kill()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> None:
        """Start it, with what it had before, and wait until it answers."""
        assert BINARY is not None, "chaos needs redis-server or valkey-server on the PATH"
        settings = ["--port", "0", "--unixsocket", str(self.socket), "--dir", str(self._folder), "--save", ""]
        log = ["--appendonly", "yes", "--appendfsync", "everysec", "--logfile", str(self._folder / "redis.log")]
        self.socket.unlink(missing_ok=True)
        command = [BINARY, *settings, *log, *self._options]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env={**os.environ, "LC_ALL": "C"})
        give_up = time.monotonic() + _START_LIMIT
        with self.connect() as connection:
            while not _answers(connection):
                assert time.monotonic() < give_up, f"redis-server must answer within {_START_LIMIT:.0f} s"
                time.sleep(0.01)

    def kill(self) -> None:
        """SIGKILL: what it had not written yet is lost."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def terminate(self) -> None:
        """SIGTERM: it writes everything down first."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait()

    def connect(self) -> redis.Redis:
        """A connection that tells at once when the server is away. The caller closes it."""
        return redis.Redis.from_url(self.url, protocol=2, legacy_responses=True, retry=Retry(NoBackoff(), 0))


def _answers(connection: redis.Redis) -> bool:
    with contextlib.suppress(redis.RedisError):
        return bool(connection.ping())
    return False
