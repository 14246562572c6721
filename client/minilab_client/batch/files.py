"""The three files of a batch: which they are, and how they are opened."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import click

from minilab_client.batch.error_file import ErrorFile
from minilab_client.batch.output_file import OutputFile
from minilab_client.batch.raw_lines import read_lines
from minilab_client.given_text import STANDARD_INPUT


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
