"""The engine: admits sequences while others run, reads prompts in chunks, decodes all in one pass, settles which ended.

It must not import Redis or RQ. One thread uses it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Literal

from minilab_gen.engine.masks import Masks
from minilab_gen.engine.rows import Choice, StepRows
from minilab_gen.engine.scheduler import Chunk, Scheduler
from minilab_gen.engine.sequence import Chosen, Ended, EngineEnd, Outcome, Sequence
from minilab_gen.errors import RequestError
from minilab_gen.kernels.library import KernelError
from minilab_gen.kernels.sampler import NO_TOKEN, TokenSampler, needs_sampler
from minilab_gen.models.kernel_model import KernelModel
from minilab_gen.request import ModelLimits

if TYPE_CHECKING:
    from torch import Tensor

    from minilab_gen.constraint import Constraint

_PREFILL_SHARE, _LEAST_PREFILL = 4, 64
"""Prompt tokens that one step reads at most: so many for each slot, but no fewer. A newcomer then delays its
neighbours by two or three of their steps: a product over four times the rows takes less than four times as long."""

_JUDGED_LOGITS, _LEAST_JUDGED = 2**22, 16
"""Logits of a prompt that one step computes at most where its logprobs are wanted, 16 MB; but so many rows at least."""

OnLogits = Callable[[Sequence, "Tensor"], None]

Phase = Literal["plan", "prefill", "decode", "settle"]
"""Parts of a step in their order; a pass that reads any prompt is ``prefill``, although others decode along with it. It
ends when the tokens are chosen."""

OnPhase = Callable[[Phase], None]

_log = logging.getLogger(__name__)


class Engine:
    """Runs up to ``max_batch`` sequences at a time; the others wait, first come, first served.

    ``threads`` threads compute, by default the model's. ``kv_tokens`` are the tokens whose keys and values are held at
    a time, by default ``max_batch`` whole contexts; memory is taken as they come. A step reads ``prefill_tokens`` of
    prompts at most. ``on_logits`` is shown the logits (vocab,) of every choice, for checks. ``on_phase`` is told each
    phase that has just ended, for clocks. What the kernels refuse ends the guilty sequence alone; whatever else a step
    raises is the caller's, an interrupt for instance, and the engine is of no use after that.
    """

    def __init__(
        self,
        model: KernelModel,
        max_batch: int,
        *,
        threads: int | None = None,
        kv_tokens: int | None = None,
        prefill_tokens: int | None = None,
        on_logits: OnLogits | None = None,
        on_phase: OnPhase | None = None,
    ) -> None:
        if max_batch < 1:
            raise RequestError(f"max_batch must be at least 1, got {max_batch}")
        context = model.config.context_length
        kv_tokens = max_batch * context if kv_tokens is None else kv_tokens
        prefill_tokens = max(_LEAST_PREFILL, _PREFILL_SHARE * max_batch) if prefill_tokens is None else prefill_tokens
        for name, value in {"kv_tokens": kv_tokens, "prefill_tokens": prefill_tokens}.items():
            if value < 1:
                raise RequestError(f"{name} must be at least 1, got {value}")
        self._decoder = model.decoder(max_batch, threads)
        self._limits = ModelLimits(model.config.vocab_size, context, kv_tokens)
        budget = kv_tokens if kv_tokens < max_batch * context else None
        judged_tokens = max(_LEAST_JUDGED, _JUDGED_LOGITS // model.config.vocab_size)
        self._scheduler = Scheduler(max_batch, budget, prefill_tokens, self._decoder.release, judged_tokens)
        self._on_logits = on_logits
        self._on_phase = on_phase or _no_clock
        self._known: dict[str, Sequence] = {}
        self._ending: dict[str, Ended] = {}
        self._constrained: dict[str, Sequence] = {}
        self._scoring: dict[str, Sequence] = {}
        """Those after which no token follows, and whose prompts are still to be judged."""
        self._masks = Masks()

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
        request = sequence.request
        request.check_fits(self._limits)
        if request.form is not None and sequence.constraint is None:
            raise RequestError("a sequence whose answer must have a form needs a constraint, got none")
        if needs_sampler(request.settings) or sequence.constraint is not None:
            sequence.sampler = TokenSampler(request.settings, self._limits.vocab_size, request.stop_ids)
            sequence.sampler.begin(request.prompt, sequence.ids[len(request.prompt) :])
        self._scheduler.add(sequence)
        self._known[sequence.name] = sequence
        if sequence.constraint is not None:
            self._constrained[sequence.name] = sequence

    def end(self, name: str, reason: EngineEnd, error: str | None = None) -> bool:
        """End a sequence at the next step, whatever it is doing; False for a name that is unknown."""
        sequence = self._known.get(name)
        if sequence is not None:
            self._ending.setdefault(name, Ended(sequence, reason, error))
        return sequence is not None

    def step(self) -> list[Outcome]:
        """Remove, admit, read, choose, settle: at most one new token for every running sequence."""
        self._masks.join()
        outcomes = self._remove_ended()
        chunks = self._scheduler.plan()
        self._on_phase("plan")
        choices, refused = self._read_and_choose(chunks)
        outcomes += self._settle(choices)
        outcomes += self._end_scored()
        for ended in refused:
            self._forget(ended.sequence)
        outcomes += refused
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
                sequence.over = reason
                if sequence.is_scored:
                    self.end(sequence.name, reason)
                else:
                    self._scoring[sequence.name] = sequence
        for sequence in self._constrained.values():
            if sequence.over is None:
                self._end_by_form(sequence)
        removed: list[Outcome] = list(self._ending.values())
        self._ending = {}
        for ended in removed:
            self._forget(ended.sequence)
        return removed

    def _end_by_form(self, sequence: Sequence) -> None:
        """End one after which nothing may come, or whose constraint has failed."""
        assert sequence.constraint is not None, "it is one of those that have a form"
        if sequence.constraint.error is not None:
            self.end(sequence.name, "error", sequence.constraint.error)
        elif sequence.constraint.must_end:
            self.end(sequence.name, "stop")

    def _read_and_choose(self, chunks: list[Chunk]) -> tuple[list[Choice], list[Ended]]:
        """Read the step's tokens and choose after each sequence that is read to its end.

        If the kernels refuse, each sequence is read alone, which gives the same bits: only the guilty ones end.
        """
        try:
            return self._read(chunks), []
        except KernelError as error:
            _log.warning("a step is taken again, one sequence at a time: %s", error)
        choices: list[Choice] = []
        refused: list[Ended] = []
        for chunk in chunks:
            try:
                choices += self._read([chunk])
            except KernelError as error:
                _log.exception("%s: the kernels failed", chunk.sequence.name)
                refused.append(Ended(chunk.sequence, "error", str(error)))
        return choices, refused

    def _read(self, chunks: list[Chunk]) -> list[Choice]:
        if not chunks:
            return []
        rows = StepRows(chunks)
        logits = self._room_for_logits(len(rows.outputs)) if self._on_logits else None
        if self._constrained:
            _mask(rows.readers)
        chosen = self._decoder.run(
            rows.ids,
            rows.slots,
            rows.positions,
            rows.outputs,
            samplers=rows.samplers,
            logits=None if logits is None else logits.data_ptr(),
            logprobs=rows.room,
        )
        choices = rows.choices(chosen)
        self._on_phase("decode" if len(rows.ids) == len(chunks) == len(choices) else "prefill")
        for sequence, tokens in chunks:
            sequence.read += tokens
        if self._on_logits and logits is not None:
            for sequence, is_chosen, row in zip(rows.readers, rows.chosen, logits, strict=True):
                if is_chosen:
                    self._on_logits(sequence, row)
        return choices

    def _room_for_logits(self, rows: int) -> Tensor:
        import torch  # which a worker does without

        return torch.empty(rows, self._limits.vocab_size)

    def _settle(self, choices: Iterable[Choice]) -> list[Outcome]:
        """Give each sequence its token, and release the slots of those that end with it."""
        outcomes: list[Outcome] = []
        moved: list[Constraint] = []
        for sequence, token, listed in choices:
            if token < 0:
                outcomes.append(Ended(sequence, "error", _no_token(sequence, token)))
                self._forget(sequence)
                continue
            sequence.take(token)
            outcomes.append(Chosen(sequence, sequence.tokens, token, listed))
            if reason := sequence.end_after(self._limits.context_length):
                outcomes.append(Ended(sequence, reason))
                self._forget(sequence)
            elif sequence.constraint is not None:
                moved.append(sequence.constraint)
        self._masks.start(moved)
        return outcomes

    def _end_scored(self) -> list[Outcome]:
        """End the sequences of which only a prompt's logprobs were wanted, once they are all there."""
        outcomes: list[Outcome] = []
        for sequence in [each for each in self._scoring.values() if each.is_scored] if self._scoring else ():
            assert sequence.over is not None, "it is one of those after which no token follows"
            outcomes.append(Ended(sequence, sequence.over))
            self._forget(sequence)
        return outcomes

    def _forget(self, sequence: Sequence) -> None:
        del self._known[sequence.name]
        self._ending.pop(sequence.name, None)
        self._constrained.pop(sequence.name, None)
        self._scoring.pop(sequence.name, None)
        self._scheduler.remove(sequence)


def _mask(sequences: Iterable[Sequence]) -> None:
    """Let the samplers of those that have a form choose only what it allows."""
    for sequence in sequences:
        if sequence.constraint is not None and sequence.sampler is not None:
            sequence.sampler.mask_bits(sequence.constraint.mask(sequence.request.stop_ids))


def _no_token(sequence: Sequence, token: int) -> str:
    """Why there is no next token, of ``NO_TOKEN``."""
    why = NO_TOKEN[token]
    return why if sequence.constraint is None else why.replace("the settings", "the settings and the answer's form")


def _no_clock(phase: Phase) -> None:
    """What a step costs without a clock: a call for each phase."""
