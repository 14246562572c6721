"""Text to token ids and back. It must know neither torch nor Redis: the client uses it, too."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from pathlib import Path

from tokenizers import Tokenizer as _Library
from tokenizers import decoders, models, pre_tokenizers, trainers

from minilab_gen.errors import CheckpointError
from minilab_gen.impostors import impostor, saved_again
from minilab_gen.text.declared_tokens import read_declared_tokens
from minilab_gen.text.stream_decoder import (
    ByteDecoder,
    PieceDecoder,
    StreamDecoder,
    byte_of_letter,
    bytes_of,
    piece_rules,
)
from minilab_gen.text.tokenizer_class import class_of, cut_as
from minilab_gen.text.tokenizer_config import tokenizer_settings

END_OF_TEXT = "<|endoftext|>"
SPECIAL_TOKENS = (END_OF_TEXT, "<|im_start|>", "<|im_end|>")
BASE_CHECKPOINT = Path(__file__).parent.parent / "base"
"""The folder of the shipped base model."""

_OTHER_FILES = ("tokenizer.model", "spiece.model", "vocab.json", "tekken.json")
"""Tokenizers that transformers reads, or parts of them, where there is no ``tokenizer.json``."""


class Tokenizer:
    """What ``tokenizer.json`` describes, of one of the kinds that :mod:`minilab_gen.text.stream_decoder` can stream."""

    def __init__(self, library: _Library, numbered: int | None = None) -> None:
        """``numbered`` is one more than the highest id that a file gives; behind it are tokens that only have roles."""
        if not library.get_vocab_size():
            raise CheckpointError("the tokenizer must have tokens, got none")
        library.no_truncation()  # some files say what was handy in training
        library.no_padding()
        self._library, self._numbered = library, numbered
        self._bytes: dict[int, bytes] = {}  # of the tokens met so far: a large vocabulary is mostly never spoken
        self._whole: dict[int, str] = {}  # the text of those of them that are whole characters
        self._is_special = {token_id: token.special for token_id, token in library.get_added_tokens_decoder().items()}
        """Of the added tokens, which are special."""
        if library.decoder is None:
            self._check_that_it_is_byte_level()
        self._rules = piece_rules(library.decoder) if library.decoder is not None else None

    @classmethod
    def from_json(cls, text: str) -> Tokenizer:
        """The tokenizer that a ``tokenizer.json`` describes. Raises CheckpointError where it is damaged."""
        return cls(_library_of(text))

    @cached_property
    def vocab_size(self) -> int:
        """One more than the highest id that has a meaning, special ones included."""
        return int(max(self._library.get_vocab(with_added_tokens=True).values())) + 1

    @property
    def numbered_size(self) -> int:
        """The same without tokens that got their ids here, since the files only say what they are for."""
        return self.vocab_size if self._numbered is None else self._numbered

    def to_json(self) -> str:
        """The text of ``tokenizer.json``."""
        return self._library.to_str(pretty=False)

    def encode(self, text: str, *, bare: bool = False) -> list[int]:
        """The ids of a text, with what ``tokenizer.json`` puts around one, often a token for its beginning.

        ``bare`` is without that, for a text that has it already. Special tokens written out in a text are read as what
        they name.
        """
        return list(self._library.encode(text, add_special_tokens=not bare).ids)

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids; bytes that are no UTF-8 become U+FFFD."""
        decoder = self.decoder()
        return "".join(map(decoder.push, ids)) + decoder.flush()

    def decoder(self, prompt: Iterable[int] = ()) -> StreamDecoder:
        """A decoder for the ids of an answer to a prompt, which come one at a time."""
        if self._rules is None:
            return ByteDecoder(self.token_bytes, self._whole)
        return PieceDecoder(self._piece, self._rules, prompt)

    def token_id(self, token: str) -> int | None:
        """The id of a token given by its name, such as ``<|endoftext|>``."""
        found: int | None = self._library.token_to_id(token)
        return found

    def token_name(self, token_id: int) -> str | None:
        """A token as its vocabulary spells it, special ones included; None for an id without a meaning."""
        found: str | None = self._library.id_to_token(token_id)
        return found

    def is_special(self, token_id: int) -> bool:
        """Whether an id is that of a special token, which adds no text."""
        return bool(self._is_special.get(token_id))

    def is_added(self, token_id: int) -> bool:
        """Whether an id is one of those that a model adds to the words of its tokenizer, special ones among them."""
        return token_id in self._is_special

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that a token adds to a text that has begun; none for special tokens and ids without a meaning."""
        known = self._bytes.get(token_id)
        if known is None:
            piece = self._piece(token_id)
            if piece is None:
                return b""
            self._bytes[token_id] = known = self._bytes_of(piece)
        return known

    def _bytes_of(self, piece: str) -> bytes:
        if self._rules is None:
            return bytes_of(piece)
        read = self._rules.read(piece)
        return read.encode() if isinstance(read, str) else bytes([read])

    def _piece(self, token_id: int) -> str | None:
        """A token as the vocabulary spells it; None for special tokens and ids without a meaning."""
        if not 0 <= token_id < self.vocab_size or self._is_special.get(token_id):
            return None
        token: str | None = self._library.id_to_token(token_id)
        return token

    def _check_that_it_is_byte_level(self) -> None:
        """Refuse a tokenizer that does not say how its tokens are read, unless only one way is possible."""
        letters = byte_of_letter()
        for token, token_id in self._library.get_vocab(with_added_tokens=True).items():
            if token_id not in self._is_special and not letters.keys() >= set(token):
                raise CheckpointError(f"a tokenizer without a decoder must be byte-level, got the token {token!r}")


def get_tokenizer(path: str | Path = BASE_CHECKPOINT) -> Tokenizer:
    """The tokenizer of a checkpoint folder, by default of the base model, with all tokens that its files declare."""
    folder = Path(path)
    file = folder / "tokenizer.json"
    try:
        text = file.read_text(encoding="utf-8")
        library = _library_of(text)
    except OSError as error:
        raise CheckpointError(_another_tokenizer(folder) or f"{file} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise CheckpointError(impostor(file) or f"{file} is not UTF-8: {error}") from error
    except CheckpointError as error:
        raise CheckpointError(impostor(file) or f"{folder}: {error}") from error
    settings = tokenizer_settings(folder)
    cut_as(library, class_of(folder, settings), settings, text)
    if not library.get_vocab_size():
        return Tokenizer(library)  # which refuses it
    return Tokenizer(library, read_declared_tokens(folder).add_to(library))


def _another_tokenizer(folder: Path) -> str | None:
    """What to do with a folder that has a tokenizer of another kind; None where it has none."""
    found = next((name for name in _OTHER_FILES if (folder / name).exists()), None)
    if found is None or (folder / "tokenizer.json").exists():
        return None
    command = saved_again("AutoTokenizer", folder)
    return f"{folder} must have a tokenizer.json, got {found} only; with transformers installed: {command}"


def _library_of(text: str) -> _Library:
    try:
        return _Library.from_str(text)
    except Exception as error:  # the library raises bare Exception
        raise CheckpointError(f"tokenizer.json cannot be read: {error}") from error


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
