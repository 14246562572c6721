"""Attention written so that a query gets the same bits whatever else is computed beside it.

Queries, keys and values go in, mixed values come out.

A product gives a row the same bits whatever other rows it holds, if three rules are kept, which were found by trying
and which a worker tries again as it starts. Query rows come in multiples of :data:`QUERY_TILE`: in a prefill these are
many tokens' heads, in a decode step one token's. Key lengths are multiples of :data:`KEY_TILE` with the rest masked:
a masked key adds an exact zero to every sum. And no sum is longer than :data:`VALUE_BLOCK`: a library may split a
longer one wherever it likes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

QUERY_TILE = 8
"""Rows of queries in one product; other counts are padded up to a multiple of it."""

KEY_TILE = 16
"""Positions. Key lengths are multiples of it, the width of an AVX-512 register in float32."""

VALUE_BLOCK = 128
"""Positions. MKL has been seen to split sums of more than 192 terms, at points that depend on their number."""

_QUERY_BLOCK = 256
"""Tokens of a prompt whose scores are held at a time, lest memory grow with the square of a prompt."""


class AttentionMemory(Protocol):
    """Where the keys and values of the tokens in one forward pass are kept, and which token may see which."""

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
    weights = torch.softmax(scores, dim=-1)
    mixed = torch.bmm(weights[..., :VALUE_BLOCK], values[:, :VALUE_BLOCK])
    for start in range(VALUE_BLOCK, values.shape[1], VALUE_BLOCK):
        block = slice(start, start + VALUE_BLOCK)
        mixed.baddbmm_(weights[..., block], values[:, block])
    return mixed


@dataclass(frozen=True, slots=True)
class QueryBlock:
    """A block of one sequence's query tokens, and what they may see."""

    first: int
    last: int
    """Their positions among the tokens that are read, the last one excluded."""
    length: int
    """Key positions, a multiple of the tile."""
    bias: Tensor
    """(rows, length) for the rows that these tokens make for each key head."""


def causal_blocks(start: int, tokens: int, group: int, device: torch.device) -> list[QueryBlock]:
    """The queries at positions ``start``, ``start + 1``, ...; ``group`` query heads share a key head."""
    blocks = []
    for first in range(0, tokens, _QUERY_BLOCK):
        last = min(first + _QUERY_BLOCK, tokens)
        length = round_up(start + last, KEY_TILE)
        positions = torch.arange(start + first, start + last, device=device).repeat_interleave(group)
        positions = F.pad(positions, (0, -len(positions) % QUERY_TILE))  # a row that is not used sees one key
        blocks.append(QueryBlock(first, last, length, causal_bias(positions, length)[:, 0]))
    return blocks


def attend_one_sequence(queries: Tensor, keys_values: Tensor, blocks: Sequence[QueryBlock]) -> Tensor:
    """Many query tokens of one sequence: (tokens, n_head * head_dim).

    ``queries`` is (tokens, n_head, head_dim), ``keys_values`` (n_kv_head, length, 2 * head_dim).
    """
    mixed = [_attend_block(queries[block.first : block.last], keys_values, block) for block in blocks]
    return mixed[0] if len(mixed) == 1 else torch.cat(mixed)


def _attend_block(queries: Tensor, keys_values: Tensor, block: QueryBlock) -> Tensor:
    """All tokens' heads that share a key head are the rows of one product."""
    tokens, n_head, _ = queries.shape
    n_kv_head = keys_values.shape[0]
    by_key_head = queries.unflatten(1, (n_kv_head, -1)).transpose(0, 1)  # (n_kv_head, tokens, group, head_dim)
    rows = _padded(by_key_head.flatten(1, 2))
    mixed = mix(rows, keys_values[:, : block.length], block.bias.expand(n_kv_head, -1, -1))
    by_token: Tensor = mixed[:, : tokens * n_head // n_kv_head].unflatten(1, (tokens, -1)).transpose(0, 1)
    return by_token.flatten(1)


def attend_many_sequences(queries: Tensor, keys_values: Tensor, bias: Tensor) -> Tensor:
    """One query token of each of many sequences: (sequences, n_head * head_dim).

    ``queries`` is (sequences, n_head, head_dim), ``keys_values`` (sequences, n_kv_head, length, 2 * head_dim),
    ``bias`` (sequences, 1, length).
    """
    sequences, n_head, head_dim = queries.shape
    n_kv_head, length = keys_values.shape[1], keys_values.shape[2]
    group = n_head // n_kv_head
    rows = _padded(queries.reshape(sequences * n_kv_head, group, head_dim))
    if n_kv_head > 1:
        bias = bias.expand(-1, n_kv_head, -1).reshape(-1, 1, length)
    mixed = mix(rows, keys_values.flatten(0, 1), bias)
    return mixed[:, :group].reshape(sequences, n_head * head_dim)


def _padded(rows: Tensor) -> Tensor:
    """Query rows (items, rows, head_dim) with as many zero rows behind them as the tile asks for."""
    missing = -rows.shape[1] % QUERY_TILE
    return F.pad(rows, (0, 0, 0, missing)) if missing else rows


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
