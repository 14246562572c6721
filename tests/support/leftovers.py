"""Processes that a run of the tests has started and not ended, found by a mark: an orphan has no parent to ask.

As a program it waits until the tests have ended, however that was, and ends what they left. It needs Linux's
``/proc``; elsewhere nothing is found.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

MARK: Final = "MINILAB_TEST_RUN"
"""Environment variable with the names of a run and of those around it, which each process of it inherits."""

_TEST: Final = "PYTEST_CURRENT_TEST"
"""Where pytest says which test runs, and so which test started a process."""

_SERVERS: Final = ("redis-server", "valkey-server", "redis-sentinel")
"""Programs that write their title over their environment, so that only their folder tells whose they are."""

_PATIENCE: Final = 10.0
"""Seconds for killed processes to be gone, on a loaded machine."""

_PAUSE: Final = 0.05
"""Seconds between two looks."""


@dataclass(frozen=True, slots=True)
class Leftover:
    """A process of a run that runs when the run is over."""

    pid: int
    command: str
    test: str
    """What pytest ran when it was started, as far as it is known."""

    def __str__(self) -> str:
        return f"process {self.pid}, started by {self.test or 'an unknown test'}: {self.command}"


def leftovers(run: str, folders: list[Path]) -> list[Leftover]:
    """Processes with the run's mark, and Redis servers that work in one of its folders. Never the caller itself."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # ended meanwhile, or another user's
            environment = (process / "environ").read_bytes().decode(errors="replace").split("\0")
            if int(process.name) != os.getpid() and (_has_mark(environment, run) or _serves_in(process, folders)):
                command = (process / "cmdline").read_bytes().decode(errors="replace").replace("\0", " ").strip()
                test = next((line for line in environment if line.startswith(f"{_TEST}=")), "").partition("=")[2]
                found.append(Leftover(int(process.name), command, test))
    return found


def leftovers_after(run: str, folders: list[Path], wait: float) -> list[Leftover]:
    """The same, once what is about to end has had some seconds for it."""
    give_up = time.monotonic() + wait
    while (found := leftovers(run, folders)) and time.monotonic() < give_up:
        time.sleep(_PAUSE)
    return found


def end_all(run: str, folders: list[Path]) -> None:
    """Kill them, and what they start meanwhile, until nothing is left."""
    give_up = time.monotonic() + _PATIENCE
    while (found := leftovers(run, folders)) and time.monotonic() < give_up:
        for leftover in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(leftover.pid, signal.SIGKILL)
        time.sleep(_PAUSE)


def _has_mark(environment: list[str], run: str) -> bool:
    return any(line.startswith(f"{MARK}=") and run in line.partition("=")[2].split(":") for line in environment)


def _serves_in(process: Path, folders: list[Path]) -> bool:
    if (process / "comm").read_text().strip() not in _SERVERS:
        return False
    working_folder = (process / "cwd").readlink()
    return any(working_folder.is_relative_to(folder) for folder in folders)


def _main(run: str, temporary: str) -> None:
    folders = [Path(line) for line in sys.stdin.read().splitlines()]  # ends when the tests have, even by SIGKILL
    end_all(run, [Path(temporary), *folders])
    shutil.rmtree(temporary, ignore_errors=True)


if __name__ == "__main__":
    _main(*sys.argv[1:])
