"""Where the private server's folder cannot be used, or what lies in it says nothing: a line with the remedy."""

from __future__ import annotations

import errno
import fcntl
import os
import pwd
from pathlib import Path

import pytest

from minilab_gen.errors import RedisUnavailableError
from minilab_gen.protocol import embedded
from minilab_gen.protocol.server_folder import ServerFolder

pytestmark = pytest.mark.usefixtures("home")


def test_a_user_without_a_home_is_told_to_name_a_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(uid: int) -> pwd.struct_passwd:
        raise KeyError(uid)

    for name in ("MINILAB_HOME", "XDG_STATE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", unknown)

    with pytest.raises(RedisUnavailableError, match="has no home folder: set MINILAB_HOME to another folder"):
        embedded.status()


def test_a_file_system_without_locks_is_named_with_its_folder(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_descriptor: int, _operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refused)
    before = _open_files()

    with pytest.raises(RedisUnavailableError, match=f"{home}/redis/start.lock cannot be locked .* on a local disk"):
        embedded.start()

    assert _open_files() == before


def _open_files() -> int:
    """How many this process has open."""
    return len(list(Path("/dev/fd").iterdir()))


@pytest.mark.parametrize("written", ["", "soon", "12 34"])
def test_a_pid_file_that_holds_no_number_names_no_process(home: Path, written: str) -> None:
    folder = ServerFolder.of_this_user()
    folder.make()
    folder.pid_file.write_text(written)

    status = embedded.status()

    assert (status.running, status.pid) == (False, None)
    assert folder.written_pid() is None


def test_a_server_that_ends_before_it_writes_a_log_gives_its_exit_code_alone(
    home: Path, monkeypatch: pytest.MonkeyPatch, no_wheel: None
) -> None:
    program = home / "bin" / "redis-server"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\nrm -f "$MINILAB_HOME/redis/redis.log"\nexit 3\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}/usr/bin{os.pathsep}/bin")
    monkeypatch.setattr("shutil.which", lambda name: str(program) if name == "redis-server" else None)

    with pytest.raises(RedisUnavailableError) as refused:
        embedded.start()

    assert str(refused.value) == f"{program} ended with code 3"


def test_a_program_that_cannot_be_run_is_named(home: Path, monkeypatch: pytest.MonkeyPatch, no_wheel: None) -> None:
    program = home / "redis-server"
    program.write_text("no program")
    monkeypatch.setattr("shutil.which", lambda name: str(program) if name == "redis-server" else None)

    with pytest.raises(RedisUnavailableError, match=f"{program} cannot be run: "):
        embedded.start()


def test_a_log_that_has_grown_large_is_put_aside(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "LOG_BYTES", 20)
    folder = ServerFolder.of_this_user()
    folder.make()
    folder.log.write_text("what the last server said\n")

    embedded.start()

    assert folder.log.with_suffix(".log.old").read_text() == "what the last server said\n"
    assert "the last server" not in folder.log.read_text()


def test_a_stop_where_no_server_runs_says_that_there_was_none(home: Path) -> None:
    embedded.start()

    assert embedded.stop() is True
    assert embedded.stop() is False
