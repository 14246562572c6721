"""The engine: admits sequences while others run, reads prompts in chunks, decodes all in one pass, settles who ended.

It must not know about jobs, queues or Redis. One thread uses it.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from minilab_gen.engine.pool import Pool
from minilab_gen.engine.reading import Chunk, Reading
from minilab_gen.engine.sampler import choose
from minilab_gen.engine.sequence import Chosen, Ended, EngineEnd, Outcome, Sequence
from minilab_gen.errors import RequestError
from minilab_gen.model import MiniLabModel
from minilab_gen.request import ModelLimits
from minilab_gen.sampling import Sampler

PREFILL_TOKENS = 256
"""Prompt tokens that one step reads at most: what a newcomer may delay its neighbours by, about two decode steps."""

OnLogits = Callable[[Sequence, Tensor], None]

Phase = Literal["plan", "prefill", "decode", "head", "sample", "settle"]
"""Parts of a step in their order; a pass that reads any prompt is ``prefill``, although others decode along with it."""

OnPhase = Callable[[Phase], None]

_log = logging.getLogger(__name__)


class _Choice(NamedTuple):
    """The next token of a sequence; None where there is none, and then why."""

    sequence: Sequence
    token: int | None
    error: str


class Engine:
    """Runs up to ``max_batch`` sequences at a time; the others wait, first come, first served.

    Memory for keys and values is allocated at once: ``max_batch`` places of a whole context. ``on_logits`` is shown
    the logits (vocab,) of every choice, for checks. ``on_phase`` is told each phase that has just ended, for clocks.
    """

    def __init__(
        self,
        model: MiniLabModel,
        max_batch: int,
        *,
        prefill_tokens: int = PREFILL_TOKENS,
        on_logits: OnLogits | None = None,
        on_phase: OnPhase | None = None,
    ) -> None:
        if max_batch < 1 or prefill_tokens < 1:
            raise RequestError(f"max_batch and prefill_tokens must be at least 1, got {max_batch} and {prefill_tokens}")
        self._model = model
        self._limits = ModelLimits(model.config.vocab_size, model.config.context_length)
        self._pool = Pool(model.config, max_batch, model.device)
        self._prefill_tokens = prefill_tokens
        self._on_logits = on_logits
        self._on_phase = on_phase or _tell_nobody
        self._waiting: deque[Sequence] = deque()
        self._known: dict[str, Sequence] = {}
        self._leaving: dict[str, Ended] = {}

    @property
    def has_work(self) -> bool:
        return bool(self._known)

    @property
    def running(self) -> int:
        """Sequences that hold a place."""
        return len(self._pool.residents)

    @property
    def waiting(self) -> int:
        """Sequences that wait for one."""
        return len(self._waiting)

    def add(self, sequence: Sequence) -> None:
        """Let a sequence wait for a place. Raises RequestError for one that could never run, or whose name is here."""
        if sequence.name in self._known:
            raise RequestError(f"a sequence's name must be new to the engine, got {sequence.name} again")
        sequence.request.check_fits(self._limits)
        sequence.sampler = Sampler(sequence.request.settings, self._limits.vocab_size)
        sequence.sampler.skip(sequence.tokens)
        self._known[sequence.name] = sequence
        self._waiting.append(sequence)

    def end(self, name: str, reason: EngineEnd, error: str | None = None) -> bool:
        """Let a sequence go at the next step, whatever it is doing; False for a name that is not here."""
        sequence = self._known.get(name)
        if sequence is not None:
            self._leaving.setdefault(name, Ended(sequence, reason, error))
        return sequence is not None

    @torch.inference_mode()
    def step(self) -> list[Outcome]:
        """Let go, admit, read, choose, settle: at most one new token for every running sequence."""
        left = self._let_go()
        decoding, chunks = self._plan()
        self._on_phase("plan")
        choices = self._read_and_choose(decoding, chunks)
        outcomes = left + self._settle(choices)
        self._on_phase("settle")
        return outcomes

    def check_books(self) -> None:
        """Assert that an idle engine holds nothing: every place free, every map empty."""
        assert not self._known and not self._waiting and not self._leaving, "an idle engine must know no sequence"
        self._pool.check_empty()

    def _let_go(self) -> list[Outcome]:
        """Those told to leave, those past their deadline, and those that were over before they came."""
        now = time.monotonic()
        for sequence in self._known.values():
            if sequence.deadline is not None and now >= sequence.deadline:
                self.end(sequence.name, "timeout")
            elif not sequence.read and (reason := sequence.end_after(self._limits.context_length)):
                self.end(sequence.name, reason)
        left: list[Outcome] = list(self._leaving.values())
        self._leaving = {}
        for ended in left:
            self._forget(ended.sequence)
        return left

    def _plan(self) -> tuple[list[Sequence], list[Chunk]]:
        """Who decodes in this step, and which chunks of which prompts are read: in the order of their places.

        Prompts are read in the order of arrival within the step's allowance, and a newcomer gets a place only when
        its turn to be read has come. So at most one prompt is half read, and it holds the last place.
        """
        residents = self._pool.residents
        decoding = [sequence for sequence in residents if sequence.unread == 1]
        chunks: list[Chunk] = []
        allowance = self._prefill_tokens
        for sequence in residents[len(decoding) :]:
            chunks.append(Chunk(sequence, min(sequence.unread, allowance)))
            allowance -= chunks[-1].tokens
        while allowance and self._waiting and self._pool.free:
            newcomer = self._waiting.popleft()
            self._pool.give_place(newcomer)
            chunks.append(Chunk(newcomer, min(newcomer.unread, allowance)))
            allowance -= chunks[-1].tokens
        return decoding, chunks

    def _read_and_choose(self, decoding: list[Sequence], chunks: list[Chunk]) -> list[_Choice]:
        """Read the step's tokens and choose after each sequence that is read to its end.

        If that raises, each sequence is read alone, which gives the same bits, so that only the guilty one fails.
        """
        try:
            return self._read_together(decoding, chunks)
        except Exception:  # noqa: BLE001 - whatever it was, it is found again below and reported there
            alone = [Chunk(sequence, 1) for sequence in decoding] + chunks
            return [choice for chunk in alone for choice in self._read_alone(chunk)]

    def _read_alone(self, chunk: Chunk) -> list[_Choice]:
        try:
            return self._read_together([], [chunk])
        except Exception as error:  # noqa: BLE001 - whatever it was, it ends this sequence alone
            _log.exception("%s: the model failed", chunk.sequence.name)
            return [_Choice(chunk.sequence, None, f"{type(error).__name__}: {error}")]

    def _read_together(self, decoding: list[Sequence], chunks: list[Chunk]) -> list[_Choice]:
        if not decoding and not chunks:
            return []
        reading = Reading(self._pool, decoding, chunks, self._model.device)
        hidden = self._model.trunk(reading.ids, reading)  # (tokens, d_model)
        self._on_phase("prefill" if chunks else "decode")
        finished = [chunk for chunk in chunks if chunk.tokens == chunk.sequence.unread]
        sequences = decoding + [chunk.sequence for chunk in finished]
        if len(sequences) < len(reading.ids):
            hidden = hidden[reading.last_rows[: len(sequences)]]  # only the last chunk can be unfinished
        choices = self._choose(hidden, sequences) if sequences else []
        for chunk in chunks:
            chunk.sequence.read += chunk.tokens
        for sequence in decoding:
            sequence.read += 1
        return choices

    def _choose(self, hidden: Tensor, sequences: list[Sequence]) -> list[_Choice]:
        logits = self._model.head(hidden)  # (sequences, vocab)
        self._on_phase("head")
        if self._on_logits:
            for sequence, row in zip(sequences, logits, strict=True):
                self._on_logits(sequence, row)
        tokens = choose(logits, [sequence.sampler for sequence in sequences if sequence.sampler])
        self._on_phase("sample")
        return [
            _Choice(sequence, token, "non-finite logits") for sequence, token in zip(sequences, tokens, strict=True)
        ]

    def _settle(self, choices: Iterable[_Choice]) -> list[Outcome]:
        """Give each sequence its token, and free the places of those that end with it."""
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
        self._leaving.pop(sequence.name, None)
        if sequence.place is None:
            self._waiting.remove(sequence)
        else:
            self._pool.take_place(sequence)


def _tell_nobody(phase: Phase) -> None:
    """What a step costs without a clock: a call for each phase."""
