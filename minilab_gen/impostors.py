"""Files of checkpoint folders that are not what they should be, and what to do about them.

It must know neither torch nor Redis.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Final

_GIT_LFS: Final = b"version https://git-lfs.github.com/spec/"
_PAGES: Final = (b"<!doctype html", b"<html", b"<?xml")
_ENOUGH: Final = 512
"""Bytes from which a file is known."""


def impostor(file: Path) -> str | None:
    """What a file is instead of what its name says, and what to do; None where nothing is known against it.

    Raises OSError where it cannot be read.
    """
    with file.open("rb") as opened:
        start = opened.read(_ENOUGH)
    if not start:
        return f"{file} is empty; download or copy it again"
    if start.startswith(_GIT_LFS):
        return f"{file} is a git-lfs pointer to the file; fetch it: git -C {shlex.quote(str(file.parent))} lfs pull"
    if start.lstrip(b"\xef\xbb\xbf \t\r\n").lower().startswith(_PAGES):
        return f"{file} is a web page and not the file; download it again, on the Hub from /resolve/ and not /blob/"
    return None


def saved_again(kind: str, folder: Path) -> str:
    """The command by which transformers reads a folder with a class of its own and writes it in files of today."""
    code = (
        f"from transformers import {kind} as K; f = {json.dumps(str(folder))}; K.from_pretrained(f).save_pretrained(f)"
    )
    return f"python -c {shlex.quote(code)}"
