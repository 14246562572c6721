"""Answers cut before a stop text, as if the model had stopped there. It must not know who asked for that.

A model emits tokens, and a text may begin in one and end in another. What follows a stop text has no influence on what
stands before it. So to cut the finished answer gives exactly what stopping would have given.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from minilab_gen.protocol.results import Answer
from minilab_gen.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Kept:
    """What is left of an answer."""

    ids: tuple[int, ...]
    """Up to the token with which the stop text was complete, that one included."""
    text: str
    was_cut: bool


def cut(answer: Answer, stop_texts: Iterable[str], tokenizer: Tokenizer) -> Kept:
    """The answer up to the stop text that is complete first; of several, up to the one that begins first."""
    parts = [tokenizer.token_bytes(token) for token in answer.ids]
    joined = b"".join(parts)  # bytes, since a token may end inside a character
    found = []
    for text in stop_texts:
        wanted = text.encode()
        start = joined.find(wanted)
        if start >= 0:
            found.append((start + len(wanted), start))
    if not found:
        return Kept(answer.ids, answer.text, was_cut=False)
    end, start = min(found)
    return Kept(answer.ids[: _tokens_up_to(end, parts)], joined[:start].decode(errors="replace"), was_cut=True)


def _tokens_up_to(end: int, parts: list[bytes]) -> int:
    """How many tokens it takes until so many bytes are there."""
    length = 0
    for count, part in enumerate(parts, start=1):
        length += len(part)
        if length >= end:
            return count
    return len(parts)
