"""The model: its shape, rows that do not know their neighbours, gradients."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.small_models import EIGHT_TO_ONE, random_model, threads, tokenizer_of
from torch import Tensor

from minilab_gen.models.checkpoint import write_checkpoint
from minilab_gen.models.decoder import MiniLabModel
from minilab_gen.models.kv_cache import KVCache
from minilab_gen.models.linear import Linear, can_pack

MOST_ROWS = 70
CLOSE = 1e-4
"""How far another implementation's logits may be from ours."""


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Two threads on products this small only wait for each other."""
    with threads(1):
        yield


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
        ({"n_head": 7}, "d_model must be n_head times a multiple of 4, got 64 and 7"),
        ({"n_head": 64}, "d_model must be n_head times a multiple of 4, got 64 and 64"),
        ({"n_kv_head": 3}, "n_head must be a multiple of n_kv_head, got 8 and 3"),
    ],
)
def test_a_shape_that_cannot_be_is_refused_with_the_rule_and_what_came(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(EIGHT_TO_ONE, **changes)


def test_logits_have_one_row_for_each_id() -> None:
    logits, loss = random_model().freeze()(ids_of(3, 5))

    assert logits.shape == (3, 5, 64)
    assert loss is None


def test_the_rows_of_a_batch_are_those_of_each_sequence_alone() -> None:
    model, ids = random_model().freeze(), ids_of(3, 20)

    together, _ = model(ids)

    assert all(torch.equal(together[row], model(ids[row : row + 1])[0][0]) for row in range(3))


@pytest.mark.parametrize("shape", [(3,), (1, 0), (1, 2, 3)])
def test_ids_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="ids must have the shape"):
        random_model()(torch.zeros(shape, dtype=torch.long))


def test_a_sequence_beyond_the_context_is_refused_also_where_a_cache_holds_its_start() -> None:
    model, memory = random_model().freeze(), KVCache(2)
    model(ids_of(1, 30), cache=memory)

    with pytest.raises(ValueError, match="must fit the context of 32 tokens, got 33"):
        model(ids_of(1, 3), cache=memory)

    assert memory.length == 30


def test_a_batch_over_one_cache_is_refused() -> None:
    with pytest.raises(ValueError, match="a cache holds one sequence, got a batch of 2"):
        random_model().freeze()(ids_of(2, 3), cache=KVCache(2))


def test_a_cache_without_layers_is_refused() -> None:
    with pytest.raises(ValueError, match="n_layer must be at least 1, got 0"):
        KVCache(0)


# Rows do not know their neighbours

Operation = Callable[[Linear, Tensor, Tensor], Tensor]
OPERATIONS: dict[str, Operation] = {
    "plain": lambda linear, x, other: linear(x),
    "silu": lambda linear, x, other: linear.silu(x),
    "times": lambda linear, x, other: linear.times(x, other),
    "plus": lambda linear, x, other: linear.plus(x, other),
}
EXPECTED: dict[str, Operation] = {
    "plain": lambda linear, x, other: F.linear(x, linear.weight, linear.bias),
    "silu": lambda linear, x, other: F.silu(F.linear(x, linear.weight, linear.bias)),
    "times": lambda linear, x, other: F.linear(x, linear.weight, linear.bias) * other,
    "plus": lambda linear, x, other: F.linear(x, linear.weight, linear.bias) + other,
}


def random_linear(in_features: int, out_features: int) -> Linear:
    linear = Linear(in_features, out_features, bias=True)
    generator = torch.Generator().manual_seed(0)
    for parameter in linear.parameters():
        torch.nn.init.normal_(parameter, generator=generator)
    return linear


def frozen_linear(in_features: int, out_features: int, *, packed: bool) -> Linear:
    linear = random_linear(in_features, out_features)
    linear.freeze(packed=packed)
    return linear


def rows_of(*features: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(MOST_ROWS, width, generator=generator) for width in features]


@pytest.mark.parametrize("packed", [True, False], ids=["packed", "padded"])
@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize(
    ("sizes", "number"),
    [((64, 96), 1), ((72, 61), 1), ((40, 72), 1), ((256, 320), 1), ((256, 320), 2), ((1536, 576), 2), ((4864, 64), 1)],
    ids=["even", "odd", "small", "base", "base-2-threads", "smollm2", "long"],
)
def test_a_row_has_the_same_bits_however_many_stand_beside_it(
    sizes: tuple[int, int], number: int, operation: str, packed: bool
) -> None:
    linear, compute = frozen_linear(*sizes, packed=packed), OPERATIONS[operation]
    x, other = rows_of(*sizes)
    together = compute(linear, x, other)

    with threads(number):
        for rows in range(1, MOST_ROWS + 1):
            part = slice(rows) if rows % 2 else slice(MOST_ROWS - rows, None)
            assert torch.equal(compute(linear, x[part], other[part]), together[part]), rows


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_padded_silu_has_the_same_bits_where_threads_share_the_work(number: int) -> None:
    linear = frozen_linear(16, 512, packed=False)
    x = torch.randn(320, 16, generator=torch.Generator().manual_seed(1))
    together = linear.silu(x)

    with threads(number):
        assert torch.equal(linear.silu(x), together)
        assert torch.equal(linear.silu(x[:77]), together[:77])


@pytest.mark.parametrize("packed", [True, False], ids=["packed", "padded"])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_linear_computes_what_its_name_says(operation: str, packed: bool) -> None:
    x, other = rows_of(64, 96)
    expected = EXPECTED[operation](random_linear(64, 96), x, other)

    computed = OPERATIONS[operation](frozen_linear(64, 96, packed=packed), x, other)

    assert torch.allclose(computed, expected, atol=1e-3)


def test_a_packed_layer_lets_its_weight_go_and_cannot_be_unpacked() -> None:
    linear = frozen_linear(64, 96, packed=True)

    assert linear.weight.numel() == 0
    linear.freeze(packed=True)
    with pytest.raises(ValueError, match="read the model again"):
        linear.freeze(packed=False)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_model_is_packed_where_this_processor_can_and_padded_elsewhere(dtype: torch.dtype) -> None:
    model, ids = random_model().to(dtype).freeze(), ids_of(1, 20)

    logits, _ = model(ids)

    assert (model.head.weight.numel() == 0) == can_pack(model.device, dtype)
    assert torch.equal(logits[:, :7], model(ids[:, :7])[0])


def test_a_dtype_without_a_packed_product_cannot_be_packed_and_says_so() -> None:
    linear = random_linear(64, 96).double()  # for which oneDNN has no product on any processor

    assert not can_pack(torch.device("cpu"), torch.float64)
    with pytest.raises(ValueError, match=r"torch.float64 weights cannot be packed on this processor"):
        linear.freeze(packed=True)
    linear.freeze(packed=False)
    assert linear(torch.ones(3, 64, dtype=torch.float64)).shape == (3, 96)


def test_a_processor_whose_operator_refuses_a_dtype_has_it_padded(tmp_path: Path) -> None:
    """What AVX2 says to bfloat16 is said here to float32 as well, so that any processor can tell."""
    write_checkpoint(tmp_path, random_model(), tokenizer_of(EIGHT_TO_ONE.vocab_size))
    program = """
import sys, torch
def refuse(*_):
    raise RuntimeError("the path needs the cpu support avx512bw")
library = torch.library.Library("mkldnn", "IMPL")
library.impl("_reorder_linear_weight", refuse, "CPU", allow_override=True)
from minilab_gen.models.checkpoint import load
model = load(sys.argv[1])
print(model.head.weight.numel(), bool(model(torch.tensor([[1, 2, 3]]))[0].isfinite().all()))
"""
    run = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True)

    assert run.stdout.split() == ["4096", "True"]


@pytest.mark.parametrize("sizes", [(64, 96), (72, 61), (576, 192), (4864, 64)], ids=str)
def test_a_padded_row_of_bfloat16_has_the_same_bits_wherever_it_stands(sizes: tuple[int, int]) -> None:
    linear, (x,) = random_linear(*sizes).bfloat16(), rows_of(sizes[0])
    linear.freeze(packed=False)
    x = x.bfloat16()
    together = linear(x)

    for rows in range(1, MOST_ROWS + 1):
        part = slice(rows) if rows % 2 else slice(MOST_ROWS - rows, None)
        assert torch.equal(linear(x[part]), together[part]), rows


@pytest.mark.parametrize("packed", [True, False], ids=["packed", "padded"])
def test_a_row_that_is_not_a_number_spoils_no_other(packed: bool) -> None:
    linear = frozen_linear(64, 96, packed=packed)
    (x,) = rows_of(64)
    healthy = linear(x)
    x[3] = torch.nan

    spoiled = linear(x)

    assert bool(spoiled[3].isnan().all())
    assert torch.equal(spoiled[4:], healthy[4:])


# Training


def test_the_training_path_gives_the_logits_of_the_exact_one() -> None:
    model, ids = random_model(), ids_of(2, 20)

    logits, loss = model(ids[:, :-1], ids[:, 1:])

    exact, _ = random_model().freeze()(ids[:, :-1])
    assert torch.allclose(logits, exact, atol=CLOSE)
    assert torch.allclose(loss, F.cross_entropy(exact.flatten(0, 1), ids[:, 1:].flatten()))


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
