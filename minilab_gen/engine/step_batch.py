"""What one step reads: one token of each decoding sequence, and chunks of prompts."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from minilab_gen.engine.pool import Pool
from minilab_gen.engine.sequence import Sequence
from minilab_gen.models.attention import (
    KEY_TILE,
    QueryBlock,
    attend_many_sequences,
    attend_one_sequence,
    causal_bias,
    causal_blocks,
    round_up,
)


@dataclass(frozen=True, slots=True)
class Chunk:
    """A sequence and how many of its unread ids a step reads."""

    sequence: Sequence
    tokens: int


@dataclass(frozen=True, slots=True)
class _ChunkRows:
    """Where a chunk's tokens lie in the flat batch, and what they may see."""

    first: int
    last: int
    slot: int
    blocks: list[QueryBlock]


_ROW_STEP, _FREE_ROWS = 16, 64
"""Rows beyond so many come in multiples of this. oneDNN makes a kernel for each number of rows that it meets, which
takes longer than a small product, and keeps some thousand of them."""

_LONE_COST = 512
"""Key positions that take as long as attending for one more sequence alone: some ten calls of small operations."""


class StepBatch:
    """A step's tokens laid flat, decoding ones first; an :class:`~minilab_gen.models.attention.AttentionMemory`.

    ``decoding`` sequences must hold the slots 0, 1, 2, ... in order. They attend together, over as many positions as
    suits most of them; those with more do so alone.
    """

    def __init__(self, pool: Pool, decoding: list[Sequence], chunks: list[Chunk], device: torch.device) -> None:
        self._pool = pool
        self._decoding = len(decoding)
        ids = [sequence.ids[-1] for sequence in decoding]
        slots = list(range(len(decoding)))
        positions = [sequence.read for sequence in decoding]
        for chunk in chunks:
            start, end = chunk.sequence.read, chunk.sequence.read + chunk.tokens
            assert chunk.sequence.slot is not None, "a sequence must hold a slot before it is read"
            ids += chunk.sequence.ids[start:end]
            slots += [chunk.sequence.slot] * chunk.tokens
            positions += range(start, end)
        self._tokens = len(ids)
        self._padding = -len(ids) % _ROW_STEP if len(ids) > _FREE_ROWS else 0
        self.ids = torch.tensor(ids + [0] * self._padding, device=device)
        self.positions = torch.tensor(positions + [0] * self._padding, device=device)
        self._rows = pool.rows_at(torch.tensor(slots, device=device), self.positions[: self._tokens])
        lengths = [round_up(position + 1, KEY_TILE) for position in positions[: self._decoding]]
        self._length = shared_length(lengths)
        self._lone = [(slot, length) for slot, length in enumerate(lengths) if length > self._length]
        self._bias = causal_bias(self.positions[: self._decoding], max(lengths, default=0))
        self._chunks = self._lay_chunks(chunks)
        self.last_rows = [*range(self._decoding), *(rows.last - 1 for rows in self._chunks)]
        """The row of each sequence's last token, decoding ones first, then the chunks."""

    def attend(self, layer: int, queries: Tensor, keys_values: Tensor) -> Tensor:
        stored = self._pool.store(layer, self._rows, keys_values[: self._tokens])
        mixed = [self._attend_decoding(queries[: self._decoding], stored)] if self._decoding else []
        mixed += [
            attend_one_sequence(queries[chunk.first : chunk.last], stored[chunk.slot], chunk.blocks)
            for chunk in self._chunks
        ]
        if self._padding:
            mixed.append(queries.new_zeros(self._padding, mixed[0].shape[1]))
        return mixed[0] if len(mixed) == 1 else torch.cat(mixed)

    def _attend_decoding(self, queries: Tensor, stored: Tensor) -> Tensor:
        seen, bias = stored[: self._decoding, :, : self._length], self._bias[..., : self._length]
        mixed = attend_many_sequences(queries, seen, bias)
        for slot, length in self._lone:
            own = slice(slot, slot + 1)
            mixed[own] = attend_many_sequences(queries[own], stored[own, :, :length], self._bias[own, :, :length])
        return mixed

    def _lay_chunks(self, chunks: list[Chunk]) -> list[_ChunkRows]:
        laid, first = [], self._decoding
        for chunk in chunks:
            last = first + chunk.tokens
            blocks = causal_blocks(chunk.sequence.read, chunk.tokens, self._pool.group, self.positions.device)
            assert chunk.sequence.slot is not None
            laid.append(_ChunkRows(first, last, chunk.sequence.slot, blocks))
            first = last
        return laid


def shared_length(lengths: list[int]) -> int:
    """The positions to which many sequences attend together, so that these and the longer ones alone take least."""
    best, least, longer = 0, float("inf"), 0
    for rank, length in enumerate(sorted(lengths, reverse=True)):  # the longest ``rank`` sequences attend alone
        cost = len(lengths) * length + longer + rank * _LONE_COST
        if cost < least:
            best, least = length, cost
        longer += length
    return best
