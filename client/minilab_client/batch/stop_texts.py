"""Answers cut before a stop text, as if the model had stopped there.

A model emits tokens, and a text may begin in one and end in another. What follows a stop text has no influence on what
stands before it. So to cut the finished answer gives exactly what stopping would have given. The text that counts is
the one that a reader sees: tokens alone may read otherwise, by a space at the start or a character that is never whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from minilab_gen.protocol.results import Answer
from minilab_gen.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Kept:
    """What is left of an answer."""

    ids: tuple[int, ...]
    """Up to the token with which the stop text was readable, that one included."""
    text: str
    was_cut: bool


def cut(answer: Answer, stop_texts: Iterable[str], tokenizer: Tokenizer, prompt: Sequence[int]) -> Kept:
    """The answer up to the stop text that is complete first; of several, up to the one that begins first."""
    text = answer.text + _unread_text(answer, tokenizer)
    found = [(start + len(stop), start) for stop in stop_texts if (start := text.find(stop)) >= 0]
    if not found:
        return Kept(answer.ids, answer.text, was_cut=False)
    end, start = min(found)
    return Kept(answer.ids[: _tokens_up_to(end, answer.ids, tokenizer, prompt)], answer.text[:start], was_cut=True)


def _unread_text(answer: Answer, tokenizer: Tokenizer) -> str:
    """What the token that ended the answer would have added: a stop text may begin before it and end in it."""
    if answer.end.reason != "stop" or not answer.ids:
        return ""
    return tokenizer.token_bytes(answer.ids[-1]).decode(errors="replace")


def _tokens_up_to(end: int, ids: Sequence[int], tokenizer: Tokenizer, prompt: Sequence[int]) -> int:
    """How many tokens it takes until so many characters can be read."""
    decoder, length = tokenizer.decoder(prompt), 0
    for count, token_id in enumerate(ids, start=1):
        length += len(decoder.push(token_id))
        if length >= end:
            return count
    return len(ids)
