"""The three files of a batch: which they are, how they are opened, and the one of lines without an answer."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Final, Self

import click

from minilab_client.batch.jsonl import write_line
from minilab_client.batch.output_file import OutputFile
from minilab_client.given_text import STANDARD_INPUT
from minilab_gen.batch.json_lines import read_lines


@dataclass(frozen=True, slots=True)
class OpenFiles:
    """The files of a run, with the lines that there are to read."""

    lines: BinaryIO
    total: int | None
    """Lines that are not blank; None where they can be read only once."""
    output: OutputFile
    errors: ErrorFile


@dataclass(frozen=True, slots=True)
class BatchFiles:
    """Where lines are read and outcomes are written."""

    lines: Path
    output: Path
    errors: Path

    def __post_init__(self) -> None:
        names: dict[Path, str] = {}
        for name, path in (("IN", self.lines), ("--output", self.output), ("--errors", self.errors)):
            first = names.setdefault(path.resolve(), name)
            if first != name:
                raise click.UsageError(f"{first} and {name} must be different files, got {path} for both")

    @contextmanager
    def opened(self) -> Iterator[OpenFiles]:
        """All three; the output first, whose lock keeps a second run from the others."""
        with ExitStack() as stack:
            try:
                output = stack.enter_context(OutputFile(self.output))
                errors = stack.enter_context(ErrorFile(self.errors))
                lines = stack.enter_context(self._opened_lines())
            except OSError as error:
                raise click.ClickException(
                    f"{error.filename or self.output} cannot be used: {error.strerror}"
                ) from error
            yield OpenFiles(lines, _count(lines), output, errors)

    @contextmanager
    def _opened_lines(self) -> Iterator[BinaryIO]:
        if self.lines != STANDARD_INPUT:
            with self.lines.open("rb") as file:
                yield file
        elif sys.__stdin__ is None:
            raise click.UsageError("standard input must be open to read IN from it")
        else:
            yield sys.stdin.buffer


def _count(lines: BinaryIO) -> int | None:
    """How many lines there are, at a gigabyte a second or so."""
    if not lines.seekable():
        return None
    start = lines.tell()
    total = sum(1 for _ in read_lines(lines))
    lines.seek(start)
    return total


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
