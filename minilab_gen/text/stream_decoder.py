"""Token ids into text as they come, never half a character.

The pieces of an answer, joined, are what the tokenizers library makes of prompt and answer together, less the text of
the prompt. Two kinds of tokenizers are known, by the decoder in ``tokenizer.json``:

byte-level
    Every token is a string of bytes (byte-pair encoding over UTF-8, as GPT-2 did it).
pieces
    Every token is a piece of text in which a sign such as ``▁`` stands for a space, as SentencePiece has it; what is in
    no piece is spelled in tokens such as ``<0xE9>``, one for each byte.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

from minilab_gen.errors import CheckpointError

_AFTER_REPLACEMENTS: tuple[list[str], ...] = (
    ["ByteFallback", "Fuse", "Strip"],
    ["ByteFallback", "Fuse"],
    ["ByteFallback"],
    ["Fuse", "Strip"],
    ["Fuse"],
    [],
)
"""Steps of a decoder of pieces. ``Strip`` comes after ``Fuse``, else it would act on every piece."""

_BYTE_TOKEN_LENGTH = len("<0xE9>")
_HEXADECIMAL = 16
_DAMAGED = "\N{REPLACEMENT CHARACTER}"


class StreamDecoder(Protocol):
    """Turns the ids of one answer into text."""

    def push(self, token_id: int) -> str:
        """The text that became printable with this token."""
        ...

    def flush(self) -> str:
        """What is left when no more tokens come: U+FFFD for a character cut short, else nothing or held back text."""
        ...


class ByteDecoder:
    """The decoder of byte-level tokens: holds back the bytes of a character until it is whole.

    ``whole`` keeps the text of each token met so far that consists of whole characters; many decoders may share it. A
    decoder that holds back nothing makes the same text of such a token, and holds back nothing afterwards.
    """

    def __init__(self, bytes_of: Callable[[int], bytes], whole: dict[int, str]) -> None:
        self._bytes_of, self._whole = bytes_of, whole
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._holds_back = False

    def push(self, token_id: int) -> str:
        if not self._holds_back and (known := self._whole.get(token_id)) is not None:
            return known
        began_whole = not self._holds_back
        text = self._decoder.decode(self._bytes_of(token_id))
        self._holds_back = bool(self._decoder.getstate()[0])
        if began_whole and not self._holds_back:
            self._whole[token_id] = text
        return text

    def flush(self) -> str:
        return self._decoder.decode(b"", final=True)


@dataclass(frozen=True, slots=True)
class PieceRules:
    """What the decoder in ``tokenizer.json`` makes of a row of pieces."""

    replacements: tuple[tuple[str, str], ...] = ()
    """What is replaced in each piece, and by what."""
    byte_tokens: bool = False
    """Whether ``<0xE9>`` is a byte."""
    stripped: str = " "
    strips: int = 0
    """How many of these characters are taken from the start of the whole text."""
    dropped_from_first: str = ""
    """What is left out of the first piece of all."""

    def read(self, piece: str) -> str | int:
        """The text that a piece adds, or the byte that it names."""
        for sign, text in self.replacements:
            piece = piece.replace(sign, text)
        byte = _byte_named(piece) if self.byte_tokens else None
        return piece if byte is None else byte


class PieceDecoder:
    """The decoder of pieces. A row of byte tokens is held back to its end.

    That is because the library decodes the row as one: a byte too many makes U+FFFD of each. ``piece_of`` gives None
    for an id that has no text.
    """

    def __init__(self, piece_of: Callable[[int], str | None], rules: PieceRules, prompt: Iterable[int]) -> None:
        self._piece_of, self._rules = piece_of, rules
        self._bytes = bytearray()
        self._strips_left = rules.strips
        self._is_first = bool(rules.dropped_from_first)
        for token_id in prompt:  # an answer goes on after a text, unless the prompt has none
            if not (self._strips_left or self._is_first):
                break
            self.push(token_id)
        self.flush()

    def push(self, token_id: int) -> str:
        piece = self._piece_of(token_id)
        if piece is None:
            return ""
        if self._is_first:
            piece = piece.replace(self._rules.dropped_from_first, "")
            self._is_first = False
        read = self._rules.read(piece)
        if isinstance(read, str):
            return self._stripped(self._take_bytes() + read)
        self._bytes.append(read)
        return ""

    def flush(self) -> str:
        return self._stripped(self._take_bytes())

    def _take_bytes(self) -> str:
        row, self._bytes = self._bytes, bytearray()
        try:
            return row.decode()
        except UnicodeDecodeError:
            return _DAMAGED * len(row)

    def _stripped(self, text: str) -> str:
        while text and self._strips_left:
            if not text.startswith(self._rules.stripped):
                self._strips_left = 0
                break
            text = text.removeprefix(self._rules.stripped)
            self._strips_left -= 1
        return text


def bytes_of(token: str) -> bytes:
    """The bytes that a byte-level token stands for; a token in other letters stands for itself."""
    letters = byte_of_letter()
    try:
        return bytes(letters[letter] for letter in token)
    except KeyError:
        return token.encode()


@cache
def byte_of_letter() -> dict[str, int]:
    """The byte that each letter of the byte-level alphabet stands for.

    Printable bytes of Latin-1 stand for themselves; the others are numbered from U+0100 in rising order.
    """
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    letters = {chr(byte): byte for byte in printable}
    return letters | {chr(256 + index): byte for index, byte in enumerate(others)}


def piece_rules(decoder: Any) -> PieceRules | None:
    """The rules of a decoder of the tokenizers library, None for the byte-level one; CheckpointError for others."""
    described = json.loads(decoder.__getstate__())  # as in tokenizer.json, which is long and would be read again
    steps: list[dict[str, Any]] = described["decoders"] if described["type"] == "Sequence" else [described]
    kinds = [step["type"] for step in steps]
    if kinds == ["ByteLevel"]:
        return None
    if kinds == ["Metaspace"]:
        sign = steps[0]["replacement"]
        return PieceRules(((sign, " "),), dropped_from_first="" if steps[0]["prepend_scheme"] == "never" else sign)
    replaced = [step for step in steps if step["type"] == "Replace"]
    strip: dict[str, Any] = steps[-1] if kinds[-1:] == ["Strip"] else {"content": " ", "start": 0, "stop": 0}
    is_known = kinds[len(replaced) :] in _AFTER_REPLACEMENTS and not strip["stop"]
    if not is_known or any("String" not in step["pattern"] for step in replaced):
        raise CheckpointError(f"the tokenizer's decoder must be byte-level or of pieces, got {described}")
    return PieceRules(
        replacements=tuple((step["pattern"]["String"], step["content"]) for step in replaced),
        byte_tokens="ByteFallback" in kinds,
        stripped=strip["content"],
        strips=strip["start"],
    )


def _byte_named(token: str) -> int | None:
    """The byte that a token such as ``<0xE9>`` names."""
    if len(token) != _BYTE_TOKEN_LENGTH or not (token.startswith("<0x") and token.endswith(">")):
        return None
    try:
        return int(token[3:5], _HEXADECIMAL)
    except ValueError:
        return None
