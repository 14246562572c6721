"""The file of lines that have no answer, each with its reason. It tells of the last run."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import click

from minilab_client.batch.whole_lines import write_line

_START: Final = b'{"line": '
"""How each line begins."""


class ErrorFile:
    """Empty at first: what an earlier run wrote is dropped, since its lines are tried again. It goes if it stays so."""

    def __init__(self, path: Path) -> None:
        """Raises ClickException where it holds something else."""
        self._path = path
        self._is_empty = True
        if path.exists():
            _check_ours(path)
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o666)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        os.close(self._file)
        if self._is_empty:
            self._path.unlink()

    def write(self, number: int, custom_id: str | None, code: str, reason: str, job_id: str | None = None) -> None:
        """Add a line of the input that has no answer."""
        content = {
            "line": number,
            "custom_id": custom_id,
            "job_id": job_id,
            "response": None,
            "error": {"code": code, "message": reason},
        }
        write_line(self._file, self._path, content)
        self._is_empty = False


def _check_ours(path: Path) -> None:
    if not stat.S_ISREG(path.stat().st_mode):
        raise click.ClickException(f"--errors must be a file, got {path}")
    with path.open("rb") as file:
        begins = file.read(len(_START))
    if not _START.startswith(begins):  # or is torn in the middle of that
        raise click.ClickException(f"{path} holds something else than errors of a batch; choose another --errors")
