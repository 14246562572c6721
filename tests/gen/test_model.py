"""The models: their shape, that the two of them agree, gradients."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from support.small_models import EIGHT_TO_ONE, SHAPES, kernel_model, random_model
from torch import Tensor

from minilab_gen.generate import Model
from minilab_gen.models.decoder import MiniLabModel
from minilab_gen.models.kv_cache import KVCache

CLOSE = 1e-4
"""How far the logits of the two may be apart."""


def ids_of(*shape: int) -> Tensor:
    return torch.randint(60, shape, generator=torch.Generator().manual_seed(1))


# The shape


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vocab_size": 0}, "vocab_size must be an integer of at least 1, got 0"),
        ({"context_length": -1}, "context_length must be an integer of at least 1, got -1"),
        ({"n_layer": 2.0}, "n_layer must be an integer of at least 1, got 2.0"),
        ({"d_hidden": True}, "d_hidden must be an integer of at least 1, got True"),
        ({"n_kv_head": "1"}, "n_kv_head must be an integer of at least 1, got '1'"),
        ({"n_head": 7}, "d_model must be n_head times an even number, got 64 and 7"),
        ({"n_head": 64}, "d_model must be n_head times an even number, got 64 and 64"),
        ({"n_kv_head": 3}, "n_head must be a multiple of n_kv_head, got 8 and 3"),
    ],
)
def test_a_shape_that_cannot_be_is_refused_with_the_rule_and_what_came(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(EIGHT_TO_ONE, **changes)


@pytest.fixture(params=["kernels", "torch"])
def model(request: pytest.FixtureRequest) -> Model:
    """Either of the models, which are called alike and have the same weights."""
    return kernel_model() if request.param == "kernels" else random_model().eval()


@torch.no_grad()
def test_logits_have_one_row_for_each_id(model: Model) -> None:
    logits, loss = model(ids_of(3, 5))

    assert logits.shape == (3, 5, 64)
    assert loss is None


def test_the_rows_of_a_batch_are_those_of_each_sequence_alone() -> None:
    model, ids = kernel_model(), ids_of(3, 20)

    together, _ = model(ids)

    assert all(torch.equal(together[row], model(ids[row : row + 1])[0][0]) for row in range(3))


@pytest.mark.parametrize("shape", [(3,), (1, 0), (1, 2, 3)])
def test_ids_of_another_shape_are_refused(model: Model, shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="ids must have the shape"):
        model(torch.zeros(shape, dtype=torch.long))


def test_a_sequence_beyond_the_context_is_refused_also_where_a_cache_holds_its_start(model: Model) -> None:
    memory = KVCache(2)
    model(ids_of(1, 30), cache=memory)

    with pytest.raises(ValueError, match="must fit the context of 32 tokens, got 33"):
        model(ids_of(1, 3), cache=memory)

    assert memory.length == 30


def test_a_batch_over_one_cache_is_refused(model: Model) -> None:
    with pytest.raises(ValueError, match="a cache holds one sequence, got a batch of 2"):
        model(ids_of(2, 3), cache=KVCache(2))


def test_a_cache_without_layers_is_refused() -> None:
    with pytest.raises(ValueError, match="n_layer must be at least 1, got 0"):
        KVCache(0)


# Two models of one kind


@pytest.mark.parametrize("shape", SHAPES)
def test_the_torch_decoder_bears_witness_to_the_kernels(shape: str) -> None:
    ids = ids_of(2, 20)
    with torch.no_grad():
        theirs, their_loss = random_model(SHAPES[shape]).eval()(ids[:, :-1], ids[:, 1:])

    ours, our_loss = kernel_model(SHAPES[shape])(ids[:, :-1], ids[:, 1:])

    assert torch.allclose(ours, theirs, atol=CLOSE)
    assert our_loss is not None
    assert torch.allclose(our_loss, their_loss, atol=CLOSE)


@pytest.mark.parametrize("size", [1, 7, 16])
def test_the_torch_decoder_reads_a_prompt_in_chunks(size: int) -> None:
    model, ids = random_model().eval(), ids_of(1, 30)
    cache = KVCache(2)

    with torch.no_grad():
        chunks = [model(chunk, cache=cache)[0] for chunk in ids.split(size, dim=1)]
        whole, _ = model(ids)

    assert torch.allclose(torch.cat(chunks, dim=1), whole, atol=CLOSE)
    assert (cache.length, cache.projected) == (30, 60)


# Training


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_a_gradient_reaches_every_weight_and_lowers_the_loss(tied: bool) -> None:
    torch.manual_seed(0)
    model, ids = MiniLabModel(replace(EIGHT_TO_ONE, tied_embeddings=tied)), ids_of(2, 20)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    _, before = model(ids[:, :-1], ids[:, 1:])

    before.backward()
    optimizer.step()

    assert all(weight.grad is not None and bool(weight.grad.any()) for weight in model.parameters())
    assert model(ids[:, :-1], ids[:, 1:])[1].item() < before.item()


def test_dropout_acts_in_training_only() -> None:
    torch.manual_seed(0)
    model, ids = MiniLabModel(EIGHT_TO_ONE, dropout=0.5), ids_of(1, 8)

    trained = [model(ids, ids)[0] for _ in range(2)]
    model.eval()
    served = [model(ids, ids)[0] for _ in range(2)]

    assert not torch.equal(*trained)
    assert torch.equal(*served)
