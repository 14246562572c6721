"""A pytest plugin: whatever a run of the tests starts, it ends, and a run that left something running has failed.

With pytest-xdist, each of its processes has a guard for what its own tests start, and tells the first one what they
left; the first one's marks all of them, for when such a process is killed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import uuid
from pathlib import Path
from typing import Any, Final

import pytest

from support import leftovers
from support.leftovers import MARK

_PATIENCE: Final = 5.0
"""Seconds in which a process that was told to end must be gone when the last test is over."""

_LEFT: Final = "minilab_left"
"""Where a process of pytest-xdist says what its tests left."""


class RunGuard:
    """Marks what the run starts, looks for it at the end, and has a process that does so if the run is killed."""

    def __init__(self) -> None:
        self.left: list[str] = []
        self._run = uuid.uuid4().hex
        temporary = Path(tempfile.mkdtemp(prefix="mlt-")).resolve()
        self._folders = [temporary]
        self._watcher = subprocess.Popen(
            [sys.executable, "-S", "-E", leftovers.__file__, self._run, str(temporary)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,  # it outlives Ctrl-C, and what kills the run's process group
            env={name: value for name, value in os.environ.items() if name != MARK},
        )
        # pytest keeps its own folders where they were, some runs long; whatever else is temporary goes with this run.
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
        os.environ["TMPDIR"] = tempfile.tempdir = str(temporary)
        os.environ[MARK] = ":".join(filter(None, [os.environ.get(MARK), self._run]))

    def add_folder(self, folder: Path) -> None:
        """Servers that work in this folder are the run's, too."""
        self._folders.append(folder)
        assert self._watcher.stdin is not None
        print(folder, file=self._watcher.stdin, flush=True)

    @pytest.hookimpl(trylast=True)  # after the last fixtures
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        self.left += map(str, leftovers.leftovers_after(self._run, self._folders, _PATIENCE))
        if self.left:
            leftovers.end_all(self._run, self._folders)
            session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED
        if hasattr(session.config, "workeroutput"):  # pytest-xdist sends it to the first process
            session.config.workeroutput[_LEFT] = self.left

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """A process of pytest-xdist has ended; one that was killed says nothing."""
        self.left += getattr(node, "workeroutput", {}).get(_LEFT, [])

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.left:
            terminalreporter.section("left running, and now ended", red=True)
            for leftover in self.left:
                terminalreporter.line(leftover, red=True)

    def pytest_unconfigure(self) -> None:
        self._watcher.communicate()


_GUARD: Final = pytest.StashKey[RunGuard]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_GUARD] = RunGuard()
    config.pluginmanager.register(config.stash[_GUARD])


@pytest.fixture(scope="session", autouse=True)
def _folders_of_tests(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> None:
    pytestconfig.stash[_GUARD].add_folder(tmp_path_factory.getbasetemp())
