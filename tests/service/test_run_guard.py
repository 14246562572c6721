"""The guard of a run of the tests: it ends what tests leave, fails the run for it, and works when the run is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from chaos.server import BINARY, Server
from support.own_process import own_process
from support.waiting import LIMIT, wait_until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="processes are found in Linux's /proc"),
]

ROOT = Path(__file__).parent.parent.parent
IMPORTS = "import os, subprocess, sys, tempfile, time\nfrom pathlib import Path\n"
LEAVES_A_PROCESS = f"""{IMPORTS}
def test_that_leaves_a_process():
    subprocess.run("setsid sleep 600 > /dev/null 2>&1 & echo $! > pid", shell=True, check=True)
"""
LEAVES_A_SERVER = f"""{IMPORTS}
def test_that_leaves_a_server():
    folder = tempfile.mkdtemp()
    options = ["--port", "0", "--dir", folder, "--pidfile", os.path.abspath("pid"), "--daemonize", "yes"]
    subprocess.run([{BINARY!r}, *options, "--unixsocket", folder + "/s"], check=True)
    while not Path("pid").exists():
        time.sleep(0.01)
"""
IS_KILLED = f"{LEAVES_A_PROCESS}\n    time.sleep(600)\n"
SPREAD = ["-p", "xdist.plugin", "-n", "1"]
"""As `make test` runs them: in other processes than the first."""

HANGS = f"""{IMPORTS}import pytest

@pytest.mark.timeout(0.5)
def test_that_hangs():
    time.sleep(600)

def test_that_comes_after():
    pass
"""


def command(folder: Path, source: str, *more: str) -> list[str]:
    """A run of these tests with the settings of ours, and with these."""
    file = folder / "test_inner.py"
    file.write_text(source, encoding="utf-8")
    settings = ["-c", str(ROOT / "pyproject.toml"), "--rootdir", str(folder), "-p", "support.run_guard"]
    quick = [
        "-p",
        "no:cacheprovider",
        "--disable-plugin-autoload",
        "-p",
        "pytest_timeout",
        "-p",
        "pytest_asyncio.plugin",
    ]
    base = ["--basetemp", str(folder / "base")]
    return [sys.executable, "-m", "pytest", "-q", *settings, *quick, *base, *more, str(file)]


def options(folder: Path) -> dict[str, object]:
    variables = {**os.environ, "PYTHONPATH": str(ROOT / "tests")}
    return {"cwd": folder, "env": variables, "stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "text": True}


def run_to_the_end(folder: Path, source: str, *more: str) -> tuple[int, str]:
    with own_process(command(folder, source, *more), **options(folder)) as run:
        said, _ = run.communicate(timeout=4 * LIMIT)
    return run.returncode, said


def is_running(pid: int) -> bool:
    stat = Path("/proc", str(pid), "stat")
    try:
        return stat.read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("more", [[], SPREAD], ids=["one process", "pytest-xdist"])
def test_a_process_that_a_test_leaves_fails_the_run_and_is_ended(tmp_path: Path, more: list[str]) -> None:
    code, said = run_to_the_end(tmp_path, LEAVES_A_PROCESS, *more)

    assert (code, "1 passed" in said) == (1, True), said
    assert "started by test_inner.py::test_that_leaves_a_process (call): sleep 600" in said
    assert not is_running(int((tmp_path / "pid").read_text()))


@pytest.mark.skipif(BINARY is None, reason="needs redis-server or valkey-server on the PATH")
@pytest.mark.parametrize("more", [[], SPREAD], ids=["one process", "pytest-xdist"])
def test_a_server_that_has_left_its_parent_and_its_environment_is_found(tmp_path: Path, more: list[str]) -> None:
    code, said = run_to_the_end(tmp_path, LEAVES_A_SERVER, *more)

    assert (code, "1 passed" in said) == (1, True), said
    assert "left running, and now ended" in said
    assert not is_running(int((tmp_path / "pid").read_text()))


@pytest.mark.parametrize("more", [[], SPREAD], ids=["one process", "pytest-xdist"])
def test_a_run_that_is_killed_leaves_nothing(tmp_path: Path, more: list[str]) -> None:
    file = tmp_path / "pid"
    with own_process(command(tmp_path, IS_KILLED, *more), **options(tmp_path)) as run:
        wait_until(lambda: run.poll() is not None or (file.exists() and file.read_text()), 4 * LIMIT)
        pid = int(file.read_text())
        assert is_running(pid)

        run.kill()

        wait_until(lambda: not is_running(pid))


def test_ctrl_c_ends_a_run_in_several_processes_and_leaves_nothing(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    with own_process(command(tmp_path, IS_KILLED, *SPREAD), **options(tmp_path), start_new_session=True) as run:
        wait_until(lambda: run.poll() is not None or (file.exists() and file.read_text()), 4 * LIMIT)

        os.killpg(run.pid, signal.SIGINT)

        said, _ = run.communicate(timeout=LIMIT)
    assert run.returncode == pytest.ExitCode.INTERRUPTED, said
    assert not is_running(int(file.read_text()))


@pytest.mark.parametrize("more", [[], SPREAD], ids=["one process", "pytest-xdist"])
def test_a_test_that_hangs_fails_alone(tmp_path: Path, more: list[str]) -> None:
    code, said = run_to_the_end(tmp_path, HANGS, *more)

    assert code == 1
    assert "1 failed, 1 passed" in said
    assert "Timeout (>0.5s)" in said


@pytest.mark.timeout(120)
def test_a_process_of_a_tests_own_does_not_outlive_a_test_that_fails() -> None:
    with pytest.raises(KeyError), own_process(["sleep", "600"]) as process:
        raise KeyError

    assert process.returncode == -signal.SIGKILL


@pytest.mark.skipif(BINARY is None, reason="needs redis-server or valkey-server on the PATH")
def test_a_server_that_does_not_answer_in_time_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chaos.server._START_LIMIT", 0.0)
    server = Server(tmp_path)

    with pytest.raises(AssertionError, match="must answer within"), server:
        pytest.fail("it cannot have answered")

    assert server._process is not None
    assert server._process.returncode == -signal.SIGKILL
