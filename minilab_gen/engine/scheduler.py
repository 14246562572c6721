"""Which sequences run and what the next step reads: slots, a budget of tokens, first come, first served.

A sequence is admitted when there is a slot for it and room in the budget for its ids. It may outgrow the budget later;
then the last to come is preempted: its slot is released and it waits at the front. It loses nothing but time: read
again, its ids give the same keys and values, bit for bit.
"""

from __future__ import annotations

from collections import deque

from minilab_gen.engine.pool import Pool
from minilab_gen.engine.sequence import Sequence
from minilab_gen.engine.step_batch import Chunk

_HEADROOM = 16
"""Tokens of the budget left to each running sequence as a newcomer is let in, lest it be preempted at once."""


class Scheduler:
    """The queue before a pool's slots."""

    def __init__(self, pool: Pool, kv_tokens: int, prefill_tokens: int) -> None:
        """``kv_tokens`` may be held in all, ``prefill_tokens`` of prompts are read in a step."""
        self._pool, self._kv_tokens, self._prefill_tokens = pool, kv_tokens, prefill_tokens
        self._can_overflow = kv_tokens < pool.max_slots * pool.capacity
        self._waiting: deque[Sequence] = deque()
        self._arrivals = 0

    @property
    def running(self) -> int:
        """Sequences that hold a slot."""
        return len(self._pool.residents)

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
            self._pool.release(sequence)

    def plan(self) -> tuple[list[Sequence], list[Chunk]]:
        """The sequences that decode in the next step and the chunks that are read, in the order of their slots.

        Prompts are read in the order of arrival within the step's allowance, and a newcomer gets a slot only when
        its turn to be read has come. So at most one prompt is half read, and it holds the last slot.
        """
        if self._can_overflow:
            self._preempt_to_budget()
        residents = self._pool.residents
        decoding = [sequence for sequence in residents if sequence.unread == 1]
        chunks: list[Chunk] = []
        allowance = self._prefill_tokens
        for sequence in residents[len(decoding) :]:
            chunks.append(Chunk(sequence, min(sequence.unread, allowance)))
            allowance -= chunks[-1].tokens
        while allowance and self._waiting and self._has_room_for(self._waiting[0]):
            newcomer = self._waiting.popleft()
            self._pool.allocate(newcomer)
            chunks.append(Chunk(newcomer, min(newcomer.unread, allowance)))
            allowance -= chunks[-1].tokens
        return decoding, chunks

    def check_idle(self) -> None:
        """Assert that no sequence waits or runs."""
        assert not self._waiting, "no sequence may wait in an idle engine"
        self._pool.check_idle()

    def _has_room_for(self, newcomer: Sequence) -> bool:
        if not self._pool.free or not self.running or not self._can_overflow:
            return bool(self._pool.free)
        return self._pool.tokens + len(newcomer.ids) + _HEADROOM * (self.running + 1) <= self._kv_tokens

    def _preempt_to_budget(self) -> None:
        """Preempt the last to come until the others' tokens fit; one alone always fits, or it was refused."""
        while self.running > 1 and self._pool.tokens > self._kv_tokens:
            last = max(self._pool.residents, key=lambda sequence: sequence.arrival)
            self._pool.release(last)
            last.read = 0
            self._waiting.appendleft(last)
