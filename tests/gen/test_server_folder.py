"""Where the private server keeps its socket and data: any home works, and no folder of others is used."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

import pytest
from support.private_server import connection_to, end_server

from minilab_gen.errors import RedisUnavailableError
from minilab_gen.protocol import embedded, server_folder

pytestmark = pytest.mark.usefixtures("home")


def test_a_long_path_puts_the_socket_elsewhere(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINILAB_HOME", str(home / ("é" * 60)))
    server = embedded.start()
    try:
        assert len(os.fsencode(server.socket)) <= server_folder.SOCKET_PATH_BYTES
        assert server.url == embedded.socket_url()
        assert stat.S_IMODE(server.socket.parent.stat().st_mode) == 0o700
        with connection_to(server) as client:
            assert client.ping()
    finally:
        end_server(server.data)
        shutil.rmtree(server.socket.parent)


@pytest.mark.parametrize("trap", ["open folder", "link", "file"])
def test_a_folder_that_others_may_have_made_is_refused(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trap: str
) -> None:
    monkeypatch.setattr(server_folder, "SHORT_FOLDER", home)
    monkeypatch.setenv("MINILAB_HOME", str(tmp_path / ("x" * 100)))
    folder = server_folder.ServerFolder.of_this_user().socket.parent
    if trap == "open folder":
        folder.mkdir()
        folder.chmod(0o777)
    elif trap == "link":
        folder.symlink_to(tmp_path)
    else:
        folder.touch()
    try:
        with pytest.raises(RedisUnavailableError, match=r"must be a folder|cannot be made"):
            embedded.start()
    finally:
        end_server(server_folder.ServerFolder.of_this_user().data)
    with pytest.raises(RedisUnavailableError, match="must be a folder"):
        embedded.status()


def test_a_home_with_blanks_and_signs_works(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINILAB_HOME", str(home / 'my "data" %41?#é'))
    server = embedded.start()
    try:
        with connection_to(server) as client:
            assert client.ping()
    finally:
        end_server(server.data)


def test_a_folder_that_cannot_be_made_is_named(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "file").touch()
    monkeypatch.setenv("MINILAB_HOME", str(home / "file"))
    with pytest.raises(RedisUnavailableError, match=r"file/redis cannot be made"):
        embedded.start()


def test_the_home_folder_follows_the_xdg_rules(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MINILAB_HOME")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("XDG_STATE_HOME", str(home / "state"))
    assert embedded.status().data == home / "state" / "minilab" / "redis"
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    assert embedded.status().data == home / ".local" / "state" / "minilab" / "redis"
