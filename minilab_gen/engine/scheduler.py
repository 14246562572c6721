"""Which sequences run and what the next step reads: slots, a budget of tokens, first come, first served.

A sequence is admitted when there is a slot for it and room in the budget for its ids. It may outgrow the budget later;
then the last to come is preempted: its slot is released and it waits at the front. It loses nothing but time: read
again, its ids give the same keys and values, bit for bit.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from minilab_gen.engine.sequence import Sequence

_HEADROOM = 16
"""Tokens of the budget left to each running sequence as a newcomer is let in, lest it be preempted at once."""


class Chunk(NamedTuple):
    """A sequence and how many of its unread ids a step reads."""

    sequence: Sequence
    tokens: int


class Scheduler:
    """The queue before ``slots`` slots."""

    def __init__(
        self,
        slots: int,
        kv_tokens: int | None,
        prefill_tokens: int,
        on_release: Callable[[int], None],
        judged_tokens: int | None = None,
    ) -> None:
        """``kv_tokens`` may be held in all, None without a limit; ``prefill_tokens`` of prompts are read in a step.

        Of prompts whose logprobs are wanted they are ``judged_tokens``, if that is fewer. ``on_release`` gets the
        number of each slot that becomes free.
        """
        self._slots, self._kv_tokens, self._prefill_tokens = slots, kv_tokens, prefill_tokens
        self._judged_tokens = prefill_tokens if judged_tokens is None else judged_tokens
        self._on_release = on_release
        self._free = list(reversed(range(slots)))  # the lowest is taken first, so that few slots touch little memory
        self._running: list[Sequence] = []  # in the order in which they got their slots
        self._waiting: deque[Sequence] = deque()
        self._arrivals = 0

    @property
    def running(self) -> int:
        """Sequences that hold a slot."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Sequences that wait for one."""
        return len(self._waiting)

    def add(self, sequence: Sequence) -> None:
        """Let a sequence wait for its turn."""
        self._arrivals += 1
        sequence.arrival = self._arrivals
        self._waiting.append(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Remove a sequence, waiting or running."""
        if sequence.slot is None:
            self._waiting.remove(sequence)
        else:
            self._release(sequence)

    def plan(self) -> list[Chunk]:
        """What the next step reads: the last token of each sequence that decodes, and chunks of prompts.

        Prompts are read in the order of arrival within the step's allowance, and a newcomer gets a slot only when
        its turn to be read has come. So at most one prompt is half read.
        """
        self._preempt_to_budget()
        chunks: list[Chunk] = []
        allowance = self._prefill_tokens
        for sequence in self._running:
            unread = sequence.unread
            if unread == 1:
                chunks.append(Chunk(sequence, 1))
            elif allowance:
                allowance = self._allowed(sequence, allowance)
                chunks.append(Chunk(sequence, min(unread, allowance)))
                allowance -= chunks[-1].tokens
        while allowance and self._waiting and self._has_room_for(self._waiting[0]):
            newcomer = self._waiting.popleft()
            newcomer.slot = self._free.pop()
            self._running.append(newcomer)
            allowance = self._allowed(newcomer, allowance)
            chunks.append(Chunk(newcomer, min(newcomer.unread, allowance)))
            allowance -= chunks[-1].tokens
        return chunks

    def check_idle(self) -> None:
        """Assert that no sequence waits or runs and that every slot is free."""
        assert not self._waiting, "no sequence may wait in an idle engine"
        assert not self._running, f"slots are still held by {[sequence.name for sequence in self._running]}"
        assert sorted(self._free) == list(range(self._slots)), f"every slot must be free, got {sorted(self._free)}"

    def _allowed(self, sequence: Sequence, allowance: int) -> int:
        """What is left of a step's allowance where a sequence is read next."""
        return allowance if sequence.is_scored else min(allowance, self._judged_tokens)

    @property
    def _tokens(self) -> int:
        """Tokens that the running sequences take once their ids are all read."""
        return sum(len(sequence.ids) for sequence in self._running)

    def _has_room_for(self, newcomer: Sequence) -> bool:
        if not self._free or not self._running or self._kv_tokens is None:
            return bool(self._free)
        return self._tokens + len(newcomer.ids) + _HEADROOM * (self.running + 1) <= self._kv_tokens

    def _preempt_to_budget(self) -> None:
        """Preempt the last to come until the others' tokens fit; one alone always fits, or it was refused."""
        while self._kv_tokens is not None and self.running > 1 and self._tokens > self._kv_tokens:
            last = max(self._running, key=lambda sequence: sequence.arrival)
            self._release(last)
            last.read = 0
            self._waiting.appendleft(last)

    def _release(self, sequence: Sequence) -> None:
        assert sequence.slot is not None, "a sequence must hold the slot that it releases"
        self._running.remove(sequence)
        self._free.append(sequence.slot)
        self._on_release(sequence.slot)
        sequence.slot = None
