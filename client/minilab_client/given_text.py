"""Text that comes from files and pipes: UTF-8, the same way everywhere."""

from __future__ import annotations

import codecs
import sys
from pathlib import Path
from typing import BinaryIO, Final

import click

from minilab_gen.errors import RequestError
from minilab_gen.request import MAX_PROMPT_CHARACTERS

STANDARD_INPUT: Final = Path("-")

_OTHER_MARKS: Final = {  # UTF-32's first, since one of them begins with one of UTF-16
    codecs.BOM_UTF32_LE: "UTF-32",
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}


def without_mark(content: bytes, source: str) -> bytes:
    """The bytes without the byte-order mark that some editors put first; ``source`` is what has them, for people.

    Raises RequestError for the mark of another encoding.
    """
    for mark, encoding in _OTHER_MARKS.items():
        if content.startswith(mark):
            convert = f"convert it with: iconv -f {encoding} -t UTF-8"
            raise RequestError(f"{source} must be UTF-8, got the byte-order mark of {encoding}; {convert}")
    return content.removeprefix(codecs.BOM_UTF8)


def decoded(content: bytes, source: str) -> str:
    """The text in bytes, without a byte-order mark. Raises RequestError for what is not UTF-8."""
    bare = without_mark(content, source)
    try:
        return bare.decode()
    except UnicodeDecodeError as error:
        position = error.start + len(content) - len(bare)
        raise RequestError(f"{source} must be UTF-8, got another byte at position {position}") from error


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
