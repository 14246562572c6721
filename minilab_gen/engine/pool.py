"""The keys and values of all running sequences: one slot each, side by side.

Running sequences hold slots 0, 1, 2, ... without a hole, so a step's attention is over a slice and gathers nothing.
When one ends, the last moves into its slot: one copy per ended job instead of one per step. A slot has room for a
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
    """``max_slots`` rows of a whole context each, for every layer."""

    def __init__(self, config: ModelConfig, max_slots: int, device: torch.device) -> None:
        self.capacity = round_up(config.context_length, KEY_TILE)  # positions of a slot
        self.max_slots = max_slots
        self.n_kv_head = config.n_kv_head
        self.group = config.n_head // config.n_kv_head  # query heads that share a key head
        shape = (config.n_layer, max_slots, config.n_kv_head, self.capacity, 2 * config.head_dim)
        self._memory = LazyMemory(shape, device)
        self._all = self._memory.tensor
        self._rows = [layer.flatten(0, 2) for layer in self._all]  # each (slots * heads * positions, 2 * head_dim)
        self.residents: list[Sequence] = []
        """The sequences in slots 0, 1, 2, ...; one whose prompt is half read holds the last."""

    @property
    def free(self) -> int:
        """Slots that no sequence holds."""
        return self.max_slots - len(self.residents)

    @property
    def tokens(self) -> int:
        """Positions that the residents' ids take once they are all read."""
        return sum(len(sequence.ids) for sequence in self.residents)

    def allocate(self, sequence: Sequence) -> None:
        """Give a sequence the next free slot."""
        assert self.free, "a sequence was admitted into a full pool"
        sequence.slot = len(self.residents)
        self.residents.append(sequence)

    def release(self, sequence: Sequence) -> None:
        """Release a sequence's slot and close the hole; a half-read sequence, if there is one, stays the last."""
        hole = sequence.slot
        assert hole is not None and self.residents[hole] is sequence, "a sequence must hold the slot that it releases"
        last = len(self.residents) - 1
        movers = [last - 1, last] if self.residents[last].unread > 1 else [last]
        used = len(sequence.ids)  # not only those read: a pass that raised may have stored keys in its first layers
        for mover in movers:
            if mover > hole:
                used = self._move(mover, hole, used)
                hole = mover
        self._wipe(hole, 0, used)
        self.residents.pop()
        sequence.slot = None

    def _move(self, source: int, target: int, used: int) -> int:
        """Move a resident into a slot of which ``used`` positions may hold others' keys; returns its own count."""
        resident = self.residents[source]
        self._all[:, target, :, : resident.read] = self._all[:, source, :, : resident.read]
        self._wipe(target, resident.read, used)
        self.residents[target], resident.slot = resident, target
        return len(resident.ids)

    def _wipe(self, slot: int, start: int, end: int) -> None:
        """Zero positions. A masked key is multiplied by an exact 0: that hides any number, but not NaN or infinity."""
        if start < end:
            for layer in self._all:
                for head in layer[slot]:
                    self._memory.clear(head[start:end])

    def store(self, layer: int, rows: Tensor, keys_values: Tensor) -> Tensor:
        """Write (tokens, n_kv_head, 2 * head_dim) at flat ``rows``; returns the whole layer."""
        self._rows[layer].index_copy_(0, rows, keys_values.flatten(0, 1))
        return self._all[layer]

    def rows_at(self, slots: Tensor, positions: Tensor) -> Tensor:
        """Where in a layer's flat rows each token's heads go, (tokens * n_kv_head,)."""
        first = slots * (self.n_kv_head * self.capacity) + positions  # (tokens,)
        if self.n_kv_head == 1:
            return first
        heads = torch.arange(self.n_kv_head, device=slots.device) * self.capacity
        return (first[:, None] + heads).flatten()

    def check_idle(self) -> None:
        """Assert that every slot is free and begins with zeros; for a pool that should be idle.

        Only the first tile of each slot is read: to read everything would take minutes where contexts are long.
        """
        assert not self.residents, f"slots are still held by {[sequence.name for sequence in self.residents]}"
        assert not self._all[:, :, :, :KEY_TILE].any(), "a free slot must hold zeros"
