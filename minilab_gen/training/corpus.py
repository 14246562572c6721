"""Books as training text: chapters apart, some held out, the rest as one long row of token ids.

A book is UTF-8 text, one paragraph a line, a blank line before each chapter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from minilab_gen.errors import RequestError
from minilab_gen.text.tokenizer import END_OF_TEXT, Tokenizer


@dataclass(frozen=True, slots=True)
class Corpus:
    """What is trained on and what is held out, chapter by chapter. The first book is the one the model is about."""

    books: tuple[tuple[str, ...], ...]
    held_out: tuple[str, ...]

    @property
    def training_chapters(self) -> list[str]:
        return [chapter for book in self.books for chapter in book]


def read_corpus(files: Sequence[Path], held_out_chapters: int) -> Corpus:
    """Read books and hold out the last chapters of the first. Raises RequestError where nothing is left."""
    books = [_chapters(file) for file in files]
    first = books[0]
    if not 1 <= held_out_chapters < len(first):
        raise RequestError(
            f"held-out chapters must be between 1 and {len(first) - 1}, one less than {files[0]} has, "
            f"got {held_out_chapters}"
        )
    kept = len(first) - held_out_chapters
    return Corpus(books=(first[:kept], *books[1:]), held_out=first[kept:])


def token_row(chapters: Sequence[str], tokenizer: Tokenizer) -> Tensor:
    """All chapters as ids (length,), each followed by the end-of-text token."""
    end = tokenizer.encode(END_OF_TEXT)
    return torch.tensor([token for chapter in chapters for token in tokenizer.encode(chapter) + end])


def _chapters(file: Path) -> tuple[str, ...]:
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"the corpus file {file} cannot be read: {error}") from error
    return tuple(chapter.strip() + "\n" for chapter in text.split("\n\n") if chapter.strip())
