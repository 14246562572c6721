"""The folder of the private Redis server: where it is, who may read it, and which process holds its locks.

In the folder ``redis`` under ``MINILAB_HOME`` lie the data, the log, the unix socket and two lock files. A starter
holds ``start.lock`` while it works. The server holds ``server.lock`` for its whole life, by a descriptor that it
inherits and never looks at; the kernel releases it when the process ends, however it ends. So no process has to trust a
socket or a process id left behind by a crash, and two servers can never write to the same data.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from minilab_gen.errors import RedisUnavailableError

SOCKET_PATH_BYTES = 103
"""What a unix socket's address holds on macOS, without the closing zero; on Linux it is 107."""

SHORT_FOLDER = Path("/tmp")  # noqa: S108 - what is made in it is checked for its owner and mode
"""Where the socket goes when the data folder's path is too long. Not XDG_RUNTIME_DIR, which is emptied at log-out while
the server lives on, nor TMPDIR: both differ between a terminal and a batch job, which must meet at one server."""

LOG_LINES = 6
"""Lines of the server's log in an error: its complaint is among the last, after a few lines of greeting."""


@dataclass(frozen=True, slots=True)
class ServerFolder:
    """Where one server has its files; the socket may lie elsewhere."""

    data: Path
    socket: Path

    @classmethod
    def of_this_user(cls) -> ServerFolder:
        """The folder that the environment names, whether or not it exists."""
        # Resolved, so that two names of one folder lead to one server.
        data = (_home() / "redis").resolve()
        socket = data / "redis.sock"
        if len(os.fsencode(socket)) > SOCKET_PATH_BYTES:
            key = hashlib.sha256(os.fsencode(data)).hexdigest()[:16]
            socket = SHORT_FOLDER / f"minilab-{os.getuid()}-{key}" / "redis.sock"
        return cls(data, socket)

    @property
    def url(self) -> str:
        """The address of the socket as redis-py takes it."""
        return unix_url(self.socket)

    @property
    def log(self) -> Path:
        """What the server has to say."""
        return self.data / "redis.log"

    @property
    def pid_file(self) -> Path:
        """Written by the server, taken away by it only when it ends in order."""
        return self.data / "redis.pid"

    @property
    def start_lock(self) -> Path:
        """Held by the process that starts or stops the server."""
        return self.data / "start.lock"

    @property
    def server_lock(self) -> Path:
        """Held by the server itself."""
        return self.data / "server.lock"

    def make(self) -> None:
        """Create what is missing. Raises RedisUnavailableError where that fails or the folder is open to others."""
        for folder in (self.data, self.socket.parent):
            try:
                folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                folder.mkdir(mode=0o700, exist_ok=True)
            except OSError as error:
                raise RedisUnavailableError(
                    f"the private Redis needs a folder that you may write, and {folder} cannot be made "
                    f"({error.strerror}): set MINILAB_HOME to another, or MINILAB_REDIS_URL to a running server"
                ) from error
            _require_private(folder)

    def exists(self) -> bool:
        """Whether a server has ever been here. Raises RedisUnavailableError where the folder is open to others."""
        if not self.data.is_dir():
            return False
        for folder in (self.data, self.socket.parent):
            if os.path.lexists(folder):
                _require_private(folder)
        return True

    def written_pid(self) -> int | None:
        """The process id in the pid file; it means the server only while ``server_lock`` is held."""
        try:
            return int(self.pid_file.read_text())
        except (OSError, ValueError):
            return None

    def complaint(self) -> str:
        """The end of the server's log, as the end of a message."""
        try:
            lines = self.log.read_text(errors="replace").splitlines()[-LOG_LINES:]
        except OSError:
            return ""
        return "".join(f"\n  {line}" for line in [f"the end of {self.log}:", *lines])


def unix_url(socket: Path) -> str:
    """The address of a unix socket as redis-py takes it."""
    return f"unix://{quote(str(socket))}"


def take_lock(path: Path) -> int | None:
    """A descriptor that holds the lock of this file until its last copy is closed; None if another process has it."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BaseException:
            os.close(descriptor)
            raise
    except BlockingIOError:
        return None
    except OSError as error:
        raise RedisUnavailableError(
            f"the private Redis needs a file system with locks, and {path} cannot be locked ({error.strerror}): "
            "set MINILAB_HOME to a folder on a local disk"
        ) from error
    return descriptor


def is_locked(path: Path) -> bool:
    """Whether a process holds the lock of this file."""
    descriptor = take_lock(path)
    if descriptor is None:
        return True
    os.close(descriptor)
    return False


def _home() -> Path:
    try:
        if own := os.environ.get("MINILAB_HOME"):
            return Path(own).expanduser().absolute()
        state = Path(os.environ.get("XDG_STATE_HOME", ""))
        if state.is_absolute():  # the XDG rules say to pass over a relative one
            return state / "minilab"
        return Path.home() / ".local" / "state" / "minilab"
    except RuntimeError as error:
        raise RedisUnavailableError("this user has no home folder: set MINILAB_HOME to another folder") from error


def _require_private(folder: Path) -> None:
    """In a shared folder like /tmp another user may have made it first, to read what we store or to answer for it."""
    found = folder.lstat()
    mode = stat.S_IMODE(found.st_mode)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or mode & 0o077:
        raise RedisUnavailableError(
            f"{folder} must be a folder of user {os.getuid()} with mode 700, got {stat.filemode(found.st_mode)} of "
            f"user {found.st_uid}: chmod 700 it if it is your folder, else set MINILAB_HOME to another"
        )
