"""Attention gives a query the same bits in every product that it may stand in."""

from __future__ import annotations

import pytest
import torch
from support.small_models import threads
from torch import Tensor

from minilab_gen.models.attention import (
    KEY_TILE,
    attend_many_sequences,
    attend_one_sequence,
    causal_bias,
    causal_blocks,
    round_up,
)

SHAPES = [(1, 8, 32), (2, 3, 12), (3, 3, 64), (4, 1, 64), (2, 7, 128), (1, 1, 4)]
"""Key heads, query heads for each, and the size of a head."""
LENGTHS = [17, 130, 191, 193, 208, 224, 257, 385, 700]
"""Where MKL takes other paths, and where a prompt is read in several blocks."""


def random_heads(n_kv_head: int, group: int, head_dim: int, length: int) -> tuple[Tensor, Tensor]:
    """Queries (length, heads, head_dim) and keys with values (n_kv_head, tiled length, 2 * head_dim)."""
    generator = torch.Generator().manual_seed(length)
    queries = torch.randn(length, n_kv_head * group, head_dim, generator=generator)
    return queries, torch.randn(n_kv_head, round_up(length, KEY_TILE), 2 * head_dim, generator=generator)


def attend_to_all_so_far(queries: Tensor, keys_values: Tensor, start: int) -> Tensor:
    """Queries at positions from ``start`` on, as one chunk of a prompt."""
    group = queries.shape[1] // keys_values.shape[0]
    return attend_one_sequence(queries, keys_values, causal_blocks(start, len(queries), group, queries.device))


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_query_in_a_whole_prompt_equals_the_same_query_alone(shape: tuple[int, int, int], length: int) -> None:
    queries, keys_values = random_heads(*shape, length)

    whole = attend_to_all_so_far(queries, keys_values, 0)

    for position in {0, 1, 7, length // 2, length - 2, length - 1}:
        bias = causal_bias(torch.tensor([position]), round_up(position + 1, KEY_TILE))
        seen = keys_values[None, :, : bias.shape[-1]]
        assert torch.equal(attend_many_sequences(queries[position : position + 1], seen, bias)[0], whole[position])


@pytest.mark.parametrize("tokens", [1, 5, 16, 64, 300])
def test_a_prompt_in_chunks_equals_the_prompt_in_one(tokens: int) -> None:
    queries, keys_values = random_heads(3, 3, 64, 700)

    chunks = [
        attend_to_all_so_far(queries[start : start + tokens], keys_values, start) for start in range(0, 700, tokens)
    ]

    assert torch.equal(torch.cat(chunks), attend_to_all_so_far(queries, keys_values, 0))


@pytest.mark.parametrize("shared", [208, 256, 400, 2048])
def test_a_length_that_others_need_changes_no_bit(shared: int) -> None:
    queries, keys_values = random_heads(3, 3, 64, 200)
    bias = causal_bias(torch.tensor([199]), shared)
    longer = torch.zeros(5, 3, shared, 128)
    longer[:, :, :208] = keys_values

    together = attend_many_sequences(queries[-1:].repeat(5, 1, 1), longer, bias.expand(5, -1, -1))

    alone = attend_many_sequences(queries[-1:], keys_values[None], bias[..., :208])
    assert torch.equal(together, alone.repeat(5, 1))


def test_one_thread_and_two_give_the_same_bits() -> None:
    queries, keys_values = random_heads(3, 3, 64, 700)
    answers = []
    for count in (1, 2):
        with threads(count):
            answers.append(attend_to_all_so_far(queries, keys_values, 0))

    assert torch.equal(*answers)


def test_attention_is_that_of_the_paper() -> None:
    queries, keys_values = random_heads(2, 3, 12, 50)
    keys, values = keys_values[:, :50].double().split(12, dim=-1)
    by_head = queries.double().transpose(0, 1)
    scores = by_head @ keys.repeat_interleave(3, 0).transpose(1, 2) / 12**0.5
    scores = scores.masked_fill(torch.ones(50, 50).triu(1).bool(), float("-inf"))
    expected = scores.softmax(-1) @ values.repeat_interleave(3, 0)

    answer = attend_to_all_so_far(queries, keys_values, 0)

    assert torch.allclose(answer.double(), expected.transpose(0, 1).flatten(1), atol=1e-5)
