"""Names of stored tensors without what trainers and wrappers of torch put into them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final

from minilab_gen.errors import CheckpointError

_ANYWHERE: Final = ("_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module.")
"""Wrappers of any part of a model: ``torch.compile``, FSDP and the checkpoints of activations."""

_IN_FRONT: Final = ("module.", "base_model.model.")
"""Wrappers of whole models: data parallel training, and PEFT once its adapters are merged."""

_OF_BASE_MODELS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "gpt_neox.": ("embed_in.", "layers.", "final_layer_norm."),
        "transformer.": ("wte.", "wpe.", "h.", "ln_f."),
        "model.": ("embed_tokens.", "layers.", "norm."),
    }
)
"""How names begin where the model was saved without its head, by what is left out; transformers adds it as well."""


def plain_names(stored: Iterable[str], folder: Path) -> dict[str, str]:
    """The name of each tensor in the model, by its stored one. Raises CheckpointError where two would be one."""
    names = [(name, _unwrapped(name)) for name in stored]
    front = _left_out([plain for _, plain in names])
    stored_as: dict[str, str] = {}
    for name, unwrapped in names:
        plain = front + unwrapped if unwrapped.startswith(_OF_BASE_MODELS.get(front, ())) else unwrapped
        if plain in stored_as:
            both = f"{stored_as[plain]} and {name}"
            raise CheckpointError(f"{folder}: two tensors must not have one name, but {both} are both {plain}")
        stored_as[plain] = name
    return {name: plain for plain, name in stored_as.items()}


def _unwrapped(name: str) -> str:
    for wrapper in _ANYWHERE:
        name = name.replace(wrapper, "")
    while front := next((front for front in _IN_FRONT if name.startswith(front)), None):
        name = name.removeprefix(front)
    return name


def _left_out(names: Sequence[str]) -> str:
    """What names lack in front: that of the first kind of model whose embedding is among them without it."""
    for front, (embedding, *_) in _OF_BASE_MODELS.items():
        if any(name.startswith(embedding) for name in names):
            return front
    return ""
