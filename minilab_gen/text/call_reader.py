"""Reads the tokens of one answer as content and calls of tools, whichever process does so and wherever it begins."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from minilab_gen.text.call_formats import CallFormat, call_format_named
from minilab_gen.text.call_json import ToolCall
from minilab_gen.text.call_parser import CallParser, Piece
from minilab_gen.text.tokenizer import Tokenizer

_ID_LETTERS: Final = "0123456789abcdefghijklmnopqrstuvwxyz"
_ID_LENGTH: Final = 9
"""Letters and digits of a call's id: Mistral's templates refuse any other length, and other models take any."""


@dataclass(frozen=True, slots=True)
class CallReading:
    """How the calls in the answers to one request are read."""

    known: CallFormat
    names: tuple[str, ...]
    """The functions that may be called; what calls another one stays content."""
    forced: str | None = None
    """With a call that the prompt has begun, the name in it, or "" where the answer gives the name."""
    is_single: bool = False
    """Whether only the first call is given."""

    @classmethod
    def of(cls, content: Mapping[str, Any] | None) -> CallReading | None:
        """The reading that :meth:`to_json` gave; None for none, and for a format of a later release."""
        known = call_format_named((content or {}).get("format"))
        if content is None or known is None:
            return None
        return cls(known, tuple(content["names"]), content.get("forced"), bool(content.get("single")))

    def to_json(self) -> dict[str, Any]:
        return {"format": self.known.name, "names": self.names, "forced": self.forced, "single": self.is_single}


class CallReader:
    """Content and calls of one answer, from its tokens or from the whole."""

    def __init__(self, reading: CallReading, prompt: Iterable[int], tokenizer: Tokenizer) -> None:
        self._parser = CallParser(reading.known, reading.names, reading.forced)
        self._left = 1 if reading.is_single else None
        marks = (*reading.known.openers, *reading.known.closers)
        ids = {tokenizer.token_id(mark): mark for mark in marks}
        self._marks = {each: mark for each, mark in ids.items() if each is not None and tokenizer.is_special(each)}
        """Those that add no text here."""
        self._decoder = tokenizer.decoder(prompt) if self._marks else None
        self._waiting: deque[tuple[int, str]] = deque()
        """Marks that have come, and where they stand in the text, which stop texts may hold back."""
        self._decoded = self._shown = 0

    @property
    def has_marks(self) -> bool:
        """Whether ids say what the text does not."""
        return bool(self._marks)

    def push(self, token_id: int, text: str) -> list[Piece]:
        """What has been decided with this token, and the text that became printable with it."""
        if self._decoder is None:
            return self._given(self._parser.push(text))
        self._decoded += len(self._decoder.push(token_id))
        if (mark := self._marks.get(token_id)) is not None:
            self._waiting.append((self._decoded, mark))
        return self._show(text)

    def flush(self, text: str = "") -> list[Piece]:
        """What is left, with the text that came with the end."""
        return [*self._show(text), *self._given(self._parser.flush())]

    def _show(self, text: str) -> list[Piece]:
        pieces: list[Piece] = []
        while self._waiting and self._waiting[0][0] <= self._shown + len(text):
            place, mark = self._waiting.popleft()
            length = max(0, place - self._shown)
            before, text = text[:length], text[length:]
            self._shown += length
            pieces += [*self._parser.push(before), *self._parser.mark(mark)]
        self._shown += len(text)
        return self._given([*pieces, *self._parser.push(text)])

    def _given(self, pieces: list[Piece]) -> list[Piece]:
        if self._left is None:
            return pieces
        given: list[Piece] = []
        for piece in pieces:
            if isinstance(piece, str):
                given.append(piece)
            elif self._left:
                self._left -= 1
                given.append(piece)
        return given


def read_answer(
    reading: CallReading, ids: Sequence[int], text: str, prompt: Iterable[int], tokenizer: Tokenizer
) -> tuple[str | None, list[ToolCall]]:
    """Content and calls of a whole answer; None for no content beside calls."""
    reader = CallReader(reading, prompt, tokenizer)
    marked = ids if reader.has_marks else ()
    pieces = [piece for token_id in marked for piece in reader.push(token_id, "")] + reader.flush(text)
    calls = [piece for piece in pieces if isinstance(piece, ToolCall)]
    content = "".join(piece for piece in pieces if isinstance(piece, str))
    return content if content or not calls else None, calls


def call_object(call: ToolCall, answer_id: str, answer: int, index: int) -> dict[str, Any]:
    """A call as OpenAI's object. Its id is the same whenever it is made of the same answer."""
    number = int.from_bytes(hashlib.sha256(f"{answer_id}.{answer}.{index}".encode()).digest(), "big")
    letters = []
    for _ in range(_ID_LENGTH):
        number, letter = divmod(number, len(_ID_LETTERS))
        letters.append(_ID_LETTERS[letter])
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": "".join(letters), "type": "function", "function": function}
