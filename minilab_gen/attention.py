"""Attention written so that a query gets the same bits whatever else is computed beside it.

It must not know about layers, weights or sampling: queries and keys go in, mixed values come out.

Each query token is one item of a batched matrix product: its :data:`QUERY_TILE` query heads against its own
sequence's keys. Prefill, chunked prefill and decode therefore run the very same small product, and the number of
items never enters one item's arithmetic. Key lengths are rounded up to :data:`KEY_TILE` with the rest masked:
a masked key adds an exact zero to every sum.
"""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

QUERY_TILE = 8
"""Query heads for each key head in one product; other counts are padded up to a multiple of it."""

KEY_TILE = 16
"""Positions. Key lengths are multiples of it, the width of an AVX-512 register in float32."""


class AttentionMemory(Protocol):
    """Where the keys and values of the tokens in one forward pass are kept, and who may see whom."""

    @property
    def positions(self) -> Tensor:
        """The position of each token in its own sequence, (tokens,)."""
        ...

    def attend(self, layer: int, queries: Tensor, keys_values: Tensor) -> Tensor:
        """Store this layer's new keys and values and mix the values that each query may see.

        ``queries`` is (tokens, n_head, head_dim), ``keys_values`` (tokens, n_kv_head, 2 * head_dim) with the key
        in the first half; the answer is (tokens, n_head * head_dim).
        """
        ...


def round_up(length: int, tile: int) -> int:
    """The smallest multiple of ``tile`` that is at least ``length``."""
    return -(-length // tile) * tile


def causal_bias(positions: Tensor, length: int) -> Tensor:
    """0 where a key may be seen and -inf where not, (tokens, 1, length), for queries at ``positions``."""
    keys = torch.arange(length, device=positions.device)
    hidden = keys[None, None, :] > positions[:, None, None]
    return torch.zeros(hidden.shape, device=positions.device).masked_fill_(hidden, float("-inf"))


def mix(queries: Tensor, keys_values: Tensor, bias: Tensor) -> Tensor:
    """Softmax attention of each item: (items, rows, head_dim) from the same, (items, length, 2 * head_dim) and a bias.

    Source: Vaswani et al. 2017, "Attention Is All You Need", section 3.2.1.
    """
    head_dim = queries.shape[-1]
    keys, values = keys_values[..., :head_dim], keys_values[..., head_dim:]
    scores = torch.baddbmm(bias, queries, keys.transpose(1, 2), alpha=head_dim**-0.5)  # (items, rows, length)
    return torch.bmm(torch.softmax(scores, dim=-1), values)


def group_queries(queries: Tensor, n_kv_head: int) -> Tensor:
    """Query heads gathered by the key head that they share, padded to the tile: (tokens, n_kv_head, rows, head_dim)."""
    group = queries.shape[1] // n_kv_head
    grouped = queries.unflatten(1, (n_kv_head, group))
    missing = -group % QUERY_TILE
    return F.pad(grouped, (0, 0, 0, missing)) if missing else grouped


def ungroup(mixed: Tensor, n_head: int) -> Tensor:
    """The inverse of :func:`group_queries` on the answers: (tokens, n_head * head_dim)."""
    tokens, n_kv_head, _, head_dim = mixed.shape
    return mixed[:, :, : n_head // n_kv_head].reshape(tokens, n_head * head_dim)


def attend_one_sequence(queries: Tensor, keys_values: Tensor, bias: Tensor) -> Tensor:
    """Many query tokens of one sequence: (tokens, n_head * head_dim).

    ``queries`` is (tokens, n_head, head_dim), ``keys_values`` (n_kv_head, length, 2 * head_dim), ``bias``
    (tokens, 1, length).
    """
    tokens, n_head, _ = queries.shape
    n_kv_head = keys_values.shape[0]
    if n_kv_head == 1 and n_head % QUERY_TILE == 0:  # nothing to gather
        return mix(queries, keys_values.expand(tokens, -1, -1), bias).flatten(1)
    grouped = group_queries(queries, n_kv_head)
    heads = [
        mix(grouped[:, head], keys_values[head].expand(tokens, -1, -1), bias)  # no copy: every token sees the same keys
        for head in range(n_kv_head)
    ]
    return ungroup(torch.stack(heads, dim=1), n_head)


def attend_many_sequences(queries: Tensor, keys_values: Tensor, bias: Tensor) -> Tensor:
    """One query token of each of many sequences: (sequences, n_head * head_dim).

    ``queries`` is (sequences, n_head, head_dim), ``keys_values`` (sequences, n_kv_head, length, 2 * head_dim),
    ``bias`` (sequences, 1, length).
    """
    sequences, n_head, _ = queries.shape
    n_kv_head, length = keys_values.shape[1], keys_values.shape[2]
    if n_kv_head == 1 and n_head % QUERY_TILE == 0:  # nothing to gather
        return mix(queries, keys_values[:, 0], bias).flatten(1)
    grouped = group_queries(queries, n_kv_head).flatten(0, 1)
    if n_kv_head > 1:
        bias = bias.expand(-1, n_kv_head, -1).reshape(-1, 1, length)
    mixed = mix(grouped, keys_values.flatten(0, 1), bias)
    return ungroup(mixed.unflatten(0, (sequences, n_kv_head)), n_head)


class TrainingAttention:
    """Attention over a batch of equally long windows, differentiable, nothing kept: for training only."""

    def __init__(self, batch: int, length: int, device: torch.device) -> None:
        self._batch, self._length = batch, length
        self.positions = torch.arange(length, device=device).repeat(batch)

    def attend(self, layer: int, queries: Tensor, keys_values: Tensor) -> Tensor:
        head_dim = queries.shape[-1]
        keys, values = keys_values[..., :head_dim], keys_values[..., head_dim:]
        q, k, v = (self._by_head(x) for x in (queries, keys, values))
        mixed: Tensor = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return mixed.transpose(1, 2).flatten(0, 1).flatten(1)  # from (batch, n_head, length, head_dim)

    def _by_head(self, x: Tensor) -> Tensor:
        by_head: Tensor = x.unflatten(0, (self._batch, self._length)).transpose(1, 2)
        return by_head
