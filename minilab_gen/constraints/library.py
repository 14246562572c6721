"""llguidance, with the bounds that it must keep, and the vocabulary as it sees it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

_LIMITS: Final = {
    "initial_lexer_fuel": 10_000_000,  # a fifth of a second
    "step_lexer_fuel": 1_000_000,  # of one mask: 70 ms, beyond which that answer fails
    "max_lexer_states": 50_000,  # at one or two kilobytes
    "verbose_errors": False,  # else they hold the whole grammar
}


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

    Bytes that begin with 0xFF, which no UTF-8 has, count as none: to llguidance they would name a special token.
    """
    return LLTokenizer(_Vocabulary([b"" if token[:1] == b"\xff" else token for token in tokens]))  # type: ignore[arg-type]


def byte_tokenizer() -> LLTokenizer:
    """One token for each byte."""
    return tokenizer_of([bytes([byte]) for byte in range(256)])


def matcher(tokenizer: LLTokenizer, grammar: str) -> LLMatcher:
    """A matcher at the beginning of a grammar in Lark; it may be in error, and then says so."""
    limits = LLParserLimits(**_LIMITS)  # type: ignore[arg-type]
    return LLMatcher(tokenizer, LLMatcher.grammar_from_lark(grammar), log_level=0, limits=limits)
