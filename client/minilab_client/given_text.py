"""Text that comes from files and pipes: UTF-8, the same way everywhere."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import BinaryIO, Final

import click

from minilab_gen.request import MAX_PROMPT_CHARACTERS
from minilab_gen.utf8_text import decoded

STANDARD_INPUT: Final = Path("-")


def read_prompt(path: Path) -> str:
    """A prompt from a file, or from standard input where the path is -, without its last line end.

    ``echo`` and editors put that there; it is no part of the prompt.
    """
    if path != STANDARD_INPUT:
        try:
            with path.open("rb") as file:
                content = _read_whole(file)
        except OSError as error:
            raise click.UsageError(f"{path} cannot be read: {error.strerror}") from error
    elif sys.__stdin__ is None:
        raise click.UsageError("standard input must be open to read TEXT from it")
    else:
        content = _read_whole(sys.stdin.buffer)
    text = decoded(content, "standard input" if path == STANDARD_INPUT else str(path))
    return text.removesuffix("\n").removesuffix("\r")


def _read_whole(file: BinaryIO) -> bytes:
    """All of it, but no more than a prompt may hold: up to 4 bytes a character."""
    most = 4 * MAX_PROMPT_CHARACTERS
    content = file.read(most + 1)
    if len(content) > most:
        raise click.UsageError(f"a prompt must hold at most {MAX_PROMPT_CHARACTERS} characters, got more")
    return content
