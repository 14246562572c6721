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
from support.checkpoint_folders import change_json, ids_of, logits_of, split, write_random
from support.small_models import EIGHT_TO_ONE, SHAPES, random_model, tokenizer_of
from transformers import AutoTokenizer

from minilab_gen.errors import CheckpointError
from minilab_gen.generate import generate
from minilab_gen.kernels.decoder import WEIGHT_TYPES
from minilab_gen.kernels.library import numerics
from minilab_gen.models.checkpoint import fingerprint, load, read_stop_ids
from minilab_gen.models.kernel_model import KernelModel
from minilab_gen.models.rope_config import LinearScaling, LongScaling, RopeConfig, RopeScaling, YarnScaling
from minilab_gen.models.torch_checkpoint import read_model, write_checkpoint
from minilab_gen.text.tokenizer import BASE_CHECKPOINT, get_tokenizer

TRAITS: dict[str, dict[str, Any]] = {
    "tied": {"tied_embeddings": True},
    "biased": {"qkv_bias": True},
    "all-biased": {"qkv_bias": True, "output_bias": True},
    "normed": {"head_norm": True},
    "own-heads": {"own_head_dim": 24},
    "scaled": {"rope": RopeConfig(scaling=RopeScaling(8.0, 1.0, 4.0, 16))},
    "linear": {"rope": RopeConfig(scaling=LinearScaling(4.0))},
    "yarn": {"rope": RopeConfig(scaling=YarnScaling(4.0, 16, beta_fast=8.0, truncate=False))},
    "longrope": {"rope": RopeConfig(scaling=LongScaling((1.0, 1.5, 2.0, 4.0) * 3, 4.0, 16)), "own_head_dim": 24},
}
"""What families have of their own, one at a time."""


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A good checkpoint folder, for tests that damage it."""
    write_random(tmp_path)
    return tmp_path


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


@pytest.mark.parametrize("folder", ["base", "written"])
def test_transformers_knows_the_token_that_begins_and_ends_texts(folder: str, tmp_path: Path) -> None:
    path = BASE_CHECKPOINT
    if folder == "written":
        path = tmp_path
        write_checkpoint(path, random_model(replace(EIGHT_TO_ONE, vocab_size=2048)), get_tokenizer())

    tokenizer: Any = AutoTokenizer.from_pretrained(path)

    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (0, 0)
    assert tokenizer.model_max_length == load(path).config.context_length
    assert tokenizer.encode("Où est Phileas Fogg ?") == get_tokenizer().encode("Où est Phileas Fogg ?")


def test_tied_embeddings_are_stored_once(tmp_path: Path) -> None:
    write_random(tmp_path, replace(EIGHT_TO_ONE, tied_embeddings=True))

    assert "lm_head.weight" not in load_file(tmp_path / "model.safetensors")


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
