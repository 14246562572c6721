"""Files that are not what their names say, and weights and tokenizers in other files: each is named with a way out."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.checkpoint_folders import logits_of, split, write_random
from support.family_checkpoints import Kind, largest_gap, write
from support.tokenizer_kinds import TEXT, qwen

from minilab_gen.errors import CheckpointError
from minilab_gen.json_file import read_json
from minilab_gen.models.checkpoint import load
from minilab_gen.models.checkpoint_folder import check_folder
from minilab_gen.text.tokenizer import get_tokenizer

pytestmark = pytest.mark.filterwarnings("ignore")  # of transformers, about Python

CLOSE = 1e-4
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a21\nsize 988097824\n"
PAGE = b"\n<!DOCTYPE html>\n<html><head><title>Sign in</title></head></html>"
OTHERS = [
    (POINTER, r"{name} is a git-lfs pointer to the file; fetch it: git -C {folder} lfs pull"),
    (PAGE, r"{name} is a web page and not the file; download it again, on the Hub from /resolve/ and not /blob/"),
    (b"<html>", r"{name} is a web page and not the file"),
    (b"", r"{name} is empty; download or copy it again"),
]


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    write_random(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"])
@pytest.mark.parametrize(("content", "message"), OTHERS)
def test_a_file_that_is_something_else_is_named_with_a_remedy(
    checkpoint: Path, name: str, content: bytes, message: str
) -> None:
    (checkpoint / name).write_bytes(content)

    for reader in (check_folder, load):
        with pytest.raises(CheckpointError, match=message.format(name=name, folder=checkpoint)):
            reader(checkpoint)


def test_one_of_several_files_that_is_a_pointer_is_named(checkpoint: Path) -> None:
    names = split(checkpoint, 3)
    (checkpoint / names[1]).write_bytes(POINTER)

    with pytest.raises(CheckpointError, match=f"{names[1]} is a git-lfs pointer"):
        check_folder(checkpoint)


def test_a_json_file_that_is_damaged_is_not_taken_for_another(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"a": ')

    with pytest.raises(CheckpointError, match=r"a\.json is not JSON"):
        read_json(tmp_path / "a.json")


def run_command_of(error: CheckpointError) -> None:
    """Do what a message says, in this process, since transformers takes seconds to load."""
    python, option, code = shlex.split(str(error).split("installed: ")[1])
    assert (python, option) == ("python", "-c")
    exec(code, {"__name__": "__main__", "sys": sys})  # noqa: S102 - it is what a user types


@pytest.mark.parametrize(("family", "shard"), [("Llama", "5GB"), ("Qwen2", "60KB"), ("Mistral", "5GB")])
def test_a_folder_of_torch_files_is_converted_by_the_command_that_is_named(
    tmp_path: Path, family: str, shard: str
) -> None:
    folder = tmp_path / "a model's"
    theirs = write(folder, Kind(family))
    (folder / "model.safetensors").unlink()
    as_torch_files(folder, theirs, 1 if shard == "5GB" else 2)

    with pytest.raises(
        CheckpointError, match=r"must have its weights in safetensors, got pytorch_model\.bin"
    ) as caught:
        load(folder)
    run_command_of(caught.value)

    assert largest_gap(folder) < CLOSE


def as_torch_files(folder: Path, theirs: Any, files: int) -> None:
    tensors = theirs.state_dict()
    if files == 1:
        torch.save(tensors, folder / "pytorch_model.bin")
        return
    file_of = {name: f"pytorch_model-{i % files + 1:05}-of-{files:05}.bin" for i, name in enumerate(tensors)}
    for file in set(file_of.values()):
        torch.save({name: tensor for name, tensor in tensors.items() if file_of[name] == file}, folder / file)
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"metadata": {}, "weight_map": file_of}))


def test_a_torch_file_that_is_a_pointer_is_named_as_one(checkpoint: Path) -> None:
    (checkpoint / "model.safetensors").unlink()
    (checkpoint / "pytorch_model.bin").write_bytes(POINTER)

    with pytest.raises(CheckpointError, match=r"pytorch_model\.bin is a git-lfs pointer"):
        check_folder(checkpoint)


def test_weights_in_a_file_of_their_trainer_are_named(checkpoint: Path) -> None:
    (checkpoint / "model.safetensors").unlink()
    (checkpoint / "training_args.bin").write_bytes(b"PK")
    (checkpoint / "consolidated.00.pth").write_bytes(b"PK")

    with pytest.raises(
        CheckpointError, match=r"in safetensors, got consolidated\.00\.pth; convert it with the program"
    ):
        check_folder(checkpoint)


def test_a_tokenizer_in_other_files_is_converted_by_the_command_that_is_named(tmp_path: Path) -> None:
    write(tmp_path, Kind("Qwen2", {"vocab_size": 340}))
    qwen().model.save(str(tmp_path))  # vocab.json and merges.txt

    with pytest.raises(CheckpointError, match=r"must have a tokenizer\.json, got vocab\.json only") as caught:
        check_folder(tmp_path)
    run_command_of(caught.value)

    import transformers

    assert get_tokenizer(tmp_path).encode(TEXT) == transformers.AutoTokenizer.from_pretrained(tmp_path)(TEXT).input_ids


def test_an_adapter_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")

    with pytest.raises(CheckpointError, match="must hold a whole model, got an adapter; merge it into its base"):
        check_folder(tmp_path)


# Names that trainers put before those of tensors

WRAPPED: dict[str, Callable[[str], str]] = {
    "compiled": lambda name: f"_orig_mod.{name}",
    "compiled by layer": lambda name: name.replace(".self_attn.", "._orig_mod.self_attn."),
    "data parallel": lambda name: f"module.{name}",
    "merged adapters": lambda name: f"base_model.model.{name}",
    "all of them": lambda name: f"module._orig_mod.base_model.model.{name}",
    "sharded": lambda name: name.replace("model.layers.", "model.layers._fsdp_wrapped_module."),
}


@pytest.mark.parametrize("wrapper", WRAPPED)
def test_tensors_are_found_under_the_names_of_trainers(checkpoint: Path, wrapper: str) -> None:
    expected = logits_of(checkpoint)
    file = checkpoint / "model.safetensors"
    save_file({WRAPPED[wrapper](name): tensor for name, tensor in load_file(file).items()}, file)

    assert torch.equal(logits_of(checkpoint), expected)


@pytest.mark.parametrize("family", ["Llama", "Qwen2", "Qwen3"])
def test_a_model_that_was_saved_without_its_head_is_read_as_by_transformers(tmp_path: Path, family: str) -> None:
    write(tmp_path, Kind(family, {"tie_word_embeddings": True}))
    file = tmp_path / "model.safetensors"
    bare = {name.removeprefix("model."): tensor for name, tensor in load_file(file).items()}
    save_file(bare, file, metadata={"format": "pt"})

    assert largest_gap(tmp_path) < CLOSE


def test_tensors_that_would_have_one_name_are_refused(checkpoint: Path) -> None:
    file = checkpoint / "model.safetensors"
    tensors = load_file(file)
    save_file(tensors | {"module.model.norm.weight": torch.ones(64)}, file)

    with pytest.raises(CheckpointError, match=r"two tensors must not .* are both model\.norm\.weight"):
        load(checkpoint)
