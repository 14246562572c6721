"""``minilab-client`` as a process of its own, for tests. It must not hold a test."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import IO, Self

from support.waiting import LIMIT


class Program:
    """``minilab-client``, running, as its reader sees it."""

    def __init__(
        self,
        url: str,
        *arguments: str,
        stdin: int = subprocess.DEVNULL,
        stdout: int = subprocess.PIPE,
        **variables: str,
    ) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "minilab_client", *arguments],
            stdin=stdin,
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            env={**environment(url), **variables},
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.__exit__(None, None, None)

    @property
    def output(self) -> IO[str]:
        assert self.process.stdout is not None
        return self.process.stdout

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGINT)

    def ended(self) -> tuple[int, str]:
        """The exit code, and all that it said to people."""
        assert self.process.stderr is not None
        said = self.process.stderr.read()
        return self.process.wait(timeout=LIMIT), said


def environment(url: str) -> dict[str, str]:
    """The variables of a program that uses the server."""
    return {**os.environ, "MINILAB_REDIS_URL": url, "PYTHONPATH": os.pathsep.join(sys.path)}
