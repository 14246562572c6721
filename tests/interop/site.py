"""A tool that shows what it sees over HTTP."""

from __future__ import annotations

import json
import socket
import subprocess
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Self

from support.waiting import wait_until

_START_LIMIT: Final = 60.0
"""Seconds for a program to import what it needs and to listen, on a loaded machine."""

_ANSWER_LIMIT: Final = 30.0
_OPENER: Final = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class Site:
    """Its process, from the first answer to the end of the block."""

    def __init__(self, command: Sequence[str], log: Path) -> None:
        """``command`` takes ``--port``, as all of these tools do."""
        self._port = free_port()
        self._command = [*command, "--port", str(self._port)]
        self._log = log

    def __enter__(self) -> Self:
        with self._log.open("wb") as output:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
            )
        try:
            wait_until(self._listens, _START_LIMIT)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    def get(self, path: str) -> str:
        """A page, which must be there."""
        status, page = self.ask(path)
        said = self._log.read_text(encoding="utf-8", errors="replace")
        assert status == 200, f"{path} must be answered with 200, got {status}\n{said[-2000:]}"
        return page

    def ask(self, path: str) -> tuple[int, str]:
        """The status and the page, or what is said in its place."""
        try:
            with _OPENER.open(f"http://127.0.0.1:{self._port}{path}", timeout=_ANSWER_LIMIT) as answer:
                return 200, bytes(answer.read()).decode()
        except urllib.error.HTTPError as error:
            return error.code, bytes(error.read()).decode(errors="replace")

    def get_json(self, path: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.get(path))
        return found

    def _listens(self) -> bool:
        said = self._log.read_text(encoding="utf-8", errors="replace")
        assert self._process.poll() is None, f"{self._command} ended as it started:\n{said}"
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self._port)) == 0


def free_port() -> int:
    """A port of this machine that nothing listens on at present."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
