"""The keys and values of all running sequences: one place each, side by side. It must not know what the ids mean.

Running sequences hold places 0, 1, 2, ... without a hole, so a step's attention is over a slice and gathers nothing.
When one leaves, the last moves into its place: one copy per ended job instead of one per step. A place has room for a
whole context, but only addresses: memory comes as tokens do, and goes with their sequence.
"""

from __future__ import annotations

import torch
from torch import Tensor

from minilab_gen.engine.lazy_memory import LazyMemory
from minilab_gen.engine.sequence import Sequence
from minilab_gen.models.attention import KEY_TILE, round_up
from minilab_gen.models.config import ModelConfig


def bytes_of_a_token(config: ModelConfig) -> int:
    """What the keys and values of one token take, in float32."""
    return config.n_layer * config.n_kv_head * 2 * config.head_dim * 4


class Pool:
    """``max_places`` rows of a whole context each, for every layer."""

    def __init__(self, config: ModelConfig, max_places: int, device: torch.device) -> None:
        self.capacity = round_up(config.context_length, KEY_TILE)  # positions of a place
        self.max_places = max_places
        self.n_kv_head = config.n_kv_head
        self.group = config.n_head // config.n_kv_head  # query heads that share a key head
        shape = (config.n_layer, max_places, config.n_kv_head, self.capacity, 2 * config.head_dim)
        self._memory = LazyMemory(shape, device)
        self._all = self._memory.tensor
        self._rows = [layer.flatten(0, 2) for layer in self._all]  # each (places * heads * positions, 2 * head_dim)
        self.residents: list[Sequence] = []
        """Who holds places 0, 1, 2, ...; one whose prompt is half read holds the last."""

    @property
    def free(self) -> int:
        """Places that nobody holds."""
        return self.max_places - len(self.residents)

    @property
    def tokens(self) -> int:
        """Positions that the residents' ids take once they are all read."""
        return sum(len(sequence.ids) for sequence in self.residents)

    def give_place(self, sequence: Sequence) -> None:
        """The next free place."""
        assert self.free, "a sequence was admitted into a full pool"
        sequence.place = len(self.residents)
        self.residents.append(sequence)

    def take_place(self, sequence: Sequence) -> None:
        """Free a sequence's place and close the hole, leaving the half-read sequence, if there is one, the last."""
        hole = sequence.place
        assert hole is not None and self.residents[hole] is sequence, "a sequence must hold the place it gives back"
        last = len(self.residents) - 1
        movers = [last - 1, last] if self.residents[last].unread > 1 else [last]
        used = len(sequence.ids)  # not only those read: a pass that raised may have stored keys in its first layers
        for mover in movers:
            if mover > hole:
                used = self._move(mover, hole, used)
                hole = mover
        self._wipe(hole, 0, used)
        self.residents.pop()
        sequence.place = None

    def _move(self, source: int, target: int, used: int) -> int:
        """Move a resident into a place of which ``used`` positions may hold others' keys; returns its own count."""
        resident = self.residents[source]
        self._all[:, target, :, : resident.read] = self._all[:, source, :, : resident.read]
        self._wipe(target, resident.read, used)
        self.residents[target], resident.place = resident, target
        return len(resident.ids)

    def _wipe(self, place: int, start: int, end: int) -> None:
        """Zero positions. A masked key is multiplied by an exact 0: that hides any number, but not NaN or infinity."""
        if start < end:
            for layer in self._all:
                for head in layer[place]:
                    self._memory.clear(head[start:end])

    def store(self, layer: int, rows: Tensor, keys_values: Tensor) -> Tensor:
        """Write (tokens, n_kv_head, 2 * head_dim) at flat ``rows``; returns the whole layer."""
        self._rows[layer].index_copy_(0, rows, keys_values.flatten(0, 1))
        return self._all[layer]

    def rows_at(self, places: Tensor, positions: Tensor) -> Tensor:
        """Where in a layer's flat rows each token's heads go, (tokens * n_kv_head,)."""
        first = places * (self.n_kv_head * self.capacity) + positions  # (tokens,)
        if self.n_kv_head == 1:
            return first
        heads = torch.arange(self.n_kv_head, device=places.device) * self.capacity
        return (first[:, None] + heads).flatten()

    def check_empty(self) -> None:
        """Assert that every place is free and begins with zeros; for a pool that should be idle.

        Only the first tile of each place is read: to read everything would take minutes where contexts are long.
        """
        assert not self.residents, f"places are still held by {[sequence.name for sequence in self.residents]}"
        assert not self._all[:, :, :, :KEY_TILE].any(), "a free place must hold zeros"
