"""``minilab-client watch`` on a terminal, as a process of its own, for tests. It must not hold a test."""

from __future__ import annotations

import fcntl
import os
import re
import select
import struct
import subprocess
import sys
import termios
from collections.abc import Callable
from typing import Any, Self

from support.client_process import environment
from support.waiting import LIMIT, wait_until

TAKEN, GIVEN_BACK = b"\x1b[?1049h\x1b[?25l\x1b[?7l", b"\x1b[0m\x1b[?7h\x1b[?25h\x1b[?1049l"
"""Other screen, no cursor, no wrapping of lines; and back."""

ON_A_TERMINAL = """
import os, runpy, sys
os.login_tty(0)
sys.argv = ["minilab-client", *sys.argv[1:]]
runpy.run_module("minilab_client", run_name="__main__", alter_sys=True)
"""
"""The program as a shell starts it: its terminal sends it signals."""


class Terminal:
    """``minilab-client watch`` on a terminal of its own, as the person before it sees it."""

    def __init__(self, url: str, *arguments: str, columns: int = 100, lines: int = 30, **variables: str) -> None:
        self.screen, self._terminal = os.openpty()
        self.resize(columns, lines)
        self.settings_before = termios.tcgetattr(self._terminal)
        self.received = b""
        self.process = subprocess.Popen(
            [sys.executable, "-c", ON_A_TERMINAL, "watch", "--interval", "0.1", *arguments],
            stdin=self._terminal,
            stdout=self._terminal,
            stderr=self._terminal,
            env={**environment(url), "TERM": "xterm-256color", **variables},
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.screen)
        os.close(self._terminal)

    def resize(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self.screen, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def press(self, keys: bytes) -> None:
        os.write(self.screen, keys)

    def read(self) -> bytes:
        """Everything that was sent so far."""
        while select.select([self.screen], [], [], 0)[0]:
            self.received += os.read(self.screen, 65_536)
        return self.received

    def frame(self) -> list[str]:
        """The lines of the last frame that is known to be whole, without colours."""
        frames = self.read().split(b"\x1b[H")[1:-1]
        text = re.sub(rb"\x1b\[[0-9;?]*[a-zA-Z]", b"", frames[-1]) if frames else b""
        return text.decode().removesuffix("\r\r\n").split("\r\r\n")

    @property
    def frames_begun(self) -> int:
        return self.read().count(b"\x1b[H")

    def wait_for(self, *words: str) -> None:
        wait_until(lambda: all(word in "\n".join(self.frame()) for word in words))

    def wait_for_bytes(self, wanted: Callable[[bytes], Any]) -> None:
        wait_until(lambda: wanted(self.read()))

    def ended(self) -> int:
        """The exit code, when it has ended and left nothing behind."""
        wait_until(lambda: self.read() is not None and self.process.poll() is not None)
        assert self.read().endswith(GIVEN_BACK)
        assert self.read().count(TAKEN) == self.read().count(GIVEN_BACK)
        assert termios.tcgetattr(self._terminal) == self.settings_before
        return self.process.wait(LIMIT)
