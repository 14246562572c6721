"""JSON lines, written whole or not at all."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from minilab_gen.batch.json_lines import line_bytes


def write_line(file: int, path: Path, content: Mapping[str, Any]) -> None:
    """Append an object as one line to an open file. Raises OSError with the path; nothing of the line is left then."""
    before = os.fstat(file).st_size
    rest = line_bytes(content)
    try:
        while rest:  # one call, but where a disk is about to be full
            rest = rest[os.write(file, rest) :]
    except BaseException as error:
        os.ftruncate(file, before)
        if isinstance(error, OSError):
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise


def sync_folder(folder: Path) -> None:
    """Have the names in a folder survive a power cut, where its file system can do that."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def beside(path: Path, what: str) -> Path:
    """The file for something else about the same lines: ``out.jsonl`` has ``out.errors.jsonl`` beside it."""
    return path.with_name(f"{path.stem}.{what}{path.suffix}")
