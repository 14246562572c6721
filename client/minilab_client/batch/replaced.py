"""Answers to requests that have changed since: moved out of the output, not lost."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from minilab_client.batch.whole_lines import beside, sync_folder
from minilab_client.output import say


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
