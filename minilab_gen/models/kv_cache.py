"""The keys and values of one sequence, kept so that no token is projected twice.

The engine keeps those of many sequences in a pool of its own (:mod:`minilab_gen.engine.pool`).
"""

from __future__ import annotations

import torch
from torch import Tensor

from minilab_gen.models.attention import KEY_TILE, QueryBlock, attend_one_sequence, causal_blocks, round_up


class KVCache:
    """One sequence's keys and values, layer by layer, growing as tokens are read."""

    def __init__(self, n_layer: int) -> None:
        if n_layer < 1:
            raise ValueError(f"n_layer must be at least 1, got {n_layer}")
        self.n_layer = n_layer
        self.length = 0
        self.projected = 0
        """Tokens that passed through the query, key and value projections, summed over the layers."""
        self._layers: list[Tensor | None] = [None] * n_layer  # each (n_kv_head, capacity, 2 * head_dim)

    def reading(self, tokens: int, device: torch.device) -> CacheReading:
        """The memory of a forward pass over the next ``tokens`` tokens."""
        return CacheReading(self, tokens, device)

    def store(self, layer: int, keys_values: Tensor) -> Tensor:
        """Append (tokens, n_kv_head, 2 * head_dim) to a layer; returns all of it, (n_kv_head, tiled length, ...)."""
        end = self.length + keys_values.shape[0]
        stored = self._with_room(layer, keys_values, end)
        stored[:, self.length : end] = keys_values.transpose(0, 1)
        self.projected += keys_values.shape[0]
        return stored[:, : round_up(end, KEY_TILE)]

    def _with_room(self, layer: int, like: Tensor, end: int) -> Tensor:
        stored = self._layers[layer]
        capacity = 0 if stored is None else stored.shape[1]
        if stored is None or capacity < end:
            room = like.new_zeros(like.shape[1], max(round_up(end, KEY_TILE), 2 * capacity), like.shape[2])
            if stored is not None:
                room[:, : self.length] = stored[:, : self.length]
            self._layers[layer] = stored = room
        return stored


class CacheReading:
    """One forward pass of new tokens over a :class:`KVCache`.

    It is an :class:`~minilab_gen.models.attention.AttentionMemory`.
    """

    def __init__(self, cache: KVCache, tokens: int, device: torch.device) -> None:
        self._cache, self._tokens = cache, tokens
        end = cache.length + tokens
        self.positions = torch.arange(cache.length, end, device=device)
        self._blocks: list[QueryBlock] | None = None

    def attend(self, layer: int, queries: Tensor, keys_values: Tensor) -> Tensor:
        if self._blocks is None:
            group = queries.shape[1] // keys_values.shape[1]
            self._blocks = causal_blocks(self._cache.length, self._tokens, group, self.positions.device)
        mixed = attend_one_sequence(queries, self._cache.store(layer, keys_values), self._blocks)
        if layer == self._cache.n_layer - 1:
            self._cache.length += self._tokens
        return mixed
