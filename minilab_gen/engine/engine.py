"""The engine: admits sequences while others run, reads prompts in chunks, decodes all in one pass, settles which ended.

It must not import Redis or RQ. One thread uses it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from typing import Literal, NamedTuple, TypeVar

import torch
from torch import Tensor

from minilab_gen.engine.pool import Pool
from minilab_gen.engine.sampler import choose
from minilab_gen.engine.scheduler import Scheduler
from minilab_gen.engine.sequence import Chosen, Ended, EngineEnd, Outcome, Sequence
from minilab_gen.engine.step_batch import Chunk, StepBatch
from minilab_gen.errors import RequestError
from minilab_gen.models.decoder import MiniLabModel
from minilab_gen.request import ModelLimits
from minilab_gen.sampling import Sampler

_PREFILL_SHARE, _LEAST_PREFILL = 4, 64
"""Prompt tokens that one step reads at most: so many for each slot, but no fewer. A newcomer then delays its
neighbours by two or three of their steps: a product over four times the rows takes less than four times as long."""

OnLogits = Callable[[Sequence, Tensor], None]

Phase = Literal["plan", "prefill", "decode", "head", "sample", "settle"]
"""Parts of a step in their order; a pass that reads any prompt is ``prefill``, although others decode along with it."""

OnPhase = Callable[[Phase], None]

_T = TypeVar("_T")

_log = logging.getLogger(__name__)


class _Choice(NamedTuple):
    """The next token of a sequence; None where there is none, and then why."""

    sequence: Sequence
    token: int | None
    error: str


class _PassError(Exception):
    """What a model raised over the sequences that it was shown."""

    @property
    def reason(self) -> str:
        return f"{type(self.__cause__).__name__}: {self.__cause__}"


class Engine:
    """Runs up to ``max_batch`` sequences at a time; the others wait, first come, first served.

    ``kv_tokens`` are the tokens whose keys and values are held at a time, by default ``max_batch`` whole contexts;
    memory is taken as they come. A step reads ``prefill_tokens`` of prompts at most. ``on_logits`` is shown the logits
    (vocab,) of every choice, for checks. ``on_phase`` is told each phase that has just ended, for clocks. What a model
    raises ends the guilty sequence alone; exceptions of ``passes`` are raised by a step wherever they come from, for
    a caller that a signal interrupts. The engine is of no use after that.
    """

    def __init__(
        self,
        model: MiniLabModel,
        max_batch: int,
        *,
        kv_tokens: int | None = None,
        prefill_tokens: int | None = None,
        on_logits: OnLogits | None = None,
        on_phase: OnPhase | None = None,
        passes: tuple[type[Exception], ...] = (),
    ) -> None:
        if max_batch < 1:
            raise RequestError(f"max_batch must be at least 1, got {max_batch}")
        self._pool = Pool(model.config, max_batch, model.device)
        kv_tokens = self._pool.max_slots * self._pool.capacity if kv_tokens is None else kv_tokens
        prefill_tokens = max(_LEAST_PREFILL, _PREFILL_SHARE * max_batch) if prefill_tokens is None else prefill_tokens
        for name, value in {"kv_tokens": kv_tokens, "prefill_tokens": prefill_tokens}.items():
            if value < 1:
                raise RequestError(f"{name} must be at least 1, got {value}")
        self._model = model
        self._limits = ModelLimits(model.config.vocab_size, model.config.context_length, kv_tokens)
        self._scheduler = Scheduler(self._pool, kv_tokens, prefill_tokens)
        self._on_logits = on_logits
        self._on_phase = on_phase or _no_clock
        self._passes = passes
        self._known: dict[str, Sequence] = {}
        self._ending: dict[str, Ended] = {}

    @property
    def has_work(self) -> bool:
        return bool(self._known)

    @property
    def running(self) -> int:
        """Sequences that hold a slot."""
        return self._scheduler.running

    @property
    def waiting(self) -> int:
        """Sequences that wait for one."""
        return self._scheduler.waiting

    def add(self, sequence: Sequence) -> None:
        """Let a sequence wait for a slot. Raises RequestError for one that could never run, or whose name is known."""
        if sequence.name in self._known:
            raise RequestError(f"a sequence's name must be new to the engine, got {sequence.name} again")
        sequence.request.check_fits(self._limits)
        sequence.sampler = Sampler(sequence.request.settings, self._limits.vocab_size)
        sequence.sampler.skip(sequence.tokens)
        self._scheduler.add(sequence)
        self._known[sequence.name] = sequence

    def end(self, name: str, reason: EngineEnd, error: str | None = None) -> bool:
        """End a sequence at the next step, whatever it is doing; False for a name that is unknown."""
        sequence = self._known.get(name)
        if sequence is not None:
            self._ending.setdefault(name, Ended(sequence, reason, error))
        return sequence is not None

    @torch.inference_mode()
    def step(self) -> list[Outcome]:
        """Remove, admit, read, choose, settle: at most one new token for every running sequence."""
        removed = self._remove_ended()
        decoding, chunks = self._scheduler.plan()
        self._on_phase("plan")
        choices = self._read_and_choose(decoding, chunks)
        outcomes = removed + self._settle(choices)
        self._on_phase("settle")
        return outcomes

    def check_idle(self) -> None:
        """Assert that an idle engine holds nothing: every slot free, every map empty."""
        assert not self._known and not self._ending, "an idle engine must know no sequence"
        self._scheduler.check_idle()

    def _remove_ended(self) -> list[Outcome]:
        """Those ended from outside, those past their deadline, and those that were over before they came."""
        now = time.monotonic()
        for sequence in self._known.values():
            if sequence.deadline is not None and now >= sequence.deadline:
                self.end(sequence.name, "timeout")
            elif not sequence.read and (reason := sequence.end_after(self._limits.context_length)):
                self.end(sequence.name, reason)
        removed: list[Outcome] = list(self._ending.values())
        self._ending = {}
        for ended in removed:
            self._forget(ended.sequence)
        return removed

    def _read_and_choose(self, decoding: list[Sequence], chunks: list[Chunk]) -> list[_Choice]:
        """Read the step's tokens and choose after each sequence that is read to its end.

        If the model raises, each sequence is read alone, which gives the same bits, so that only the guilty one fails.
        """
        try:
            return self._read_together(decoding, chunks)
        except _PassError as error:
            _log.warning("a step is taken again, one sequence at a time: %s", error.reason)
            alone = [Chunk(sequence, 1) for sequence in decoding] + chunks
            return [choice for chunk in alone for choice in self._read_alone(chunk)]

    def _read_alone(self, chunk: Chunk) -> list[_Choice]:
        try:
            return self._read_together([], [chunk])
        except _PassError as error:
            _log.exception("%s: the model failed", chunk.sequence.name)
            return [_Choice(chunk.sequence, None, error.reason)]

    def _ask_model(self, ask: Callable[..., _T], *arguments: object) -> _T:
        """What the model answers. Raises _PassError for what it raises, unless that is the caller's."""
        try:
            return ask(*arguments)
        except self._passes:
            raise
        except Exception as error:
            raise _PassError from error

    def _read_together(self, decoding: list[Sequence], chunks: list[Chunk]) -> list[_Choice]:
        if not decoding and not chunks:
            return []
        batch = self._ask_model(StepBatch, self._pool, decoding, chunks, self._model.device)
        hidden = self._ask_model(self._model.trunk, batch.ids, batch)  # (tokens, d_model)
        self._on_phase("prefill" if chunks else "decode")
        finished = [chunk for chunk in chunks if chunk.tokens == chunk.sequence.unread]
        sequences = decoding + [chunk.sequence for chunk in finished]
        if len(sequences) < len(batch.ids):
            hidden = hidden[batch.last_rows[: len(sequences)]]  # only the last chunk can be unfinished
        choices = self._choose(hidden, sequences) if sequences else []
        for chunk in chunks:
            chunk.sequence.read += chunk.tokens
        for sequence in decoding:
            sequence.read += 1
        return choices

    def _choose(self, hidden: Tensor, sequences: list[Sequence]) -> list[_Choice]:
        logits = self._ask_model(self._model.head, hidden)  # (sequences, vocab)
        self._on_phase("head")
        if self._on_logits:
            for sequence, row in zip(sequences, logits, strict=True):
                self._on_logits(sequence, row)
        samplers = [sequence.sampler for sequence in sequences if sequence.sampler]
        tokens = self._ask_model(choose, logits, samplers)
        self._on_phase("sample")
        return [
            _Choice(sequence, token, "non-finite logits") for sequence, token in zip(sequences, tokens, strict=True)
        ]

    def _settle(self, choices: Iterable[_Choice]) -> list[Outcome]:
        """Give each sequence its token, and release the slots of those that end with it."""
        outcomes: list[Outcome] = []
        for sequence, token, error in choices:
            if token is None:
                outcomes.append(Ended(sequence, "error", error))
                self._forget(sequence)
                continue
            sequence.ids.append(token)
            outcomes.append(Chosen(sequence, sequence.tokens, token))
            if reason := sequence.end_after(self._limits.context_length):
                outcomes.append(Ended(sequence, reason))
                self._forget(sequence)
        return outcomes

    def _forget(self, sequence: Sequence) -> None:
        del self._known[sequence.name]
        self._ending.pop(sequence.name, None)
        self._scheduler.remove(sequence)


def _no_clock(phase: Phase) -> None:
    """What a step costs without a clock: a call for each phase."""
