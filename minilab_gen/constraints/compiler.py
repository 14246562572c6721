"""Compiles the forms of answers for one model's vocabulary, each once."""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Sequence
from ctypes import addressof, c_char
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from minilab_gen.answer_form import AnswerForm
from minilab_gen.constraints.grammar import lark_of
from minilab_gen.errors import RequestError
from minilab_gen.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLExecutor, LLMatcher, LLTokenizer

_KEPT: Final = 32
"""Forms that stay compiled, or refused: a service has few, and one may take 20 MB."""

_QUICK: Final = 0.05
"""Seconds of compiling up to which a form is compiled a second time in the middle of an answer."""

_MOST_THREADS: Final = 8
"""That compute masks, of a millisecond at most, while the kernels' threads wait."""

_WORD, _BITS_OF_WORD = 4, 32
"""Bytes and bits of a word of a mask."""


class FormCompiler:
    """What a model's tokens mean to grammars. Any thread may use it; llguidance is loaded when it is first used.

    A model may have more rows than the tokenizer has ids, or fewer: what has no text here cannot be chosen.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        self._tokenizer, self._vocab_size = tokenizer, vocab_size
        self._lock = threading.Lock()
        self._library: tuple[LLTokenizer, LLExecutor] | None = None
        self._known: OrderedDict[AnswerForm, _Compiled | str] = OrderedDict()

    def start(self, form: AnswerForm, answered: Iterable[int] = (), stop_ids: Collection[int] = ()) -> TokenConstraint:
        """A constraint that has seen these tokens, stop ids aside, which are no part of the form.

        Raises RequestError for a form that cannot be compiled.
        """
        compiled = self._compiled(form)
        _, executor = self._loaded()
        constraint = TokenConstraint(compiled, executor, self._vocab_size, lambda: self._again(form, compiled))
        for token_id in answered:
            if token_id not in stop_ids:
                constraint.accept(token_id)
        constraint.prepare([constraint])
        return constraint

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes of a token as grammars see it."""
        tokenizer, _ = self._loaded()
        return tokenizer.decode_bytes([token_id])

    def _compiled(self, form: AnswerForm) -> _Compiled:
        with self._lock:
            found = self._known.get(form)
            if found is not None:
                self._known.move_to_end(form)
        if found is None:
            found = self._compile(form)
            with self._lock:
                self._known[form] = found
                while len(self._known) > _KEPT:
                    self._known.popitem(last=False)
        if isinstance(found, str):
            raise RequestError(found)
        return found

    def _compile(self, form: AnswerForm) -> _Compiled | str:
        """What the form is compiled to, or why it cannot be."""
        from minilab_gen.constraints.library import complaint
        from minilab_gen.constraints.trial import fault_of

        what = "the schema" if form.kind == "json_schema" else f"the {form.kind}"
        try:
            grammar = lark_of(form)
        except RequestError as error:
            return f"{what} cannot be compiled: {error}"
        fault = fault_of(grammar)
        if fault is None:
            compiled = self._matched(grammar)
            if not compiled.matcher.is_error():
                return compiled
            fault = complaint(compiled.matcher)
        return f"{what} cannot be compiled: {fault}"

    def _matched(self, grammar: str) -> _Compiled:
        from minilab_gen.constraints.library import matcher

        tokenizer, _ = self._loaded()
        start = time.monotonic()
        found = matcher(tokenizer, grammar)
        return _Compiled(found, grammar, time.monotonic() - start)

    def _again(self, form: AnswerForm, compiled: _Compiled) -> LLMatcher | None:
        """The form compiled anew for one answer, if that takes no time; others that begin do not share the old one."""
        with self._lock:
            if self._known.get(form) is compiled:
                del self._known[form]
        return self._matched(compiled.grammar).matcher if compiled.seconds <= _QUICK else None

    def _loaded(self) -> tuple[LLTokenizer, LLExecutor]:
        with self._lock:
            if self._library is None:
                from llguidance import LLExecutor

                from minilab_gen.constraints.library import tokenizer_of

                tokens = [self._tokenizer.token_bytes(token_id) for token_id in range(self._vocab_size)]
                self._library = tokenizer_of(tokens), LLExecutor(min(_MOST_THREADS, os.cpu_count() or 1))
            return self._library


@dataclass(frozen=True, slots=True, eq=False)
class _Compiled:
    """A form at its beginning."""

    matcher: LLMatcher
    """Its copies share what they find out about the form, which is bounded: once it is too much, all of them fail."""
    grammar: str
    seconds: float
    """That compiling took."""


class TokenConstraint:
    """The form of one answer, after the tokens so far: a :class:`minilab_gen.constraint.Constraint`."""

    def __init__(
        self, compiled: _Compiled, executor: LLExecutor, vocab_size: int, again: Callable[[], LLMatcher | None]
    ) -> None:
        """``again`` gives a matcher that shares nothing, for the case that others have used up what is shared."""
        self._matcher, self._executor, self._again = compiled.matcher.deep_copy(), executor, again
        self._is_alone = False
        self._tokens: list[int] = []
        self._end = vocab_size  # the id behind those of the model stands for the end of the text
        self._bits: memoryview = memoryview(b"")
        self._address = 0

    @property
    def may_end(self) -> bool:
        return self._matcher.is_accepting()

    @property
    def must_end(self) -> bool:
        if self._matcher.is_stopped():
            return not self._matcher.is_error()
        return self._allows(self._end) and self._allows_nothing_else()

    @property
    def error(self) -> str | None:
        if not self._matcher.is_error():
            return None
        from minilab_gen.constraints.library import complaint

        return f"the form of the answer cannot be kept to after {len(self._tokens)} tokens: {complaint(self._matcher)}"

    def accept(self, token_id: int) -> None:
        self._tokens.append(token_id)
        self._matcher.consume_token(token_id)

    def prepare(self, constraints: Sequence[TokenConstraint]) -> None:
        """In threads of llguidance's, without the interpreter's lock."""
        size = (self._end + 1 + _BITS_OF_WORD - 1) // _BITS_OF_WORD * _WORD
        together = bytearray(len(constraints) * size)
        address = addressof((c_char * len(together)).from_buffer(together))
        matchers = [each.take_bits(together, address, index, size) for index, each in enumerate(constraints)]
        self._executor.unsafe_compute_mask_ptr(matchers, address, size, len(matchers))
        for each in constraints:
            each.leave_others()

    def leave_others(self) -> None:
        """Where the matcher has failed, which may be for the work of others, go on with one that shares nothing."""
        if self._is_alone or not self._matcher.is_error():
            return
        self._is_alone = True
        own = self._again()
        if own is not None:
            self._matcher = own
            own.consume_tokens(self._tokens)
            own.unsafe_compute_mask_ptr(self._address, len(self._bits))

    def take_bits(self, together: bytearray, address: int, index: int, size: int) -> tuple[LLMatcher, int]:
        """Have the mask in this part of a buffer from now on; the matcher that is to fill it."""
        self._bits = memoryview(together)[index * size : (index + 1) * size]
        self._address = address + index * size
        return self._matcher, index

    def mask(self, stop_ids: Collection[int]) -> int:
        may_end = self._allows(self._end)
        for token_id in stop_ids:
            bit = 1 << token_id % 8
            byte = self._bits[token_id // 8]
            self._bits[token_id // 8] = byte | bit if may_end else byte & ~bit
        return self._address

    def _allows(self, token_id: int) -> bool:
        return bool(self._bits[token_id // 8] >> token_id % 8 & 1)

    def _allows_nothing_else(self) -> bool:
        """Whether no other bit is set than that of the end, which is in the last word."""
        return self._bits[self._end // 8] == 1 << self._end % 8 and bytes(self._bits).count(0) == len(self._bits) - 1
