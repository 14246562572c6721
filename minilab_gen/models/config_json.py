"""How ``config.json`` says what a model is: read, checked and written. It must not know torch.

A key that is not known is refused: it may stand for a computation that would not be done.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, Final

from minilab_gen.errors import CheckpointError
from minilab_gen.models.config import ModelConfig
from minilab_gen.models.families import FAMILIES, Family
from minilab_gen.models.known_keys import changes_nothing
from minilab_gen.models.rope_settings import ROPE_KEYS, described_scaling
from minilab_gen.models.stored_config import StoredConfig
from minilab_gen.request import shown

_SHAPE: Final = {
    "vocab_size": "vocab_size",
    "context_length": "max_position_embeddings",
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "n_kv_head": "num_key_value_heads",
    "d_model": "hidden_size",
    "d_hidden": "intermediate_size",
    "norm_eps": "rms_norm_eps",
    "tied_embeddings": "tie_word_embeddings",
}
"""Our name of each part of a shape: the key in ``config.json``."""

_ACTIVATIONS: Final = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
}
"""By the names that transformers has for them."""

_ONLY: Final[Mapping[str, Any]] = {
    "add_cross_attention": False,
    "attention_bias": False,
    "is_encoder_decoder": False,
    "mlp_bias": False,
    "pruned_heads": {},
    "rope_interleaved": False,
    "tie_encoder_decoder": False,
    "use_mrope": False,
    "use_sliding_window": False,
}
"""Keys that may be left out but say nothing else, because another model would be meant."""

_READ: Final = {"architectures", "head_dim", "layer_types", "model_type", *ROPE_KEYS}
"""Keys that are read one by one."""


def config_of(stored: Mapping[str, Any]) -> ModelConfig:
    """The shape that the content of ``config.json`` gives. Raises CheckpointError for all that is not served."""
    family = _family_of(stored)
    _check_keys(stored, family)
    config = StoredConfig(stored, family.defaults)
    keys = _SHAPE | dict(family.keys)
    shape = {ours: config[theirs] for ours, theirs in keys.items()}
    shape |= family.parts
    shape |= {field: bool(config[key]) for key, given in family.flags.items() for field in given if config[key]}
    shape["activation"] = _activation(config, family)
    shape |= family.read_windows(config)
    shape |= family.read_ropes(config)
    try:
        model = ModelConfig(**shape, own_head_dim=config["head_dim"])
    except (TypeError, ValueError) as error:
        words = re.sub(r"\b\w+\b", lambda word: keys.get(word[0], word[0]), str(error))  # those of config.json
        raise CheckpointError(words) from error
    follows = model.d_model == model.n_head * model.head_dim
    return replace(model, own_head_dim=None) if follows else model


def described(config: ModelConfig) -> dict[str, Any]:
    """The content of ``config.json`` for a shape: of the first family that has it."""
    for name, family in FAMILIES.items():
        content = _as_of(name, family, config)
        try:
            if config_of(content) == config:
                return content
        except CheckpointError:
            continue
    usual = ModelConfig()
    traits = [field.name for field in fields(config) if field.name not in _SHAPE and field.name != "own_head_dim"]
    own = {name: getattr(config, name) for name in traits if getattr(config, name) != getattr(usual, name)}
    raise CheckpointError(f"no family has {', '.join(f'{name} {shown(value)}' for name, value in own.items())}")


def _as_of(name: str, family: Family, config: ModelConfig) -> dict[str, Any]:
    keys = _SHAPE | dict(family.keys)
    return {
        "architectures": [name],
        "model_type": family.model_type,
        **{theirs: getattr(config, ours) for ours, theirs in keys.items()},
        "head_dim": config.head_dim,
        "rope_theta": config.rope.theta,
        "rope_scaling": described_scaling(config.rope.scaling),
        family.activation_key: config.activation,
        **{key: getattr(config, given[-1]) for key, given in family.flags.items()},
    }


def _family_of(stored: Mapping[str, Any]) -> Family:
    architectures = stored.get("architectures") or ["none named"]
    name = architectures[0] if isinstance(architectures, list) else architectures
    if architectures != [name] or name not in FAMILIES:
        got = ", ".join(map(str, architectures)) if isinstance(architectures, list) else architectures
        meant = next((name for name, it in FAMILIES.items() if it.model_type == stored.get("model_type")), None)
        remedy = "" if stored.get("architectures") or meant is None else f'; add "architectures": ["{meant}"]'
        raise CheckpointError(f"the architecture must be one of {', '.join(FAMILIES)}, got {got}{remedy}")
    family = FAMILIES[name]
    if stored.get("model_type", family.model_type) != family.model_type:
        raise CheckpointError(f"model_type must be {family.model_type!r} for {name}, got {stored['model_type']!r}")
    return family


def _activation(config: StoredConfig, family: Family) -> str:
    name = config[family.activation_key]
    if not isinstance(name, str) or name not in _ACTIVATIONS:
        raise CheckpointError(f"{family.activation_key} must be one of {', '.join(_ACTIVATIONS)}, got {shown(name)}")
    return _ACTIVATIONS[name]


def _check_keys(stored: Mapping[str, Any], family: Family) -> None:
    shape = (_SHAPE | dict(family.keys)).values()
    own = {*shape, *family.flags, *family.own_keys, family.activation_key}
    only = {key: value for key, value in {**_ONLY, **family.only}.items() if key not in own}
    known = {*only, *own, *_READ}
    for key, value in stored.items():
        if key not in known and value is not None and not changes_nothing(key):
            raise CheckpointError(
                f"the key {key} is not understood and may stand for another computation: {shown(value)}"
            )
        if key in family.flags and type(value) not in (bool, type(None)):
            raise CheckpointError(f"{key} must be true or false, got {shown(value)}")
        if key in only and value not in (None, only[key]):
            raise CheckpointError(f"{key} must be {only[key]!r}, got {value!r}")
