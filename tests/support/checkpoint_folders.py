"""Small checkpoint folders, and ways to change what is in them. It must not hold a test."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from minilab_gen.models.checkpoint import load
from minilab_gen.models.config import ModelConfig
from minilab_gen.models.torch_checkpoint import write_checkpoint
from minilab_gen.models.weights import INDEX_FILE
from support.small_models import EIGHT_TO_ONE, random_model, tokenizer_of


def write_random(folder: Path, config: ModelConfig = EIGHT_TO_ONE, *, seed: int = 0) -> None:
    write_checkpoint(folder, random_model(config, seed=seed), tokenizer_of(config.vocab_size))


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
