"""The families of models that are served: what each has of its own, and how ``config.json`` says what a model is.

It must not know torch. A key of ``config.json`` that is not known here is refused: it may stand for a computation
that would not be done.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from minilab_gen.errors import CheckpointError
from minilab_gen.models.config import ModelConfig
from minilab_gen.models.known_keys import changes_nothing
from minilab_gen.models.rope_settings import ROPE_KEYS, described_scaling, read_rope
from minilab_gen.request import shown

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Family:
    """An architecture of Hugging Face, by what it has of its own; all else is one decoder, in ``model.py``."""

    model_type: str
    qkv_bias: bool = False
    head_norm: bool = False
    windowed: bool = False
    """Whether attention ends at ``sliding_window`` tokens, where the config gives a number."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """What transformers takes for keys that a config leaves out."""
    own_keys: frozenset[str] = frozenset()
    """Keys of the config that not every family has."""


_LLAMA = {
    "vocab_size": 32_000,
    "hidden_size": 4096,
    "intermediate_size": 11_008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
}
_MISTRAL = _LLAMA | {
    "intermediate_size": 14_336,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131_072,
    "sliding_window": 4096,
}
_QWEN2 = _LLAMA | {
    "vocab_size": 151_936,
    "intermediate_size": 22_016,
    "num_key_value_heads": 32,
    "max_position_embeddings": 32_768,
    "max_window_layers": 28,
    "sliding_window": 4096,
    "use_sliding_window": False,
}

_BIAS = frozenset({"attention_bias"})
_WINDOW = frozenset({"sliding_window"})
_SOME_WINDOWS = frozenset({"max_window_layers", "sliding_window", "use_sliding_window"})

FAMILIES = {
    "LlamaForCausalLM": Family("llama", defaults=_LLAMA, own_keys=_BIAS),
    "MistralForCausalLM": Family("mistral", windowed=True, defaults=_MISTRAL, own_keys=_WINDOW),
    "Qwen2ForCausalLM": Family("qwen2", qkv_bias=True, defaults=_QWEN2, own_keys=_SOME_WINDOWS),
    "Qwen3ForCausalLM": Family(
        "qwen3", head_norm=True, defaults=_QWEN2 | {"head_dim": 128}, own_keys=_SOME_WINDOWS | _BIAS
    ),
}

_SHAPE = {
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

_MAY_BE_NULL = {"num_key_value_heads", "sliding_window"}
"""Keys whose null is a value of its own: as many as query heads, and none."""

_ONLY: dict[str, Any] = {
    "add_cross_attention": False,
    "attention_bias": False,
    "hidden_act": "silu",
    "is_encoder_decoder": False,
    "mlp_bias": False,
    "pruned_heads": {},
    "rope_interleaved": False,
    "tie_encoder_decoder": False,
    "use_mrope": False,
    "use_sliding_window": False,
}
"""Keys that may be left out but say nothing else, because another model would be meant."""

_READ = {"architectures", "head_dim", "layer_types", "model_type", *ROPE_KEYS}
"""Keys that are read one by one below."""


def config_of(stored: Mapping[str, Any]) -> ModelConfig:
    """The shape that the content of ``config.json`` gives. Raises CheckpointError for all that is not served."""
    family = _family_of(stored)
    _check_keys(stored, family)
    shape = {ours: _given(stored, family, theirs) for ours, theirs in _SHAPE.items()}
    theta, scaling, shape["context_length"] = read_rope(stored, shape["context_length"])
    if family.windowed:
        shape["context_length"] = _within_window(shape["context_length"], _given(stored, family, "sliding_window"))
    biased = _given(stored, family, "attention_bias") or False
    try:
        config = ModelConfig(
            **shape,
            own_head_dim=_given(stored, family, "head_dim"),
            rope_theta=theta,
            rope_scaling=scaling,
            qkv_bias=family.qkv_bias or biased,
            output_bias=biased,
            head_norm=family.head_norm,
        )
    except ValueError as error:
        raise CheckpointError(str(error)) from error
    follows = config.d_model == config.n_head * config.head_dim
    return replace(config, own_head_dim=None) if follows else config


def described(config: ModelConfig) -> dict[str, Any]:
    """The content of ``config.json`` for a shape: the first family that has it."""
    found = [name for name, family in FAMILIES.items() if _has_traits(family, config)]
    if not found:
        traits = {name: getattr(config, name) for name in ("qkv_bias", "output_bias", "head_norm")}
        raise CheckpointError(f"no family has {', '.join(f'{name} {value}' for name, value in traits.items())}")
    return {
        "architectures": found[:1],
        "model_type": FAMILIES[found[0]].model_type,
        **{theirs: getattr(config, ours) for ours, theirs in _SHAPE.items()},
        "head_dim": config.head_dim,
        "rope_theta": config.rope_theta,
        "rope_scaling": described_scaling(config.rope_scaling),
        "hidden_act": "silu",
        "attention_bias": config.output_bias,
        "mlp_bias": False,
    }


def _has_traits(family: Family, config: ModelConfig) -> bool:
    """Whether a family has a model of this kind; a bias of what attention adds comes with those before it."""
    biased = config.output_bias and "attention_bias" in family.own_keys
    return (family.qkv_bias or biased, biased, family.head_norm) == (
        config.qkv_bias,
        config.output_bias,
        config.head_norm,
    )


def _family_of(stored: Mapping[str, Any]) -> Family:
    architectures = stored.get("architectures") or ["none named"]
    name = architectures[0] if isinstance(architectures, list) else architectures
    if architectures != [name] or name not in FAMILIES:
        got = ", ".join(map(str, architectures)) if isinstance(architectures, list) else architectures
        raise CheckpointError(f"the architecture must be one of {', '.join(FAMILIES)}, got {got}")
    family = FAMILIES[name]
    if stored.get("model_type", family.model_type) != family.model_type:
        raise CheckpointError(f"model_type must be {family.model_type!r} for {name}, got {stored['model_type']!r}")
    return family


def _check_keys(stored: Mapping[str, Any], family: Family) -> None:
    known = set(_SHAPE.values()) | set(_ONLY) | _READ | family.own_keys
    for key, value in stored.items():
        if key not in known and value is not None and not changes_nothing(key):
            raise CheckpointError(
                f"the key {key} is not understood and may stand for another computation: {shown(value)}"
            )
        if key == "attention_bias" and key in family.own_keys and type(value) not in (bool, type(None)):
            raise CheckpointError(f"attention_bias must be true or false, got {shown(value)}")
        if key in _ONLY and key not in family.own_keys and value not in (None, _ONLY[key]):
            raise CheckpointError(f"{key} must be {_ONLY[key]!r}, got {value!r}")
    _check_layers(stored, family)


def _check_layers(stored: Mapping[str, Any], family: Family) -> None:
    """Refuse windows in some layers, unless they are in none or as long as the context."""
    types = stored.get("layer_types")
    for kind in types or []:
        if kind != "full_attention":
            raise CheckpointError(f"layer_types must be full_attention in every layer, got {kind!r}")
    if types or not _given(stored, family, "use_sliding_window"):
        return
    window, first = _given(stored, family, "sliding_window"), _given(stored, family, "max_window_layers")
    context, layers = _given(stored, family, "max_position_embeddings"), _given(stored, family, "num_hidden_layers")
    try:
        slides = window is not None and first < layers and window < context
    except TypeError:  # of something that is no number
        slides = True
    if slides:
        raise CheckpointError(
            f"use_sliding_window must be false, got true: layers from {first!r} on have a window of {window!r} tokens"
        )


def _given(stored: Mapping[str, Any], family: Family, key: str) -> Any:
    """What a key says, or what it says for its family where it is left out; null is a value of a few keys only."""
    value = stored.get(key)
    if value is None and not (key in stored and key in _MAY_BE_NULL):
        value = family.defaults.get(key)
    if value is None and key == "num_key_value_heads":
        return _given(stored, family, "num_attention_heads")  # every query head has a key head of its own
    return value


def _within_window(context_length: Any, window: Any) -> Any:
    """The context, cut to the window of attention: within it attention is full, which is what we compute."""
    if window is None or (type(window) is type(context_length) is int and window >= context_length):
        return context_length
    if type(window) is not int or window < 1:
        raise CheckpointError(f"sliding_window must be an integer of at least 1, got {window!r}")
    _log.warning(
        "the context is %d tokens and not %s: attention over a sliding_window of %d is full only within it",
        window,
        context_length,
        window,
    )
    return window
