"""The model: its shape, rows that do not know their neighbours, gradients, and checkpoints that others read as well."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from small_models import EIGHT_TO_ONE, SHAPES, random_model, threads
from torch import Tensor

from minilab_gen.checkpoint import fingerprint, read_config, read_model, read_stop_ids, write_checkpoint
from minilab_gen.errors import CheckpointError
from minilab_gen.linear import Linear
from minilab_gen.model import KVCache, MiniLabModel, load
from minilab_gen.tokenizer import Tokenizer, train_tokenizer

MOST_ROWS = 70
CLOSE = 1e-4
"""How far another implementation's logits may be from ours."""


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Two threads on products this small only wait for each other."""
    with threads(1):
        yield


@cache
def tokenizer() -> Tokenizer:
    return train_tokenizer(["En l'année 1872"], vocab_size=260)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A good checkpoint folder, for tests that damage it."""
    write_checkpoint(tmp_path, random_model(), tokenizer())
    return tmp_path


def change_config(folder: Path, **changes: Any) -> None:
    """Set keys of ``config.json``; None removes one."""
    file = folder / "config.json"
    changed = json.loads(file.read_text()) | changes
    file.write_text(json.dumps({key: value for key, value in changed.items() if value is not None}))


def change_tensors(folder: Path, **changes: Tensor | None) -> None:
    """Set tensors of layer 0, named by their projection; None removes one."""
    file = folder / "model.safetensors"
    tensors = load_file(file)
    for name, tensor in changes.items():
        full = f"model.layers.0.self_attn.{name}.weight"
        if tensor is None:
            del tensors[full]
        else:
            tensors[full] = tensor
    save_file(tensors, file)


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


def frozen_linear(in_features: int, out_features: int, *, packed: bool) -> Linear:
    linear = Linear(in_features, out_features, bias=True)
    generator = torch.Generator().manual_seed(0)
    for parameter in linear.parameters():
        torch.nn.init.normal_(parameter, generator=generator)
    linear.freeze(packed=packed)
    return linear


def rows_of(*features: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(MOST_ROWS, width, generator=generator) for width in features]


@pytest.mark.parametrize("packed", [True, False], ids=["packed", "padded"])
@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize(
    ("sizes", "number"),
    [((64, 96), 1), ((72, 61), 1), ((40, 72), 1), ((256, 320), 1), ((256, 320), 2)],
    ids=["even", "odd", "small", "base", "base-2-threads"],
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
    linear = frozen_linear(64, 96, packed=packed)
    x, other = rows_of(64, 96)

    computed = OPERATIONS[operation](linear, x, other)

    assert torch.allclose(computed, EXPECTED[operation](linear, x, other), atol=1e-3)


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


# Checkpoints, there and back


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_checkpoint_gives_back_the_same_weights_and_logits(tmp_path: Path, shape: str, tied: bool) -> None:
    model = random_model(replace(SHAPES[shape], tied_embeddings=tied))
    write_checkpoint(tmp_path, model, tokenizer())

    read = read_model(tmp_path)

    assert read.config == model.config
    assert read.state_dict().keys() == model.state_dict().keys()
    assert all(torch.equal(weight, model.state_dict()[name]) for name, weight in read.state_dict().items())
    assert (read.head.weight is read.embedding.weight) == tied
    assert torch.equal(load(tmp_path)(ids_of(1, 9))[0], model.freeze()(ids_of(1, 9))[0])


def test_tied_embeddings_are_stored_once(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, random_model(replace(EIGHT_TO_ONE, tied_embeddings=True)), tokenizer())

    assert "lm_head.weight" not in load_file(tmp_path / "model.safetensors")


def test_a_fingerprint_is_that_of_the_same_files_and_changes_with_a_weight(tmp_path: Path) -> None:
    prints = []
    for folder, seed in [("one", 0), ("same", 0), ("other", 1)]:
        write_checkpoint(tmp_path / folder, random_model(seed=seed), tokenizer())
        prints.append(fingerprint(tmp_path / folder, load(tmp_path / folder)))

    assert prints[0] == prints[1]
    assert prints[0] != prints[2]


# transformers asks for newer Python features in ways that warn, and its warnings are not about our code.
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("shape", SHAPES)
def test_transformers_reads_our_checkpoint_and_gives_our_logits(tmp_path: Path, shape: str, tied: bool) -> None:
    transformers = pytest.importorskip("transformers")
    model = random_model(replace(SHAPES[shape], tied_embeddings=tied)).freeze()
    write_checkpoint(tmp_path, model, tokenizer())

    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, local_files_only=True)

    with torch.no_grad():
        assert torch.allclose(theirs(ids_of(2, 20)).logits, model(ids_of(2, 20))[0], atol=CLOSE, rtol=CLOSE)


@pytest.mark.filterwarnings("ignore")
def test_a_checkpoint_that_transformers_wrote_is_read(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    written = transformers.LlamaConfig(
        vocab_size=60,
        max_position_embeddings=32,
        num_hidden_layers=2,
        num_attention_heads=6,
        num_key_value_heads=2,
        hidden_size=72,
        intermediate_size=56,
        rope_theta=5000.0,
        rms_norm_eps=1e-6,
    )
    torch.manual_seed(0)
    theirs = transformers.LlamaForCausalLM(written)
    theirs.save_pretrained(tmp_path)

    ours = load(tmp_path)

    with torch.no_grad():
        assert torch.allclose(theirs(ids_of(2, 20)).logits, ours(ids_of(2, 20))[0], atol=CLOSE, rtol=CLOSE)


def test_weights_in_half_precision_are_read_as_the_numbers_they_are(checkpoint: Path) -> None:
    file = checkpoint / "model.safetensors"
    halves = {name: tensor.bfloat16() for name, tensor in load_file(file).items()}
    save_file(halves, file)

    assert torch.equal(load(checkpoint).norm.weight, halves["model.norm.weight"].float())


# The ids that end a text


@pytest.mark.parametrize(
    ("config", "generation", "ids"),
    [(2, None, (2,)), (None, None, ()), ([2, 7], None, (2, 7)), (2, {"eos_token_id": [5, 6]}, (5, 6)), (0, {}, (0,))],
)
def test_stop_ids_come_from_the_generation_config_or_else_the_config(
    checkpoint: Path, config: Any, generation: Any, ids: tuple[int, ...]
) -> None:
    change_config(checkpoint, eos_token_id=config)
    if generation is not None:
        (checkpoint / "generation_config.json").write_text(json.dumps(generation))

    assert read_stop_ids(checkpoint) == ids


# Checkpoints that cannot be served


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_missing_file_is_named(checkpoint: Path, name: str) -> None:
    (checkpoint / name).unlink()

    with pytest.raises(CheckpointError, match=f"{name} cannot be read"):
        load(checkpoint)


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="nowhere"):
        load(tmp_path / "nowhere")


@pytest.mark.parametrize("name", ["q_proj", "v_proj", "o_proj"])
def test_a_missing_tensor_is_named(checkpoint: Path, name: str) -> None:
    change_tensors(checkpoint, **{name: None})

    with pytest.raises(CheckpointError, match=f"lacks the tensor model.layers.0.self_attn.{name}.weight"):
        load(checkpoint)


@pytest.mark.parametrize(("name", "shape"), [("o_proj", (64, 63)), ("k_proj", (16, 64)), ("q_proj", (64, 32))])
def test_a_tensor_of_another_shape_is_named(checkpoint: Path, name: str, shape: tuple[int, int]) -> None:
    change_tensors(checkpoint, **{name: torch.zeros(shape)})

    with pytest.raises(CheckpointError, match=rf"{name}.*must be \(\d+, 64\)"):
        load(checkpoint)


@pytest.mark.parametrize("kept", [0, 4, 100, 5000])
def test_weights_cut_short_are_a_checkpoint_error(checkpoint: Path, kept: int) -> None:
    file = checkpoint / "model.safetensors"
    file.write_bytes(file.read_bytes()[:kept])

    with pytest.raises(CheckpointError, match="cannot be read"):
        load(checkpoint)


@pytest.mark.parametrize(
    ("text", "message"),
    [("", "is not JSON"), ("{", "is not JSON"), ("[]", "must hold a JSON object, got list"), ("é\xff", "is not JSON")],
)
def test_a_config_that_is_no_object_is_a_checkpoint_error(checkpoint: Path, text: str, message: str) -> None:
    (checkpoint / "config.json").write_bytes(text.encode("latin-1"))

    with pytest.raises(CheckpointError, match=message):
        read_config(checkpoint)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, "must be LlamaForCausalLM, got GPT2LMHeadModel"),
        ({"architectures": None}, r"must be LlamaForCausalLM, got \(none named\)"),
        ({"rope_scaling": {"rope_type": "llama3"}}, "rope_scaling must be absent"),
        ({"hidden_size": None}, "lacks the key hidden_size"),
        ({"num_hidden_layers": 0}, "n_layer must be an integer of at least 1, got 0"),
        ({"num_attention_heads": "8"}, "n_head must be an integer of at least 1, got '8'"),
        ({"num_key_value_heads": 3}, "n_head must be a multiple of n_kv_head, got 8 and 3"),
        ({"rope_theta": "large"}, "rope_theta must be a number above 0, got 'large'"),
        ({"rms_norm_eps": 0}, "norm_eps must be a number above 0, got 0"),
        ({"rope_theta": None}, "lacks the key rope_theta"),
        ({"rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5}}, "rope_scaling must be absent"),
        ({"hidden_act": "gelu"}, "hidden_act must be 'silu', got 'gelu'"),
        ({"attention_bias": True}, "attention_bias must be False, got True"),
        ({"mlp_bias": True}, "mlp_bias must be False, got True"),
        ({"head_dim": 16}, "head_dim must be 8, got 16"),
    ],
)
def test_a_config_that_is_not_served_is_refused_with_the_rule(
    checkpoint: Path, changes: dict[str, Any], message: str
) -> None:
    change_config(checkpoint, **changes)

    with pytest.raises(CheckpointError, match=message):
        load(checkpoint)
