"""Text to token ids and back, with a decoder that never shows half a character.

It must not know about models or Redis; it needs no torch, because the client uses it as well.

A byte-level tokenizer (Sennrich et al. 2016, byte-pair encoding, over the bytes of UTF-8 as GPT-2 did it) gives every
token a fixed string of bytes, so decoding is joining bytes. Special tokens have no text.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

from tokenizers import Tokenizer as _Library
from tokenizers import decoders, models, pre_tokenizers, trainers

from minilab_gen.errors import CheckpointError

END_OF_TEXT = "<|endoftext|>"
SPECIAL_TOKENS = (END_OF_TEXT, "<|im_start|>", "<|im_end|>")
BASE_CHECKPOINT = Path(__file__).parent / "base"
"""The folder of the shipped base model."""


@cache
def _byte_of_letter() -> dict[str, int]:
    """The byte that each letter of the byte-level alphabet stands for.

    Printable bytes of Latin-1 stand for themselves; the others are numbered from U+0100 in rising order.
    """
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    letters = {chr(byte): byte for byte in printable}
    return letters | {chr(256 + place): byte for place, byte in enumerate(others)}


class Tokenizer:
    """A byte-level tokenizer read from ``tokenizer.json``."""

    def __init__(self, library: _Library) -> None:
        self._library = library
        self._bytes = self._token_bytes()

    @classmethod
    def from_json(cls, text: str) -> Tokenizer:
        """The tokenizer that a ``tokenizer.json`` describes. Raises CheckpointError where it is damaged."""
        try:
            return cls(_Library.from_str(text))
        except CheckpointError:
            raise
        except Exception as error:  # the library raises bare Exception
            raise CheckpointError(f"tokenizer.json cannot be read: {error}") from error

    @property
    def vocab_size(self) -> int:
        """Number of ids that have a meaning, special ones included."""
        return len(self._bytes)

    def to_json(self) -> str:
        """The text of ``tokenizer.json``."""
        return self._library.to_str(pretty=False)

    def encode(self, text: str) -> list[int]:
        """The ids of a text. Special tokens written out in it are read as what they name."""
        return list(self._library.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids; bytes that are no UTF-8 become U+FFFD."""
        return b"".join(map(self.token_bytes, ids)).decode("utf-8", errors="replace")

    def decoder(self) -> StreamDecoder:
        """A decoder for ids that come one at a time."""
        return StreamDecoder(self)

    def token_id(self, token: str) -> int | None:
        """The id of a token given by its name, such as ``<|endoftext|>``."""
        found: int | None = self._library.token_to_id(token)
        return found

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that a token adds to the text; none for special tokens and ids without a meaning."""
        return self._bytes[token_id] if 0 <= token_id < len(self._bytes) else b""

    def _token_bytes(self) -> Sequence[bytes]:
        letters = _byte_of_letter()
        vocabulary: dict[str, int] = self._library.get_vocab(with_added_tokens=True)
        table = [b""] * (max(vocabulary.values()) + 1)
        added = self._library.get_added_tokens_decoder()
        for token, place in vocabulary.items():
            if place in added:  # these are spelled out, not in the alphabet of bytes
                table[place] = b"" if added[place].special else token.encode()
                continue
            try:
                table[place] = bytes(letters[letter] for letter in token)
            except KeyError as error:
                raise CheckpointError(f"the tokenizer must be byte-level, got the token {token!r}") from error
        return table


class StreamDecoder:
    """Turns ids into text as they come; holds back the bytes of a character until it is whole."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token_id: int) -> str:
        """The text that became printable with this token."""
        return self._decoder.decode(self._tokenizer.token_bytes(token_id))

    def flush(self) -> str:
        """What is left when no more tokens come: U+FFFD for a character cut short, else nothing."""
        return self._decoder.decode(b"", final=True)


def get_tokenizer(path: str | Path = BASE_CHECKPOINT) -> Tokenizer:
    """The tokenizer of a checkpoint folder, by default of the base model."""
    file = Path(path) / "tokenizer.json"
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise CheckpointError(f"{file} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{file} is not UTF-8: {error}") from error
    return Tokenizer.from_json(text)


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """A byte-level BPE tokenizer of ``vocab_size`` ids, special ones first, learned from texts."""
    library = _Library(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    library.train_from_iterator(texts, trainer)
    return Tokenizer(library)
