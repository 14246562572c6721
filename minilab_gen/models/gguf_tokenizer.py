"""The tokenizer of a GGUF file: what the ``tokenizer.json`` of the folder would say, as far as the file does.

Sources: llama.cpp's ``llama-vocab.cpp`` for what the keys mean and what holds where they are missing;
``generate_merges`` of transformers for how merges follow from scores.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tokenizers import AddedToken, decoders, models, normalizers, processors
from tokenizers import Tokenizer as _Library

from minilab_gen.errors import CheckpointError
from minilab_gen.models.gguf_header import GgufHeader
from minilab_gen.models.gguf_splitters import SPLITTERS
from minilab_gen.request import shown
from minilab_gen.text.tokenizer import Tokenizer

_PREFIX: Final = "tokenizer.ggml"
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED = 1, 2, 3, 4, 5
"""Types of tokens, besides those of bytes. An unused one only fills a row, so that it has no text here."""

_BYTE_LEVEL, _PIECES = "gpt2", "llama"
"""What ``tokenizer.ggml.model`` calls byte-level BPE, and SentencePiece's."""

_ROLES: Final = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "sep_token": "seperator_token_id",  # so it is spelled there
    "pad_token": "padding_token_id",
    "mask_token": "mask_token_id",
}
"""Keys of tokens by what they are for."""

_IDS_OF_PIECES: Final = {"bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0}
"""SentencePiece's own, where a file does not say."""

_STOPS: Final = ("eos_token_id", "eot_token_id", "eom_token_id")
"""What ends a text, a turn, and a message that calls a tool."""

Merges = list[tuple[str, str]]


class GgufTokens:
    """The tokens of a file, and what each is for. Raises CheckpointError where that cannot be known."""

    def __init__(self, header: GgufHeader) -> None:
        self._header, self._path = header, header.path
        self._model = header.need(f"{_PREFIX}.model", str)
        if self._model not in (_BYTE_LEVEL, _PIECES):
            raise self._wrong("model", f"must be {_BYTE_LEVEL} or {_PIECES}", shown(self._model))
        self._texts = self._listed("tokens")
        self._types = self._one_each("token_type")
        self._ids: dict[str, int] = {}
        for token_id, (text, kind) in enumerate(zip(self._texts, self._types, strict=True)):
            if kind != _UNUSED and self._ids.setdefault(text, token_id) != token_id:
                both = f"{shown(text)} as {self._ids[text]} and {token_id}"
                raise self._wrong("tokens", "must have each token once", both)

    def tokenizer(self) -> Tokenizer:
        """The tokenizer that they make."""
        merges = self._written_merges() if self._model == _BYTE_LEVEL else self._derived_merges()
        try:
            library = self._byte_level(merges) if self._model == _BYTE_LEVEL else self._pieces(merges)
        except CheckpointError:
            raise
        except Exception as error:  # the library raises bare Exception
            raise CheckpointError(f"{self._path}: {_PREFIX}.tokens and merges do not fit: {error}") from error
        special = [AddedToken(text, special=True, normalized=False) for text in self._of(_CONTROL, _UNKNOWN)]
        library.add_special_tokens(special)
        library.add_tokens([AddedToken(text, normalized=False) for text in self._of(_USER_DEFINED)])
        self._surround(library)
        return Tokenizer(library)

    def named(self) -> Mapping[str, str]:
        """The texts of tokens by role, such as ``bos_token``."""
        ids = {role: self._id(key) for role, key in _ROLES.items()}
        return {role: self._texts[token_id] for role, token_id in ids.items() if token_id is not None}

    def stop_ids(self) -> tuple[int, ...]:
        """The ids that end a text."""
        ids = (self._id(key) for key in _STOPS)
        return tuple(dict.fromkeys(token_id for token_id in ids if token_id is not None))

    def _byte_level(self, merges: Merges) -> _Library:
        """Bytes as GPT-2 has them, cut into words as the file says."""
        splitter = SPLITTERS[self._splitter_name()]
        library = _Library(models.BPE(self._ids, merges, ignore_merges=splitter.whole_words))
        splitter.set_up(library)
        library.decoder = decoders.ByteLevel()
        return library

    def _splitter_name(self) -> str:
        name = self._header.get(f"{_PREFIX}.pre", str)
        if name not in SPLITTERS:
            remedy = f"if you know which it is: gguf-new-metadata --pre-tokenizer NAME {self._path} NEW.gguf"
            got = "no such key" if name is None else shown(name)
            raise self._wrong("pre", f"must be one of {', '.join(SPLITTERS)}", f"{got}; {remedy}")
        return name

    def _written_merges(self) -> Merges:
        pairs: Merges = []
        for index, merge in enumerate(self._listed("merges")):
            left, _, right = merge.partition(" ")
            if not left or not right or " " in right:
                raise self._wrong("merges", "must be pairs with a space between", f"{shown(merge)} at {index}")
            pairs.append((left, right))
        return pairs

    def _derived_merges(self) -> Merges:
        """The merges that make words: those whose outcome has the higher score first."""
        scores = self._one_each("scores")
        merges: list[tuple[float, str, str]] = []
        for text in self._of(_NORMAL, _USER_DEFINED):
            halves = [(text[:index], text[index:]) for index in range(1, len(text))]
            known = [half for half in halves if half[0] in self._ids and half[1] in self._ids]
            known.sort(key=lambda half: (self._ids[half[0]], self._ids[half[1]]))
            merges += [(scores[self._ids[text]], left, right) for left, right in known]
        merges.sort(key=lambda merge: (merge[0], len(merge[1]), len(merge[2])), reverse=True)
        return [(left, right) for _, left, right in merges]

    def _pieces(self, merges: Merges) -> _Library:
        """Pieces with ``▁`` for a space, one before each text, and bytes for what is in no piece."""
        unknown = self._id("unknown_token_id")
        unk_token = None if unknown is None else self._texts[unknown]
        library = _Library(models.BPE(self._ids, merges, unk_token=unk_token, fuse_unk=True, byte_fallback=True))
        begins = self._header.get(f"{_PREFIX}.add_space_prefix", bool) is not False
        spaces = normalizers.Replace(" ", "▁")
        library.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), spaces]) if begins else spaces
        steps: list[decoders.Decoder] = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
        library.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if begins else steps)
        return library

    def _surround(self, library: _Library) -> None:
        """Put before and behind each text what the file says."""
        begins = self._model == _PIECES or SPLITTERS[self._splitter_name()].begins
        first, last = self._around("bos", otherwise=begins), self._around("eos", otherwise=False)
        if first or last:
            library.post_processor = processors.TemplateProcessing(
                single=[*first, "$A", *last],
                special_tokens=[(text, self._ids[text]) for text in {*first, *last}],
            )

    def _around(self, role: str, *, otherwise: bool) -> list[str]:
        """The token that stands there, if one does."""
        wanted = self._header.get(f"{_PREFIX}.add_{role}_token", bool)
        if not (otherwise if wanted is None else wanted):
            return []
        token_id = self._id(f"{role}_token_id")
        if token_id is None or self._types[token_id] == _UNUSED:
            got = "no such key" if token_id is None else f"{token_id}, which is unused"
            raise self._wrong(f"{role}_token_id", "must name the token that stands around texts", got)
        return [self._texts[token_id]]

    def _id(self, key: str) -> int | None:
        given = self._header.get(f"{_PREFIX}.{key}", int)
        if given is None:
            return _IDS_OF_PIECES.get(key) if self._model == _PIECES else None
        if not 0 <= given < len(self._texts):
            raise self._wrong(key, f"must be below {len(self._texts)}, the number of tokens", str(given))
        return given

    def _of(self, *types: int) -> list[str]:
        return [text for text, kind in zip(self._texts, self._types, strict=True) if kind in types and text]

    def _listed(self, key: str) -> list[str]:
        found = self._header.texts(f"{_PREFIX}.{key}")
        if not found:
            raise CheckpointError(f"{self._path} lacks {_PREFIX}.{key}, without which its tokenizer is not known")
        return found

    def _one_each(self, key: str) -> list[int] | list[float]:
        """Numbers, one for each token."""
        found = self._header.numbers(f"{_PREFIX}.{key}")
        if found is None:
            raise CheckpointError(f"{self._path} lacks {_PREFIX}.{key}, without which its tokenizer is not known")
        if len(found) != len(self._texts):
            rule = f"must have a number for each of {len(self._texts)} tokens"
            raise self._wrong(key, rule, str(len(found)))
        return found

    def _wrong(self, key: str, rule: str, got: str) -> CheckpointError:
        return CheckpointError(f"{self._path}: {_PREFIX}.{key} {rule}, got {got}")
