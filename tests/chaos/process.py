"""A process of a chaos run as an operating system sees it: killed, paused, told to stop. It must not hold a test."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

END_LIMIT: Final = 60.0
"""Seconds for a process to leave after SIGTERM, its grace time included."""


class OwnProcess:
    """One of our programs, with its log in a file."""

    def __init__(self, module: str, options: Sequence[str], log: Path, **variables: str) -> None:
        self.log = log
        self.is_asleep = False
        self.may_fail = False
        """Whether something was done to it after which it need not end well."""
        self.is_leaving = False
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, *options],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **variables},
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._process.poll()

    @property
    def said(self) -> str:
        """Everything that it has logged."""
        return self.log.read_text(encoding="utf-8", errors="replace")

    @property
    def is_serving(self) -> bool:
        """Whether it has said that it does its work."""
        raise NotImplementedError

    def kill(self) -> None:
        self.may_fail = True
        self._process.kill()
        self._process.wait()

    def sleep(self) -> None:
        """SIGSTOP: it keeps its memory and its connections, and does nothing."""
        self.is_asleep = True
        self._process.send_signal(signal.SIGSTOP)

    def wake(self) -> None:
        self.is_asleep = False
        self._process.send_signal(signal.SIGCONT)

    def terminate(self) -> None:
        self.is_leaving = True
        self._process.terminate()

    def wait(self) -> int:
        """Its exit code, once it has ended; that of a kill, if it does not."""
        try:
            return self._process.wait(END_LIMIT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()
