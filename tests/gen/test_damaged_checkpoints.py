"""Folders that cannot be served, or change while they are: each is named with what is wrong, and no token is."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from minilab_worker.serving import load_served_model
from safetensors.torch import load_file, save_file
from support.checkpoint_folders import change_json, change_tensors, ids_of, logits_of, split, write_random
from support.small_models import EIGHT_TO_ONE

from minilab_gen.errors import CheckpointError
from minilab_gen.kernels.library import KernelError, numerics
from minilab_gen.models.checkpoint import load, stamps
from minilab_gen.models.checkpoint_folder import read_config
from minilab_gen.models.kernel_model import KernelModel
from minilab_gen.models.tensors import stored_tensors
from minilab_gen.models.weights import INDEX_FILE, StoredWeights


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A good checkpoint folder, for tests that damage it."""
    write_random(tmp_path)
    return tmp_path


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


@pytest.mark.parametrize("pad", range(1, 65, 7))
def test_weights_may_begin_at_any_byte(checkpoint: Path, pad: int) -> None:
    """A header of safetensors may have any length, so numbers need not lie at a multiple of anything."""
    expected = logits_of(checkpoint)
    file = checkpoint / "model.safetensors"
    content = file.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = content[8 : 8 + length].rstrip() + b" " * pad
    file.write_bytes(len(header).to_bytes(8, "little") + header + content[8 + length :])

    assert torch.equal(logits_of(checkpoint), expected)


def test_weights_cut_short_while_they_are_read_end_in_an_error(checkpoint: Path) -> None:
    stored = StoredWeights(checkpoint)
    file = checkpoint / "model.safetensors"
    os.truncate(file, file.stat().st_size // 4)

    with pytest.raises(CheckpointError, match=r"model.safetensors was cut short while it was read: .* lacks \d+ bytes"):
        list(map(stored.read, (each.stored for each in stored_tensors(EIGHT_TO_ONE))))


def test_weights_that_change_later_change_nothing(checkpoint: Path) -> None:
    model, expected = load(checkpoint, threads=1), logits_of(checkpoint)
    file = checkpoint / "model.safetensors"
    with file.open("r+b") as opened:  # in place, as cp does
        opened.seek(file.stat().st_size // 2)
        opened.write(bytes(1000))

    assert torch.equal(model(ids_of(1, 9))[0], expected)
    os.truncate(file, 0)
    assert torch.equal(model(ids_of(1, 9))[0], expected)


def replaced(file: Path) -> None:
    copy = file.with_suffix(".new")
    shutil.copy2(file, copy)
    copy.replace(file)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
@pytest.mark.parametrize("change", [lambda file: os.utime(file, (1, 1)), replaced], ids=["written", "replaced"])
def test_a_change_of_any_file_is_seen(checkpoint: Path, name: str, change: Callable[[Path], object]) -> None:
    before = stamps(checkpoint)

    change(checkpoint / name)

    assert stamps(checkpoint) != before


@pytest.mark.parametrize("kept", [4, 100, 5000, -1])
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
    [
        ("", "is empty;"),
        ("{", "is not JSON"),
        ("[]", "must hold a JSON object, got list"),
        ("é\xff", "is not JSON"),
    ],
)
def test_a_config_that_is_no_object_is_a_checkpoint_error(checkpoint: Path, text: str, message: str) -> None:
    (checkpoint / "config.json").write_bytes(text.encode("latin-1"))

    with pytest.raises(CheckpointError, match=message):
        read_config(checkpoint)


def test_what_is_wrong_with_the_config_is_said_before_a_weight_is_read(checkpoint: Path) -> None:
    change_json(checkpoint / "config.json", quantization_config={"bits": 4})
    (checkpoint / "model.safetensors").unlink()

    with pytest.raises(CheckpointError, match=r"config\.json: quantization_config says that weights are packed"):
        load(checkpoint)


def test_layers_without_end_are_refused_by_the_first_that_is_missing(checkpoint: Path) -> None:
    change_json(checkpoint / "config.json", num_hidden_layers=10**12)

    with pytest.raises(CheckpointError, match=r"lacks the tensor model\.layers\.2\."):
        load(checkpoint)


def test_a_worker_says_which_file_of_its_model_is_missing(checkpoint: Path) -> None:
    (checkpoint / "config.json").unlink()

    with pytest.raises(CheckpointError, match=r"config\.json"):
        load_served_model(checkpoint, "base", 4, 1)


def test_a_model_whose_files_change_while_a_worker_loads_it_is_not_served(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load_meanwhile(folder: Path, *arguments: Any, **named: Any) -> KernelModel:
        model = load(folder, *arguments, **named)
        os.utime(folder / "model.safetensors", (1, 1))
        return model

    monkeypatch.setattr("minilab_worker.serving.load", load_meanwhile)

    with pytest.raises(CheckpointError, match="changed while they were read; start the worker again"):
        load_served_model(checkpoint, "base", 4, 1)


def test_a_worker_whose_kernels_fail_the_probe_serves_nothing(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("minilab_gen.models.probe._HASHES", {numerics(): "0" * 32})

    with pytest.raises(KernelError, match="the kernels must give the probe"):
        load_served_model(checkpoint, "base", 4, 1)
