"""The families of models that are served: what each has of its own, and how ``config.json`` says what a model is.

It must not know torch. A key of ``config.json`` that is not known here is refused: it may stand for a computation
that would not be done.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from minilab_gen.errors import CheckpointError
from minilab_gen.models.config import ModelConfig, RopeScaling
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
    head_dim: int | None = None
    """The size of a head where the config gives none; else it follows from the other sizes."""
    own_keys: frozenset[str] = frozenset()
    """Keys of the config that not every family has."""


_WINDOW = frozenset({"sliding_window"})

FAMILIES = {
    "LlamaForCausalLM": Family("llama"),
    "MistralForCausalLM": Family("mistral", windowed=True, own_keys=_WINDOW),
    "Qwen2ForCausalLM": Family("qwen2", qkv_bias=True, own_keys=_WINDOW),
    "Qwen3ForCausalLM": Family("qwen3", head_norm=True, head_dim=128, own_keys=_WINDOW),
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

_DEFAULTS = {"tie_word_embeddings": False, "rms_norm_eps": 1e-6}
"""What transformers takes for shapes that old configs leave out."""

_DEFAULT_THETA = 10_000.0
"""The same for the base of rotary positions."""

_ONLY: dict[str, Any] = {
    "add_cross_attention": False,
    "attention_bias": False,
    "hidden_act": "silu",
    "is_encoder_decoder": False,
    "mlp_bias": False,
    "partial_rotary_factor": 1.0,
    "pruned_heads": {},
    "rope_interleaved": False,
    "tie_encoder_decoder": False,
    "use_mrope": False,
    "use_sliding_window": False,
}
"""Keys that may be left out but say nothing else, because another model would be meant."""

_READ = {"architectures", "head_dim", "layer_types", "model_type", "rope_parameters", "rope_scaling", "rope_theta"}
"""Keys that are read one by one below."""

# fmt: off
_HARMLESS = {
    "_attn_implementation", "_attn_implementation_autoset", "_name_or_path", "attention_dropout", "bad_words_ids",
    "begin_suppress_tokens", "bos_token_id", "chunk_size_feed_forward", "decoder_start_token_id", "diversity_penalty",
    "do_sample", "dtype", "early_stopping", "encoder_no_repeat_ngram_size", "eos_token_id",
    "exponential_decay_length_penalty", "finetuning_task", "forced_bos_token_id", "forced_eos_token_id", "id2label",
    "initializer_range", "is_decoder", "is_llama_config", "label2id", "length_penalty", "max_length",
    "max_sequence_length", "max_window_layers", "min_length", "no_repeat_ngram_size", "num_beam_groups", "num_beams",
    "num_return_sequences", "output_attentions", "output_hidden_states", "output_scores", "pad_token_id", "prefix",
    "pretraining_tp", "problem_type", "remove_invalid_values", "repetition_penalty", "return_dict",
    "return_dict_in_generate", "sep_token_id", "suppress_tokens", "task_specific_params", "temperature",
    "tf_legacy_loss", "tokenizer_class", "top_k", "top_p", "torch_dtype", "torchscript", "transformers.js_config",
    "transformers_version", "typical_p", "unk_token_id", "unsloth_fixed", "unsloth_version", "use_bfloat16",
    "use_cache",
}
# fmt: on
"""Keys that do not touch the logits: about training, storage, and how others generate."""

_SCALING = {field.name for field in fields(RopeScaling)}


def config_of(stored: Mapping[str, Any]) -> ModelConfig:
    """The shape that the content of ``config.json`` gives. Raises CheckpointError for all that is not served."""
    family = _family_of(stored)
    _check_keys(stored, family)
    shape = {ours: _required(stored, theirs) for ours, theirs in _SHAPE.items()}
    if family.windowed:
        shape["context_length"] = _within_window(shape["context_length"], stored.get("sliding_window"))
    theta, scaling = _rope(stored)
    try:
        config = ModelConfig(
            **shape,
            own_head_dim=_first(stored.get("head_dim"), family.head_dim),
            rope_theta=theta,
            rope_scaling=scaling,
            qkv_bias=family.qkv_bias,
            head_norm=family.head_norm,
        )
    except ValueError as error:
        raise CheckpointError(str(error)) from error
    follows = config.d_model == config.n_head * config.head_dim
    return replace(config, own_head_dim=None) if follows else config


def described(config: ModelConfig) -> dict[str, Any]:
    """The content of ``config.json`` for a shape: the first family that has it."""
    traits = (config.qkv_bias, config.head_norm)
    found = [name for name, family in FAMILIES.items() if (family.qkv_bias, family.head_norm) == traits]
    if not found:
        raise CheckpointError(f"no family has qkv_bias {config.qkv_bias} and head_norm {config.head_norm}")
    scaling = {"rope_type": "llama3", **asdict(config.rope_scaling)} if config.rope_scaling else None
    return {
        "architectures": found[:1],
        "model_type": FAMILIES[found[0]].model_type,
        **{theirs: getattr(config, ours) for ours, theirs in _SHAPE.items()},
        "head_dim": config.head_dim,
        "rope_theta": config.rope_theta,
        "rope_scaling": scaling,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
    }


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
    known = set(_SHAPE.values()) | set(_ONLY) | _READ | _HARMLESS | family.own_keys
    for key, value in stored.items():
        if key not in known and value is not None:
            raise CheckpointError(
                f"the key {key} is not understood and may stand for another computation: {shown(value)}"
            )
        if key in _ONLY and value not in (None, _ONLY[key]):
            raise CheckpointError(f"{key} must be {_ONLY[key]!r}, got {value!r}")
    for kind in stored.get("layer_types") or []:
        if kind != "full_attention":
            raise CheckpointError(f"layer_types must be full_attention in every layer, got {kind!r}")


def _first(*values: Any) -> Any:
    """The first value that is given, if any is."""
    return next((value for value in values if value is not None), None)


def _required(stored: Mapping[str, Any], key: str) -> Any:
    value = _first(stored.get(key), _DEFAULTS.get(key))
    if key == "num_key_value_heads":
        value = _first(value, stored.get("num_attention_heads"))  # every query head has a key head of its own
    if value is None:
        raise CheckpointError(f"the key {key} is missing")
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


def _rope(stored: Mapping[str, Any]) -> tuple[Any, RopeScaling | None]:
    """The base of rotary positions and how they are scaled. transformers 5 writes both into ``rope_parameters``."""
    rope = stored.get("rope_scaling") or stored.get("rope_parameters") or {}
    if not isinstance(rope, dict):
        raise CheckpointError(f"rope_scaling must be an object, got {rope!r}")
    theta = _first(rope.get("rope_theta"), stored.get("rope_theta"), _DEFAULT_THETA)
    kind = _first(rope.get("rope_type"), rope.get("type"), "default")
    if kind not in ("default", "llama3"):
        raise CheckpointError(f"the rope type must be 'default' or 'llama3', got {kind!r}")
    wanted = _SCALING if kind == "llama3" else set()
    for key, value in rope.items():
        if key not in wanted | {"rope_type", "type", "rope_theta"} and value is not None:
            raise CheckpointError(f"the key {key} is not understood in a rope of type {kind!r}: {shown(value)}")
    if kind == "default":
        return theta, None
    missing = sorted(key for key in wanted if rope.get(key) is None)
    if missing:
        raise CheckpointError(f"a rope of type 'llama3' must have {', '.join(missing)}")
    try:
        return theta, RopeScaling(**{key: rope[key] for key in wanted})
    except ValueError as error:
        raise CheckpointError(f"a rope of type 'llama3': {error}") from error
