"""Folders of weights in few bits: refused in one line, with a way to serve the model."""

from __future__ import annotations

import ast
import shlex
from pathlib import Path
from typing import Any

import pytest
from support.checkpoint_folders import change_json, write_random

from minilab_gen.errors import CheckpointError
from minilab_gen.models.checkpoint import load
from minilab_gen.models.source import checkpoint_of

WAY_OUT = "serve the folder of the model that it was made from with --dtype int8, or a GGUF file of it"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_random(tmp_path / "it's Small")
    return tmp_path / "it's Small"


def refusal(folder: Path, **keys: Any) -> str:
    change_json(folder / "config.json", **keys)
    with pytest.raises(CheckpointError) as caught:
        load(folder)
    with pytest.raises(CheckpointError, match="says that weights are packed"):
        checkpoint_of(folder).check()
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    "method", ["awq", "gptq", "compressed-tensors", "aqlm", "hqq", "mxfp4", "modelopt", "quanto", "torchao", "x" * 900]
)
def test_packed_weights_are_named_with_what_can_be_served(folder: Path, method: str) -> None:
    said = refusal(folder, quantization_config={"quant_method": method, "bits": 4})

    what = f"quantization_config says that weights are packed by {method[:40]}, which is not read"
    assert said == f"{folder / 'config.json'}: {what}; {WAY_OUT}"


@pytest.mark.parametrize(
    ("config", "method"),
    [
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "bitsandbytes"),
        ({"load_in_8bit": True}, "bitsandbytes"),
        ({"quant_method": "fp8", "activation_scheme": "dynamic"}, "fp8"),
    ],
)
def test_what_transformers_can_unpack_comes_with_the_command(folder: Path, config: dict[str, Any], method: str) -> None:
    said = refusal(folder, quantization_config=config)

    assert f"weights are packed by {method}, which is not read; {WAY_OUT}, or unpack it: pip install " in said
    install, run = said.partition(", or unpack it: ")[2].split(" && ")
    assert install.startswith("pip install transformers accelerate")
    program, flag, code = shlex.split(run)
    assert (program, flag) == ("python", "-c")
    ast.parse(code)
    assert str(folder) in code
    assert f"{folder}-unpacked" in code


@pytest.mark.parametrize("config", [None, [], {}, "awq", 4])
def test_a_config_without_a_method_is_refused_unless_it_is_none(folder: Path, config: Any) -> None:
    if config is None:
        change_json(folder / "config.json", quantization_config=None)
        assert load(folder).config.n_layer
    else:
        assert "packed by a method without a name" in refusal(folder, quantization_config=config)


@pytest.mark.parametrize("more", [{}, {"quantization_config": {"group_size": 64, "bits": 4}}])
def test_folders_of_mlx_are_known_by_their_own_key(folder: Path, more: dict[str, Any]) -> None:
    said = refusal(folder, quantization={"group_size": 64, "bits": 4}, **more)

    assert said.endswith(f"says that weights are packed by MLX, which is not read; {WAY_OUT}")


def test_the_key_of_older_releases_is_known(folder: Path) -> None:
    said = refusal(folder, compression_config={"quant_method": "compressed-tensors"})

    assert "compression_config says that weights are packed by compressed-tensors" in said
