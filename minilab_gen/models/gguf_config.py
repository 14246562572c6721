"""The metadata of a GGUF file in the words of ``config.json``, which :mod:`minilab_gen.models.families` judges.

Source of the keys: docs/gguf.md of ggml and the constants of the package ``gguf``; of what they mean, llama.cpp.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from minilab_gen.errors import CheckpointError
from minilab_gen.models.config import ModelConfig
from minilab_gen.models.gguf_header import GgufHeader, GgufTensor
from minilab_gen.models.gguf_rope import rope_of
from minilab_gen.models.gguf_weights import Layout
from minilab_gen.request import shown


@dataclass(frozen=True, slots=True)
class _Architecture:
    """What GGUF calls an architecture, by what it is called elsewhere."""

    name: str
    model_type: str
    paired_rows: bool = False
    """Whether rows of queries and keys that turn together stand side by side, and not half a head apart."""
    scales: Mapping[str, str] = field(default_factory=dict)
    """Keys of numbers that only it has: those in ``config.json``."""
    always: Mapping[str, Any] = field(default_factory=dict)
    """Keys that may say nothing else."""
    names: Mapping[str, str] = field(default_factory=dict)
    """Our names of its modules that others lack, or call otherwise."""
    gains_from_one: bool = False
    """Whether folders count gains of norms from 1; here they are whole."""
    fixed: Mapping[str, Any] = field(default_factory=dict)
    """What llama.cpp takes for granted, in the words of ``config.json``."""


_EMBEDDING, _HEAD = "token_embd.weight", "output.weight"

_POST_NORMS: Final = {
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}

ARCHITECTURES: Final = {
    "llama": _Architecture("LlamaForCausalLM", "llama", paired_rows=True),
    "granite": _Architecture(
        "GraniteForCausalLM",
        "granite",
        paired_rows=True,
        scales={
            "attention.scale": "attention_multiplier",
            "embedding_scale": "embedding_multiplier",
            "residual_scale": "residual_multiplier",
            "logit_scale": "logits_scaling",
        },
        always={"rope.scaling.finetuned": True},  # else llama.cpp leaves its positions out
    ),
    "smollm3": _Architecture("SmolLM3ForCausalLM", "smollm3", paired_rows=True),
    "gemma3": _Architecture(
        "Gemma3ForCausalLM",
        "gemma3_text",
        always={"attn_logit_softcapping": 0.0, "final_logit_softcapping": 0.0},
        names={**_POST_NORMS, "ffn_norm": "pre_feedforward_layernorm"},
        gains_from_one=True,
        fixed={"sliding_window_pattern": 6},
    ),
    "olmo2": _Architecture("Olmo2ForCausalLM", "olmo2", names=_POST_NORMS),
    "qwen2": _Architecture("Qwen2ForCausalLM", "qwen2"),
    "qwen3": _Architecture("Qwen3ForCausalLM", "qwen3"),
}

_WHOLE: Final = {
    "context_length": "max_position_embeddings",
    "block_count": "num_hidden_layers",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
}
"""Keys that must be there: the key in ``config.json``."""

_READ: Final = frozenset(
    {
        *_WHOLE,
        *("attention.head_count_kv", "attention.key_length", "attention.value_length", "attention.sliding_window"),
        *("attention.layer_norm_rms_epsilon", "rope.dimension_count", "rope.freq_base", "rope.scale_linear"),
        *("rope.scaling.type", "rope.scaling.factor", "rope.scaling.original_context_length"),
        *("rope.scaling.attn_factor", "rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow"),
        *("rope.freq_base_swa", "attention.sliding_window_pattern"),
    }
)
_HARMLESS: Final = frozenset({"vocab_size", "tensor_data_layout", "rope.scaling.finetuned"})
"""The first two repeat what tensors say, the third is about training."""

_ONLY: Final = {"expert_count": 0, "expert_used_count": 0, "attention.causal": True, "pooling_type": 0}
"""Keys that may be there but say nothing else."""


def described_config(header: GgufHeader) -> dict[str, Any]:
    """What the ``config.json`` of the folder would say. Raises CheckpointError for what stands in no such file."""
    _check_kind(header)
    name = header.architecture
    known = ARCHITECTURES.get(name)
    if known is None:
        rule = f"general.architecture must be one of {', '.join(ARCHITECTURES)}"
        raise CheckpointError(f"{header.path}: {rule}, got {shown(name)}")
    _check_keys(header, name, known)
    config = {theirs: _of_all_layers(header, f"{name}.{key}") for key, theirs in _WHOLE.items()}
    heads = config["num_attention_heads"]
    config["num_key_value_heads"] = _of_all_layers(header, f"{name}.attention.head_count_kv", heads)
    config["head_dim"] = head_dim = _head_dim(header, name, config["hidden_size"], heads)
    rotated = header.get(f"{name}.rope.dimension_count", int)
    return {
        "architectures": [known.name],
        "model_type": known.model_type,
        **config,
        "vocab_size": _embedding(header).shape[0],
        "rms_norm_eps": as_written(header.need(f"{name}.attention.layer_norm_rms_epsilon", float)),
        **{theirs: as_written(header.need(f"{name}.{key}", float)) for key, theirs in known.scales.items()},
        "tie_word_embeddings": _HEAD not in header.tensors,
        "partial_rotary_factor": None if rotated in (None, head_dim) else rotated / head_dim,
        **rope_of(header, name, config["max_position_embeddings"], head_dim),
        **_biases(header, known),
        **known.fixed,
        **_window(header, name),
        **(_of_gemma(header, head_dim) if name == "gemma3" else {}),
    }


def layout_of(header: GgufHeader, config: ModelConfig) -> Layout:
    """What the tensors have of their own."""
    known = ARCHITECTURES[header.architecture]
    heads = {"attn_q": config.n_head, "attn_k": config.n_kv_head} if known.paired_rows else {}
    return Layout(heads, known.names, known.gains_from_one)


def as_written(number: float) -> float:
    """The shortest decimal number that is this float32: ``config.json`` has 1e-5 where a GGUF has 9.9999997e-06."""
    for digits in range(1, 10):
        short = float(f"{number:.{digits}g}")
        if struct.pack("<f", short) == struct.pack("<f", number):
            return short
    return number


def _check_kind(header: GgufHeader) -> None:
    """Refuse files that hold something else than a whole model."""
    kind = header.get("general.type", str) or "model"
    if kind != "model":
        raise CheckpointError(f"{header.path}: general.type must be model, got {shown(kind)}")
    parts = header.get("split.count", int) or 1
    if parts > 1:
        raise CheckpointError(
            f"{header.path} is one of {parts} files; make one of them first, by the first file's name: "
            "llama-gguf-split --merge FIRST.gguf WHOLE.gguf"
        )


def _check_keys(header: GgufHeader, name: str, known: _Architecture) -> None:
    """Refuse keys of the model that may stand for a computation that would not be done."""
    only = _ONLY | dict(known.always)
    for key, value in header.metadata.items():
        own = key.removeprefix(f"{name}.")
        if own == key or own in _READ or own in known.scales:
            continue
        if own in only and value != only[own]:
            raise CheckpointError(f"{header.path}: {key} must be {only[own]}, got {shown(value)}")
        if own not in only and own not in _HARMLESS:
            what = "is not understood and may stand for another computation"
            raise CheckpointError(f"{header.path}: the key {key} {what}: {shown(value)}")


def _of_all_layers(header: GgufHeader, key: str, otherwise: int | None = None) -> int:
    """A number that may be given for each layer, if it is the same in all of them."""
    given = header.metadata.get(key)
    if isinstance(given, array) and len(set(given)) == 1:
        given = given[0]
    if given is None and otherwise is not None:
        return otherwise
    if given is None:
        raise CheckpointError(f"{header.path} lacks the key {key}")
    if type(given) is not int or given < 1:
        raise CheckpointError(f"{header.path}: {key} must be one number of at least 1, got {shown(given)}")
    return given


def _head_dim(header: GgufHeader, name: str, hidden: int, heads: int) -> int:
    keys = header.get(f"{name}.attention.key_length", int)
    values = header.get(f"{name}.attention.value_length", int)
    if None not in (keys, values) and keys != values:
        rule = f"{name}.attention.value_length must be {keys}, the length of keys"
        raise CheckpointError(f"{header.path}: {rule}, got {values}")
    return next((length for length in (keys, values) if length), hidden // heads)


def _embedding(header: GgufHeader) -> GgufTensor:
    found = header.tensors.get(_EMBEDDING)
    if found is None or len(found.shape) != 2:
        got = "none" if found is None else f"the shape {found.shape}"
        raise CheckpointError(f"{header.path} must have {_EMBEDDING}, a row for each token, got {got}")
    return found


def _biases(header: GgufHeader, known: _Architecture) -> dict[str, Any]:
    """A Llama says by its tensors where it has biases; all other families have what they have."""
    if known.name != "LlamaForCausalLM":
        return {}
    biased = {"attention_bias": "blk.0.attn_q.bias", "mlp_bias": "blk.0.ffn_up.bias"}
    return {key: True for key, tensor in biased.items() if tensor in header.tensors}


def _window(header: GgufHeader, name: str) -> dict[str, Any]:
    """A window over which attention ends; a Llama that has one is a Mistral."""
    window = header.get(f"{name}.attention.sliding_window", int)
    if not window:
        return {}
    if name == "llama":
        return {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": window}
    if name == "gemma3":
        return {"sliding_window": window}
    return {"sliding_window": window, "use_sliding_window": True, "max_window_layers": 0}


def _of_gemma(header: GgufHeader, head_dim: int) -> dict[str, Any]:
    """Scores are scaled by the size of a head in all Gemma 3 models but the largest, and so they are in llama.cpp."""
    every = header.get("gemma3.attention.sliding_window_pattern", int)
    if every is not None and every != ARCHITECTURES["gemma3"].fixed["sliding_window_pattern"]:
        raise CheckpointError(f"{header.path}: gemma3.attention.sliding_window_pattern must be 6, got {every}")
    local = header.get("gemma3.rope.freq_base_swa", float) or 10_000.0
    return {"query_pre_attn_scalar": head_dim, "rope_local_base_freq": local}
