"""What one step reads: one token of each decoding sequence, and chunks of prompts. It must not choose who runs."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from minilab_gen.attention import KEY_TILE, attend_many_sequences, attend_one_sequence, causal_bias, round_up
from minilab_gen.engine.pool import Pool
from minilab_gen.engine.sequence import Sequence


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
    place: int
    length: int
    """Key positions, a multiple of the tile."""
    bias: Tensor


class Reading:
    """A step's tokens laid flat, decoding ones first; an :class:`~minilab_gen.attention.AttentionMemory`.

    ``decoding`` sequences must hold the places 0, 1, 2, ... in order.
    """

    def __init__(self, pool: Pool, decoding: list[Sequence], chunks: list[Chunk], device: torch.device) -> None:
        self._pool = pool
        self._decoding = len(decoding)
        ids = [sequence.ids[-1] for sequence in decoding]
        places = list(range(len(decoding)))
        positions = [sequence.read for sequence in decoding]
        for chunk in chunks:
            start, end = chunk.sequence.read, chunk.sequence.read + chunk.tokens
            assert chunk.sequence.place is not None, "a sequence must hold a place before it is read"
            ids += chunk.sequence.ids[start:end]
            places += [chunk.sequence.place] * chunk.tokens
            positions += range(start, end)
        self.ids = torch.tensor(ids, device=device)
        self.positions = torch.tensor(positions, device=device)
        self._rows = pool.rows_at(torch.tensor(places, device=device), self.positions)
        self._length = round_up(max(positions[: self._decoding], default=0) + 1, KEY_TILE)
        self._bias = causal_bias(self.positions[: self._decoding], self._length)
        self._chunks = self._lay_chunks(chunks)
        self.last_rows = [*range(self._decoding), *(rows.last - 1 for rows in self._chunks)]
        """The row of each sequence's last token, decoding ones first, then the chunks."""

    def attend(self, layer: int, queries: Tensor, keys_values: Tensor) -> Tensor:
        stored = self._pool.store(layer, self._rows, keys_values)
        mixed = []
        if self._decoding:
            seen = stored[: self._decoding, :, : self._length]
            mixed.append(attend_many_sequences(queries[: self._decoding], seen, self._bias))
        for chunk in self._chunks:
            seen = stored[chunk.place, :, : chunk.length]
            mixed.append(attend_one_sequence(queries[chunk.first : chunk.last], seen, chunk.bias))
        return mixed[0] if len(mixed) == 1 else torch.cat(mixed)

    def _lay_chunks(self, chunks: list[Chunk]) -> list[_ChunkRows]:
        laid, first = [], self._decoding
        for chunk in chunks:
            last = first + chunk.tokens
            length = round_up(chunk.sequence.read + chunk.tokens, KEY_TILE)
            assert chunk.sequence.place is not None
            bias = causal_bias(self.positions[first:last], length)
            laid.append(_ChunkRows(first, last, chunk.sequence.place, length, bias))
            first = last
        return laid
