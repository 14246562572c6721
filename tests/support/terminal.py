"""``minilab-client`` at a terminal of its own, whose keys reach it as a person's do. It must not hold a test."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import time
from typing import Self

from support.client_process import environment
from support.waiting import LIMIT

CTRL_C, CTRL_D, ENTER = "\x03", "\x04", "\r"

_AT_ITS_TERMINAL = """
import fcntl, os, sys, termios
os.setsid()
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.executable, [sys.executable, "-m", "minilab_client", *sys.argv[1:]])
"""


class Terminal:
    """The program, and what stands on its screen so far."""

    def __init__(self, url: str, *arguments: str) -> None:
        self._screen, terminal = pty.openpty()
        self._process = subprocess.Popen(
            [sys.executable, "-c", _AT_ITS_TERMINAL, *arguments],
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
            env={**environment(url), "TERM": "dumb", "NO_COLOR": "1"},
        )
        os.close(terminal)
        self._shown = ""
        self._seen = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._screen)

    def type(self, keys: str) -> None:
        os.write(self._screen, keys.encode())

    def wait_for(self, text: str, limit: float = LIMIT) -> str:
        """Read on until this is shown after what earlier calls waited for; what came before it."""
        give_up = time.monotonic() + limit
        while (position := self._shown.find(text, self._seen)) < 0:
            assert time.monotonic() < give_up, f"{text!r} is not in {self._shown[self._seen :]!r}"
            self._read()
        came, self._seen = self._shown[self._seen : position], position + len(text)
        return came

    def wait_for_more(self) -> None:
        """Wait until anything is shown after what earlier calls waited for."""
        give_up = time.monotonic() + LIMIT
        while len(self._shown) == self._seen:
            assert time.monotonic() < give_up, "nothing more is shown"
            self._read()

    def ended(self) -> int:
        """The exit code, once it has ended by itself."""
        give_up = time.monotonic() + LIMIT
        while self._process.poll() is None:  # it cannot end before all that it wrote is read
            assert time.monotonic() < give_up, self._shown
            self._read()
        return self._process.wait()

    def _read(self) -> None:
        if select.select([self._screen], [], [], 0.05)[0]:
            try:
                self._shown += os.read(self._screen, 10_000).decode(errors="replace")
            except OSError:  # how Linux tells that the other side is closed
                time.sleep(0.05)
