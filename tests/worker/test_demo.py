"""``minilab-worker demo``, which starts a Redis and a worker of its own: whatever ends it, nothing of it is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Self

import pytest
from support.waiting import wait_until

pytestmark = pytest.mark.slow

LIMIT = 300.0
"""Seconds for a worker to load and check its model on a machine that is loaded."""

needs_proc = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="looks for processes in /proc")


class Demonstration:
    """It, running, as a terminal runs it: in a process group to which Ctrl-C is sent."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        environment = {**os.environ, "TMPDIR": str(folder), "PYTHONPATH": os.pathsep.join(sys.path)}
        # Settings of a user, which would let a demonstration that heeds them fail or wait for ever.
        environment |= {"MINILAB_NAME": "another", "MINILAB_REDIS_URL": "redis://127.0.0.1:1"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "minilab_worker", "demo"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            start_new_session=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for pid in self.processes():
            os.kill(pid, signal.SIGKILL)
        self.process.__exit__(None, None, None)

    def processes(self) -> list[int]:
        """Whatever runs with the demonstration's environment, and itself."""
        mark = os.fsencode(self._folder)
        return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit() and _has(entry, mark)]

    def send(self, number: int) -> None:
        os.killpg(self.process.pid, number)

    def read_until(self, text: str) -> None:
        assert self.process.stdout is not None
        read = b""
        while text.encode() not in read:
            byte = self.process.stdout.read(1)
            assert byte, f"it ended before {text!r}: {read.decode()}"
            read += byte

    def workers(self) -> list[int]:
        """The worker's process, once it is on its way."""
        return [pid for pid in self.processes() if "--quiet" in _command(pid)]

    def ended(self) -> tuple[int, str, str]:
        """Its exit code, and what else it said on stdout and stderr."""
        output, errors = self.process.communicate(timeout=LIMIT)
        return self.process.returncode, output.decode(), errors.decode()


@pytest.fixture
def demonstration() -> Iterator[Demonstration]:
    with TemporaryDirectory(prefix="ml-") as name, Demonstration(Path(name)) as running:
        yield running
        assert running.processes() == []
        assert list(Path(name).iterdir()) == []


def in_the_middle_of_an_answer(running: Demonstration) -> None:
    running.read_until("Phileas Fogg,")


def while_the_worker_loads(running: Demonstration) -> None:
    wait_until(running.workers)


def as_it_begins(running: Demonstration) -> None:
    running.read_until("Starting")


def _has(process: Path, mark: bytes) -> bool:
    try:
        return mark in (process / "environ").read_bytes()
    except OSError:  # it has ended, or is another user's
        return False


def _command(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8").split("\0")
    except OSError:
        return []


def demo_of(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run it to its end with these arguments of Python; modules in the folder come first."""
    return subprocess.run(
        [sys.executable, *arguments, "demo"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *sys.path]), "TMPDIR": str(folder)},
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )


@needs_proc
def test_the_demonstration_shows_two_answers_and_leaves_nothing(demonstration: Demonstration) -> None:
    code, output, errors = demonstration.ended()

    assert (code, errors) == (0, "")
    assert output.count("\nPhileas Fogg") == 2
    assert output.count("(60 tokens, the first after ") == 2


@needs_proc
@pytest.mark.parametrize("moment", [as_it_begins, while_the_worker_loads, in_the_middle_of_an_answer])
def test_ctrl_c_ends_the_demonstration_in_a_line_and_leaves_nothing(
    demonstration: Demonstration, moment: Callable[[Demonstration], None]
) -> None:
    moment(demonstration)
    demonstration.send(signal.SIGINT)

    code, _, errors = demonstration.ended()

    assert code == 130
    assert errors == "\nInterrupted. Worker and Redis are stopped again.\n"


def test_ctrl_c_that_a_starting_redis_hears_first_is_an_interrupt_and_no_missing_redis(tmp_path: Path) -> None:
    run = """
import os, signal
from minilab_gen.errors import RedisUnavailableError
from minilab_gen.protocol import embedded
from minilab_worker.cli import main

def start():
    os.kill(os.getpid(), signal.SIGINT)
    raise RedisUnavailableError("redis-server ended with code -2")

embedded.start = start
main()
"""
    ended = demo_of("-c", run, folder=tmp_path)

    assert ended.returncode == 130
    assert ended.stderr == "\nInterrupted. Worker and Redis are stopped again.\n"


@needs_proc
def test_the_terminals_ctrl_c_does_not_reach_the_worker_which_the_demonstration_stops(
    demonstration: Demonstration,
) -> None:
    while_the_worker_loads(demonstration)

    (worker,) = demonstration.workers()

    assert os.getpgid(worker) != os.getpgid(demonstration.process.pid)
    demonstration.send(signal.SIGTERM)
    demonstration.ended()


@needs_proc
def test_an_impatient_ctrl_c_leaves_nothing_either(demonstration: Demonstration) -> None:
    while_the_worker_loads(demonstration)
    while demonstration.process.poll() is None:
        demonstration.send(signal.SIGINT)

    code, _, errors = demonstration.ended()

    assert code in {130, -signal.SIGINT}  # the second when all was stopped, and Python itself was about to exit
    assert "Traceback" not in errors


@needs_proc
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_demonstration_that_is_told_to_end_leaves_nothing(demonstration: Demonstration, number: int) -> None:
    while_the_worker_loads(demonstration)
    demonstration.send(number)

    code, _, _ = demonstration.ended()

    assert code == 128 + number


def test_ctrl_c_during_imports_prints_nothing(tmp_path: Path) -> None:
    interrupting = "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(60)\n"
    (tmp_path / "click.py").write_text(interrupting, encoding="utf-8")

    ended = demo_of("-m", "minilab_worker", folder=tmp_path)

    assert ended.returncode == 130
    assert (ended.stdout, ended.stderr) == ("", "")


@pytest.mark.parametrize("module", ["numpy", "safetensors"])
def test_a_demonstration_without_the_extra_says_what_to_install_and_starts_nothing(module: str, tmp_path: Path) -> None:
    run = f"import sys; sys.modules[{module!r}] = None; from minilab_worker.cli import main; main()"

    ended = demo_of("-c", run, folder=tmp_path)

    assert ended.returncode == 1
    assert f"{module} is missing" in ended.stderr
    assert ended.stderr.count("\n") == 1
    assert ended.stdout == ""
