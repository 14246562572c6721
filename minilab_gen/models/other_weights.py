"""Weights in files of other kinds: named, with the way to ``safetensors``."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from minilab_gen.errors import CheckpointError
from minilab_gen.impostors import impostor, saved_again

_BY_TRANSFORMERS: Final = ("pytorch_model.bin", "pytorch_model.bin.index.json")
"""Files of torch that transformers can read."""

_PICKLES: Final = ("consolidated*.pth", "*model*.pth", "*model*.pt", "*model*.bin", "*.ckpt")
"""Files of torch that only the program which wrote them knows."""


def check_that_nothing_else_holds_weights(folder: Path) -> None:
    """Raise CheckpointError where a folder without ``safetensors`` has weights in files of torch."""
    rule = f"{folder} must have its weights in safetensors"
    for name in _BY_TRANSFORMERS:
        if (folder / name).exists():
            command = saved_again("AutoModelForCausalLM", folder)
            raise CheckpointError(
                impostor(folder / name) or f"{rule}, got {name}; with transformers installed: {command}"
            )
    found = sorted(file.name for pattern in _PICKLES for file in folder.glob(pattern))
    if found:
        raise CheckpointError(f"{rule}, got {found[0]}; convert it with the program that wrote it")
