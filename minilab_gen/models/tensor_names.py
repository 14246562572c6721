"""Names of stored tensors without what trainers and wrappers of torch put into them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from minilab_gen.errors import CheckpointError

_ANYWHERE: Final = ("_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module.")
"""Wrappers of any part of a model: ``torch.compile``, FSDP and the checkpoints of activations."""

_IN_FRONT: Final = ("module.", "base_model.model.")
"""Wrappers of whole models: data parallel training, and PEFT once its adapters are merged."""

_OF_BASE_MODEL: Final = ("embed_tokens.", "layers.", "norm.")
"""How names begin where the model was saved without its head: transformers adds what is left out as well."""


def plain_names(stored: Iterable[str], folder: Path) -> dict[str, str]:
    """The name of each tensor in the model, by its stored one. Raises CheckpointError where two would be one."""
    stored_as: dict[str, str] = {}
    for name in stored:
        plain = _plain(name)
        if plain in stored_as:
            both = f"{stored_as[plain]} and {name}"
            raise CheckpointError(f"{folder}: two tensors must not have one name, but {both} are both {plain}")
        stored_as[plain] = name
    return {name: plain for plain, name in stored_as.items()}


def _plain(name: str) -> str:
    for wrapper in _ANYWHERE:
        name = name.replace(wrapper, "")
    while front := next((front for front in _IN_FRONT if name.startswith(front)), None):
        name = name.removeprefix(front)
    return f"model.{name}" if name.startswith(_OF_BASE_MODEL) else name
