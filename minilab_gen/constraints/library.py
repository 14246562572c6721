"""llguidance, with the bounds that it must keep, and the vocabulary as it sees it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

_LIMITS: Final = {
    "step_lexer_fuel": 200_000,  # of one mask: some 15 ms, beyond which that answer fails
    "max_lexer_states": 50_000,  # half a kilobyte each
    "verbose_errors": False,  # else they hold the whole grammar
}

_QUOTED_LINE: Final = re.compile(r"\n *[0-9]+ \| ")
_POSITION: Final = re.compile(r"(?:at )?([0-9]+)\(([0-9]+)\): ")
_OF_SCHEMA: Final = "failed to compile JSON schema: "
_BETTER: Final = {
    "oneOf constraints are not supported": "oneOf is supported where at most one of its schemas can hold; use anyOf",
    "NoExtension": "no text has this form",
}
"""What llguidance says, in words that help here."""


class _Vocabulary:
    """What llguidance asks of a tokenizer: the bytes of each token, and one more that ends a text."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, tokens: Sequence[bytes]) -> None:
        self.eos_token_id = len(tokens)
        self.tokens = [*tokens, b"end"]
        self.special_token_ids = [self.eos_token_id]

    def __call__(self, text: str) -> list[int]:
        raise NotImplementedError("nothing may be forced, so no text becomes tokens")


def tokenizer_of(tokens: Sequence[bytes]) -> LLTokenizer:
    """A vocabulary of these bytes, and behind them one that ends a text. An id without bytes is never allowed.

    It is made in two calls, since no other thread gets on during one.
    """
    bare = LLTokenizer(_Vocabulary(tokens), slices=[])  # type: ignore[arg-type]
    return bare.with_slices(LLTokenizer.general_slices())


def byte_tokenizer() -> LLTokenizer:
    """One token for each byte."""
    return tokenizer_of([bytes([byte]) for byte in range(256)])


def matcher(tokenizer: LLTokenizer, grammar: str) -> LLMatcher:
    """A matcher at the beginning of a grammar in Lark; it may be in error, and then says so."""
    limits = LLParserLimits(**_LIMITS)  # type: ignore[arg-type]
    return LLMatcher(tokenizer, LLMatcher.grammar_from_lark(grammar), log_level=0, limits=limits)


def complaint(failed: LLMatcher) -> str:
    """What is wrong with a grammar or an answer, without the grammar that llguidance quotes."""
    error = failed.get_error()
    for said, better in _BETTER.items():
        if said in error:
            return better
    text = " ".join(_QUOTED_LINE.split(error)[0].replace("<non-verbose/>", "").split())
    found = _POSITION.match(text)
    if found is None:
        return text
    rest = text[found.end() :]
    if rest.startswith(_OF_SCHEMA):
        return rest.removeprefix(_OF_SCHEMA)
    return f"line {int(found[1]) - 1}, column {found[2]}: {rest}"  # the first line is ours
