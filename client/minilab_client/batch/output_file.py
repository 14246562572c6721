"""The file of answers: whole lines, one for each custom_id, found again by the next run.

Answers to requests that have changed since are moved out of it, not lost.

A line is written in one call, so only the last one can be torn when the program is killed, and the next run removes
that. A lock keeps a second run out.
"""

from __future__ import annotations

import os
import shutil
import stat
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Final, Self

import click

from minilab_client.batch.jsonl import beside, sync_folder, write_line
from minilab_client.output import say
from minilab_gen.batch.json_lines import parse_object
from minilab_gen.batch.line import Line, custom_id_of, digest_in, key_of
from minilab_gen.errors import RequestError
from minilab_gen.request import shown

SYNC_SECONDS: Final = 1.0
"""Seconds of answers that may be lost when the machine itself goes down; Redis still has them."""

_LONGEST_ANSWER: Final = 64_000_000
"""Bytes of a line that are read: far above the longest answer of any model, and no danger to the memory."""

_STARTS: Final = (b'{"custom_id": ', b'{"id": "batch_req_')
"""How the lines of the two forms begin."""


@dataclass(frozen=True, slots=True)
class _Recorded:
    """What a line of the file says about itself."""

    key: int
    digest: int
    fingerprint: str | None


class OutputFile:
    """Open, locked and mended, for a ``with`` block."""

    def __init__(self, path: Path) -> None:
        """Raises ClickException where another run has it, or it holds something else."""
        self._path = path.resolve()  # a link stays one when the file is replaced
        self._file = _open_locked(self._path)
        self._digests: dict[int, int] = {}  # key of a custom_id: digest of the request that its last line answers
        self._has_replaced = False
        self._unsynced_since: float | None = None
        self.fingerprints: Counter[str] = Counter()
        """Of the models that gave the answers which were there from the start."""
        try:
            self._read()
            self._move_replaced()
            sync_folder(self._path.parent)
        except BaseException:
            os.close(self._file)
            raise

    def holds(self, line: Line) -> bool:
        """Whether this very request is answered."""
        known = self._digests.get(key_of(line.custom_id))
        return any(known == int(digest, 16) for digest in (line.digest, line.rendered_digest) if digest is not None)

    def write(self, line: Line, content: Mapping[str, Any]) -> None:
        """Add the answer of a line."""
        write_line(self._file, self._path, content)
        self._note(key_of(line.custom_id), int(line.digest, 16))
        self._unsynced_since = self._unsynced_since or time.monotonic()

    def sync_if_due(self) -> None:
        """Have what was written survive a power cut, about once a second."""
        if self._unsynced_since is not None and time.monotonic() - self._unsynced_since >= SYNC_SECONDS:
            self._sync()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Make the file whole, with one line for each custom_id."""
        try:
            self._sync()
            self._move_replaced()
        finally:
            os.close(self._file)  # and the lock with it

    def _sync(self) -> None:
        os.fsync(self._file)
        self._unsynced_since = None

    def _note(self, key: int, digest: int) -> None:
        self._has_replaced = self._has_replaced or key in self._digests
        self._digests[key] = digest

    def _move_replaced(self) -> None:
        if self._has_replaced:
            old, self._file = self._file, move_replaced(self._path, lambda content: _recorded(content).key, _lock)
            os.close(old)
            self._has_replaced = False

    def _read(self) -> None:
        with self._path.open("rb") as file:
            number = 0
            while line := file.readline(_LONGEST_ANSWER):
                number += 1
                if not line.endswith(b"\n"):
                    self._mend(file, number, line)
                elif line.strip():
                    self._take(number, line)

    def _take(self, number: int, line: bytes) -> None:
        try:
            found = _recorded(line)
        except RequestError as error:
            raise click.ClickException(
                f"line {number} of {self._path} is no answer of a batch: {error}; remove it, or choose another --output"
            ) from error
        self._note(found.key, found.digest)
        if found.fingerprint:
            self.fingerprints[found.fingerprint] += 1

    def _mend(self, file: BinaryIO, number: int, line: bytes) -> None:
        """Bring a last line without its end into order: one that was torn when its writer was killed is removed."""
        is_last = not file.read(1)
        if is_last and _is_torn(line):
            os.ftruncate(self._file, os.fstat(self._file).st_size - len(line))
            say(f"line {number} of {self._path} was torn when its writer was killed; it is removed, and done again")
            return
        self._take(number, line)
        os.write(self._file, b"\n")  # an editor has removed it


def _recorded(line: bytes) -> _Recorded:
    """Raises RequestError for a line that no batch has written."""
    fields = parse_object(line)
    try:
        if "response" in fields:
            job_id, fingerprint = fields["response"]["request_id"], fields["response"]["body"]["system_fingerprint"]
        else:
            job_id, fingerprint = fields["job_id"], fields["fingerprint"]
    except (KeyError, TypeError) as error:
        raise RequestError("it names no job and its model") from error
    digest = digest_in(job_id)
    if digest is None:
        raise RequestError(f"it names the job {shown(job_id)}, which is none of a batch")
    known = fingerprint if isinstance(fingerprint, str) else None
    return _Recorded(key_of(custom_id_of(fields)), int(digest, 16), known)


def _is_torn(line: bytes) -> bool:
    """Whether it is the beginning of a line of ours, perhaps with zeros behind it, after a power cut."""
    written = line.rstrip(b"\0")
    if not any(written.startswith(start) or start.startswith(written) for start in _STARTS):
        return False
    try:
        parse_object(line)
    except RequestError:
        return True
    return False  # it is whole


def _open_locked(path: Path) -> int:
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        try:
            _lock(file, path)
            if path.exists() and os.path.samestat(os.fstat(file), path.stat()):
                return file
        except BaseException:
            os.close(file)
            raise
        os.close(file)  # a run that just ended has replaced it with another file


def _lock(file: int, path: Path) -> None:
    """Keep every other run out, until the file is closed or this program is gone."""
    if not stat.S_ISREG(os.fstat(file).st_mode):
        raise click.ClickException(f"--output must be a file that can be read again, got {path}")
    if sys.platform == "win32":
        raise click.ClickException("batch needs the file locks of Linux or macOS, got Windows")
    import fcntl  # not at the top: Windows has none, and the other commands do without

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise click.ClickException(
            f"another minilab-client writes {path}; wait until it has ended, or choose another --output"
        ) from error


def move_replaced(path: Path, key_of: Callable[[bytes], int], lock: Callable[[int, Path], None]) -> int:
    """Keep only the last line of each key in a file, and append the others to a file beside it.

    Returns the new file, open for appending and locked before another process can see it. A kill at any point loses no
    line; some may then stand in both files.
    """
    kept, moved = path.with_name(f"{path.name}.part"), beside(path, "replaced")
    with path.open("rb") as source, kept.open("wb") as new, moved.open("a+b") as old:
        _end_last_line(old)
        newest = set({key_of(line): number for number, line in _numbered(source)}.values())
        source.seek(0)
        count = 0
        for number, line in _numbered(source):
            count += number not in newest
            (new if number in newest else old).write(line)
        for file in (old, new):
            file.flush()
            os.fsync(file.fileno())
    shutil.copymode(path, kept)
    descriptor = os.open(kept, os.O_RDWR | os.O_APPEND)
    try:
        lock(descriptor, path)
        kept.replace(path)
        sync_folder(path.parent)
    except BaseException:
        os.close(descriptor)
        raise
    said = "1 line of it answers a request that has" if count == 1 else f"{count} lines of it answer requests that have"
    say(f"{path.name}: {said} changed since; moved to {moved}")
    return descriptor


def _end_last_line(file: BinaryIO) -> None:
    """Let what follows begin a line, though an earlier writer was killed in the middle of one."""
    if file.tell():
        file.seek(-1, os.SEEK_END)
        if file.read(1) != b"\n":
            file.write(b"\n")


def _numbered(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    return ((number, line) for number, line in enumerate(file) if line.strip())
