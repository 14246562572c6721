"""Checkpoint folders: what is written is what is read, and what is damaged is named."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.small_models import EIGHT_TO_ONE, SHAPES, random_model, tokenizer_of
from torch import Tensor

from minilab_gen.errors import CheckpointError
from minilab_gen.generate import generate
from minilab_gen.kernels.decoder import WEIGHT_TYPES
from minilab_gen.kernels.library import numerics
from minilab_gen.models.checkpoint import fingerprint, load, read_model, read_stop_ids, write_checkpoint
from minilab_gen.models.checkpoint_folder import read_config
from minilab_gen.models.config import ModelConfig, RopeScaling
from minilab_gen.models.kernel_model import KernelModel
from minilab_gen.models.weights import INDEX_FILE

TRAITS: dict[str, dict[str, Any]] = {
    "tied": {"tied_embeddings": True},
    "biased": {"qkv_bias": True},
    "normed": {"head_norm": True},
    "own-heads": {"own_head_dim": 24},
    "scaled": {"rope_scaling": RopeScaling(8.0, 1.0, 4.0, 16)},
}
"""What families have of their own, one at a time."""


def write_random(folder: Path, config: ModelConfig = EIGHT_TO_ONE, *, seed: int = 0) -> None:
    write_checkpoint(folder, random_model(config, seed=seed), tokenizer_of(config.vocab_size))


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A good checkpoint folder, for tests that damage it."""
    write_random(tmp_path)
    return tmp_path


def change_json(file: Path, **changes: Any) -> None:
    """Set keys of a JSON file; None removes one."""
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


def split(folder: Path, files: int) -> list[str]:
    """Store the weights in so many files with an index, as large models are; their names."""
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = [f"model-{index + 1:05}-of-{files:05}.safetensors" for index in range(files)]
    files_of = {tensor: names[index % files] for index, tensor in enumerate(sorted(tensors))}
    for name in names:
        save_file({tensor: tensors[tensor] for tensor, file in files_of.items() if file == name}, folder / name)
    (folder / INDEX_FILE).write_text(json.dumps({"metadata": {}, "weight_map": files_of}))
    return names


def ids_of(*shape: int) -> Tensor:
    return torch.randint(60, shape, generator=torch.Generator().manual_seed(1))


def logits_of(folder: Path) -> Tensor:
    logits: Tensor = load(folder)(ids_of(1, 9))[0]
    return logits


# There and back


@pytest.mark.parametrize("trait", TRAITS)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_checkpoint_gives_back_the_same_weights_and_logits(tmp_path: Path, shape: str, trait: str) -> None:
    config = replace(SHAPES[shape], **TRAITS[trait])
    write_random(tmp_path, config)
    model = random_model(config)

    read = read_model(tmp_path)

    assert read.config == config
    assert read.state_dict().keys() == model.state_dict().keys()
    assert all(torch.equal(weight, model.state_dict()[name]) for name, weight in read.state_dict().items())
    assert (read.head.weight is read.embedding.weight) == config.tied_embeddings
    assert torch.equal(logits_of(tmp_path), KernelModel.of(model)(ids_of(1, 9))[0])


def test_weights_may_be_read_by_whoever_may_read_the_config(checkpoint: Path) -> None:
    config, weights = (checkpoint / name for name in ("config.json", "model.safetensors"))

    assert weights.stat().st_mode == config.stat().st_mode


def test_tied_embeddings_are_stored_once(tmp_path: Path) -> None:
    write_random(tmp_path, replace(EIGHT_TO_ONE, tied_embeddings=True))

    assert "lm_head.weight" not in load_file(tmp_path / "model.safetensors")


def test_a_tied_head_that_is_stored_again_is_not_read(tmp_path: Path) -> None:
    write_random(tmp_path, replace(EIGHT_TO_ONE, tied_embeddings=True))
    expected = logits_of(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    save_file({**tensors, "lm_head.weight": torch.zeros(64, 64)}, tmp_path / "model.safetensors")

    assert torch.equal(logits_of(tmp_path), expected)


@pytest.mark.parametrize("files", [1, 3])
def test_weights_in_several_files_are_those_of_one(checkpoint: Path, files: int) -> None:
    expected = logits_of(checkpoint)

    split(checkpoint, files)

    assert torch.equal(logits_of(checkpoint), expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_weights_in_half_precision_are_read_as_the_numbers_they_are(checkpoint: Path, dtype: torch.dtype) -> None:
    file = checkpoint / "model.safetensors"
    halves = {name: tensor.to(dtype) for name, tensor in load_file(file).items()}
    save_file({name: tensor.float() for name, tensor in halves.items()}, file)
    expected = logits_of(checkpoint)
    save_file(halves, file)

    assert torch.equal(logits_of(checkpoint), expected)


def test_a_model_is_loaded_without_the_compiler_of_torch(checkpoint: Path) -> None:
    """Which takes longer than everything else at the start of a worker, and comes with an operation on a mere shape."""
    program = "import sys; from minilab_gen.models.checkpoint import load; load(sys.argv[1]); print(*sys.modules)"

    loaded = subprocess.run(
        [sys.executable, "-c", program, str(checkpoint)], capture_output=True, text=True, check=True, timeout=120
    )

    assert not {"sympy", "torch._dynamo"} & set(loaded.stdout.split())


def test_a_fingerprint_is_that_of_the_same_files_and_changes_with_a_weight(tmp_path: Path) -> None:
    prints = []
    for folder, seed in [("one", 0), ("same", 0), ("other", 1)]:
        write_random(tmp_path / folder, seed=seed)
        prints.append(fingerprint(tmp_path / folder, "float32"))

    assert prints[0] == prints[1]
    assert prints[0] != prints[2]


def test_a_fingerprint_sees_every_file_of_weights(checkpoint: Path) -> None:
    names = split(checkpoint, 3)
    before = fingerprint(checkpoint, "float32")
    file = checkpoint / names[-1]
    file.write_bytes(file.read_bytes()[:-1] + b"\x01")

    assert fingerprint(checkpoint, "float32") != before


def test_a_fingerprint_is_that_of_a_type_of_weights(checkpoint: Path) -> None:
    assert len({fingerprint(checkpoint, weights) for weights in WEIGHT_TYPES}) == len(WEIGHT_TYPES)


def test_a_fingerprint_changes_with_the_numerics(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = fingerprint(checkpoint, "float32")

    monkeypatch.setattr("minilab_gen.models.checkpoint.numerics", lambda: numerics() + 1)

    assert fingerprint(checkpoint, "float32") != before


# The vocabulary


def test_ids_that_the_tokenizer_does_not_know_are_never_chosen(tmp_path: Path) -> None:
    model = random_model()
    with torch.no_grad():
        model.head.weight[60:] *= 100  # the loudest rows
    write_checkpoint(tmp_path, model, tokenizer_of(60))

    loaded = load(tmp_path)

    assert loaded.config.vocab_size == 60
    everything, _ = KernelModel.of(model)(ids_of(1, 9))
    assert torch.equal(loaded(ids_of(1, 9))[0], everything[..., :60])
    assert all(step.token_id < 60 for step in generate(loaded, [1, 2, 3], 28))


def test_without_a_tokenizer_every_id_may_be_chosen(checkpoint: Path) -> None:
    (checkpoint / "tokenizer.json").unlink()

    assert load(checkpoint).config.vocab_size == 64


def test_a_tokenizer_that_knows_more_ids_than_the_model_is_refused(checkpoint: Path) -> None:
    (checkpoint / "tokenizer.json").write_text(tokenizer_of(65).to_json())

    with pytest.raises(CheckpointError, match=r"tokenizer\.json must know at most the 64 ids of the model, got 65"):
        load(checkpoint)


# The ids that end a text


@pytest.mark.parametrize(
    ("config", "generation", "ids"),
    [(2, None, (2,)), (None, None, ()), ([2, 7], None, (2, 7)), (2, {"eos_token_id": [5, 6]}, (5, 6)), (0, {}, (0,))],
)
def test_stop_ids_come_from_the_generation_config_or_else_the_config(
    checkpoint: Path, config: Any, generation: Any, ids: tuple[int, ...]
) -> None:
    change_json(checkpoint / "config.json", eos_token_id=config)
    if generation is not None:
        (checkpoint / "generation_config.json").write_text(json.dumps(generation))

    assert read_stop_ids(checkpoint) == ids


@pytest.mark.parametrize("stop", ["2", [2, None], -1, 2.0, True, {"id": 2}])
def test_a_stop_id_that_is_none_is_refused(checkpoint: Path, stop: Any) -> None:
    change_json(checkpoint / "config.json", eos_token_id=stop)

    with pytest.raises(CheckpointError, match=r"config\.json: eos_token_id must be an id or a list of ids, got"):
        read_stop_ids(checkpoint)


# Folders that cannot be served


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_missing_file_is_named(checkpoint: Path, name: str) -> None:
    (checkpoint / name).unlink()

    with pytest.raises(CheckpointError, match=f"{name} cannot be read: No such file"):
        load(checkpoint)


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="nowhere"):
        load(tmp_path / "nowhere")


def test_one_missing_file_of_several_is_named(checkpoint: Path) -> None:
    names = split(checkpoint, 3)
    (checkpoint / names[1]).unlink()

    with pytest.raises(CheckpointError, match=f"{names[1]} cannot be read: No such file"):
        load(checkpoint)


@pytest.mark.parametrize("index", [{}, {"weight_map": {}}, {"weight_map": ["a"]}, {"weight_map": {"a": "../b"}}])
def test_an_index_that_names_no_files_of_the_folder_is_refused(checkpoint: Path, index: dict[str, Any]) -> None:
    split(checkpoint, 2)
    (checkpoint / INDEX_FILE).write_text(json.dumps(index))

    with pytest.raises(CheckpointError, match=rf"{INDEX_FILE} must"):
        load(checkpoint)


@pytest.mark.parametrize("name", ["q_proj", "v_proj", "o_proj"])
def test_a_missing_tensor_is_named_with_its_shape(checkpoint: Path, name: str) -> None:
    change_tensors(checkpoint, **{name: None})

    with pytest.raises(CheckpointError, match=rf"lacks the tensor model\.layers\.0\.self_attn\.{name}\.weight.*\(\d"):
        load(checkpoint)


@pytest.mark.parametrize(
    ("name", "came", "shape"),
    [
        ("o_proj", (64, 63), r"\(64, 64\)"),
        ("k_proj", (16, 64), r"\(8, 64\)"),
        ("q_proj", (64, 32), r"\(64, 64\)"),
        ("v_proj", (8,), r"\(8, 64\)"),
    ],
)
def test_a_tensor_of_another_shape_is_named(checkpoint: Path, name: str, came: tuple[int, ...], shape: str) -> None:
    change_tensors(checkpoint, **{name: torch.zeros(came)})

    with pytest.raises(CheckpointError, match=rf"model\.layers\.0\.self_attn\.{name}\.weight must be {shape}, got \("):
        load(checkpoint)


def test_a_tensor_that_the_model_has_no_place_for_is_named(checkpoint: Path) -> None:
    change_tensors(checkpoint, q_norm=torch.ones(8), k_norm=torch.ones(8))

    with pytest.raises(CheckpointError, match=r"no part of this model takes .*self_attn\.[qk]_norm\.weight and 1 more"):
        load(checkpoint)


def test_angles_that_old_folders_store_are_no_matter(checkpoint: Path) -> None:
    expected = logits_of(checkpoint)
    tensors = load_file(checkpoint / "model.safetensors")
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(4)
    save_file(tensors, checkpoint / "model.safetensors")

    assert torch.equal(logits_of(checkpoint), expected)


def test_a_tensor_of_another_kind_of_number_is_named(checkpoint: Path) -> None:
    change_tensors(checkpoint, k_proj=torch.zeros(8, 64, dtype=torch.int8))

    with pytest.raises(CheckpointError, match=r"k_proj\.weight must be stored as F32, F16, BF16, got I8"):
        load(checkpoint)


@pytest.mark.parametrize("kept", [0, 4, 100, 5000, -1])
def test_weights_cut_short_are_named_with_what_is_there(checkpoint: Path, kept: int) -> None:
    file = checkpoint / "model.safetensors"
    content = file.read_bytes()[:kept]
    file.write_bytes(content)

    with pytest.raises(CheckpointError, match=rf"it is cut short, {len(content)} of \d+ bytes are there"):
        load(checkpoint)


@pytest.mark.parametrize("content", [b"\xff" * 64, b"\x05" + b"\x00" * 7 + b"[1,2]", b"\x02" + b"\x00" * 7 + b"ab"])
def test_a_file_that_holds_no_weights_is_named(checkpoint: Path, content: bytes) -> None:
    (checkpoint / "model.safetensors").write_bytes(content)

    with pytest.raises(CheckpointError, match=r"model\.safetensors cannot be read: "):
        load(checkpoint)


@pytest.mark.parametrize(
    ("text", "message"),
    [("", "is not JSON"), ("{", "is not JSON"), ("[]", "must hold a JSON object, got list"), ("é\xff", "is not JSON")],
)
def test_a_config_that_is_no_object_is_a_checkpoint_error(checkpoint: Path, text: str, message: str) -> None:
    (checkpoint / "config.json").write_bytes(text.encode("latin-1"))

    with pytest.raises(CheckpointError, match=message):
        read_config(checkpoint)


def test_what_is_wrong_with_the_config_is_said_before_a_weight_is_read(checkpoint: Path) -> None:
    change_json(checkpoint / "config.json", quantization_config={"bits": 4})
    (checkpoint / "model.safetensors").unlink()

    with pytest.raises(CheckpointError, match=r"config\.json: the key quantization_config is not understood"):
        load(checkpoint)
