"""How byte-level tokenizers cut texts into words, by the name that a GGUF file gives it in ``tokenizer.ggml.pre``.

Source: llama.cpp's ``llama-vocab.cpp`` for what names mean, and the ``tokenizer.json`` of the models for the patterns,
which llama.cpp writes otherwise where its own regular expressions need that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tokenizers import Regex, Tokenizer, normalizers, pre_tokenizers


@dataclass(frozen=True, slots=True)
class Splitter:
    """A way to cut texts, and what comes with it."""

    words: str | None = None
    """The pattern of words; None is GPT-2's."""
    digits_alone: bool = False
    """Whether each digit is cut off before."""
    composed: bool = False
    """Whether characters are composed before (NFC)."""
    whole_words: bool = False
    """Whether a word that is a token is that token, whatever the merges say."""
    begins: bool = False
    """Whether a text begins with a token for that, where the file does not say."""

    def set_up(self, library: Tokenizer) -> None:
        """Have a tokenizer cut texts so."""
        steps: list[pre_tokenizers.PreTokenizer] = []
        if self.digits_alone:
            steps.append(pre_tokenizers.Digits(individual_digits=True))
        if self.words is not None:
            steps.append(pre_tokenizers.Split(Regex(self.words), "isolated"))
        steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=self.words is None))
        library.pre_tokenizer = pre_tokenizers.Sequence(steps)
        if self.composed:
            library.normalizer = normalizers.NFC()


def _words(digits: str, letters: str = r"[^\r\n\p{L}\p{N}]?\p{L}+", slash: str = "") -> str:
    """The pattern that GPT-4 brought, which later ones vary."""
    rest = rf"{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n{slash}]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    return f"{letters}|{rest}"


_ENGLISH: Final = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_BY_CASE: Final = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"

_GPT2: Final = Splitter()
_LLAMA3: Final = Splitter(_ENGLISH + _words(r"\p{N}{1,3}"), whole_words=True, begins=True)
_QWEN2: Final = Splitter(_ENGLISH + _words(r"\p{N}"), composed=True)
_DIGITS: Final = Splitter(digits_alone=True)
_TEKKEN: Final = Splitter(_words(r"\p{N}", _BY_CASE, "/"), whole_words=True, begins=True)

SPLITTERS: Final = {
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3"), _LLAMA3),
    **dict.fromkeys(("smollm", "starcoder", "refact"), _DIGITS),
    "qwen2": _QWEN2,
    "gpt-2": _GPT2,
    "tekken": _TEKKEN,
}
"""Those of names that are known for certain."""
