"""Whether a form allows a text, token by token as a tokenizer spells it. It must not hold any test."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable

from minilab_gen.answer_form import AnswerForm
from minilab_gen.constraint import Constraint
from minilab_gen.constraints.compiler import FormCompiler
from minilab_gen.text.tokenizer import Tokenizer


def allowed_ids(constraint: Constraint, vocab_size: int, stop_ids: tuple[int, ...] = ()) -> set[int]:
    """The ids that may come next."""
    bits = ctypes.string_at(constraint.mask(stop_ids), (vocab_size + 7) // 8)
    return {token_id for token_id in range(vocab_size) if bits[token_id // 8] >> token_id % 8 & 1}


def goes_on(constraint: Constraint, vocab_size: int, ids: Iterable[int]) -> bool:
    """Whether these ids may come next, one after the other."""
    for token_id in ids:
        if token_id not in allowed_ids(constraint, vocab_size):
            return False
        constraint.accept(token_id)
        constraint.prepare([constraint])
    return True


class FormedTexts:
    """The texts of a tokenizer."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int | None = None) -> None:
        self.tokenizer, self.vocab_size = tokenizer, vocab_size or tokenizer.vocab_size
        self.compiler = FormCompiler(tokenizer, self.vocab_size)

    def begins(self, form: AnswerForm, text: str) -> bool:
        """Whether an answer may begin so."""
        return goes_on(self.compiler.start(form), self.vocab_size, self.tokenizer.encode(text, bare=True))

    def has(self, form: AnswerForm, text: str) -> bool:
        """Whether it may be the whole answer."""
        constraint = self.compiler.start(form)
        return goes_on(constraint, self.vocab_size, self.tokenizer.encode(text, bare=True)) and constraint.may_end
