"""Tiny random checkpoints of each family, written by transformers.

transformers is imported late: it takes seconds, and warns about Python in ways that are not ours to mend.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from minilab_gen.models.checkpoint import load

CONTEXT = 128


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of model: the class that transformers has for it, and the part of its config that makes the kind."""

    family: str
    config: dict[str, Any] = field(default_factory=dict)
    shard: str = "5GB"
    """The most that one file holds."""
    dtype: torch.dtype = torch.float32


_LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
    "rope_theta": 500_000.0,
}

_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "rope_theta": 10_000.0}
_LONG = {
    "rope_type": "longrope",
    "short_factor": [1.0, 1.2, 1.7, 3.0],
    "long_factor": [1.0, 1.2, 1.7, 3.0],
    "original_max_position_embeddings": 32,
    "rope_theta": 10_000.0,
}

_GEMMA_ROPES = {
    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1_000_000.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 2_000.0},
}
_TYPES = ["full_attention", "sliding_attention"]
_PHI_ROPE = {
    "rope_type": "longrope",
    "short_factor": [1.0, 1.2, 1.7, 3.0, 3.5, 4.0],
    "long_factor": [1.0, 1.2, 1.7, 3.0, 3.5, 4.0],
    "rope_theta": 10_000.0,
    "partial_rotary_factor": 0.75,
}
_HALF = {"rope_type": "default", "rope_theta": 20_000.0, "partial_rotary_factor": 0.5}
_GPT2 = {"n_positions": CONTEXT, "n_embd": 64, "n_layer": 2, "n_head": 8}

KINDS = {
    "llama-2": Kind("Llama", {"num_key_value_heads": 8}, dtype=torch.float16),
    "llama-3": Kind("Llama", {"rope_parameters": _LLAMA3}, shard="60KB"),
    "smollm": Kind(
        "Llama",
        {"hidden_size": 72, "num_attention_heads": 9, "num_key_value_heads": 3, "tie_word_embeddings": True},
        dtype=torch.bfloat16,
    ),
    "tinyllama": Kind("Llama", {"num_key_value_heads": 1, "rms_norm_eps": 1e-5}),
    "llama-biased": Kind("Llama", {"attention_bias": True}),
    "llama-biased-tied": Kind(
        "Llama",
        {"attention_bias": True, "tie_word_embeddings": True, "head_dim": 24, "num_key_value_heads": 1},
        dtype=torch.float16,
    ),
    "llama-yarn": Kind("Llama", {"rope_parameters": _YARN, "tie_word_embeddings": True}),
    "mistral-longrope": Kind("Mistral", {"sliding_window": None, "head_dim": 8, "rope_parameters": _LONG}),
    "mistral": Kind("Mistral", {"sliding_window": None, "head_dim": 24}),
    "mistral-window": Kind("Mistral", {"sliding_window": CONTEXT}),
    "mistral-sliding": Kind("Mistral", {"sliding_window": 11}),
    "qwen-2": Kind("Qwen2", {"num_key_value_heads": 2, "rope_theta": 1_000_000.0}, shard="60KB"),
    "qwen-2.5": Kind("Qwen2", {"tie_word_embeddings": True, "use_sliding_window": False, "sliding_window": 16}),
    "qwen-3": Kind("Qwen3", {"head_dim": 32, "tie_word_embeddings": True}),
    "qwen-3-biased": Kind("Qwen3", {"head_dim": 24, "attention_bias": True}, dtype=torch.bfloat16),
    "qwen-2-sliding": Kind("Qwen2", {"use_sliding_window": True, "sliding_window": 20, "max_window_layers": 1}),
    "qwen-3-sliding": Kind(
        "Qwen3",
        {"use_sliding_window": True, "sliding_window": 5, "layer_types": ["sliding_attention", "full_attention"]},
    ),
    "llama-gelu": Kind("Llama", {"hidden_act": "gelu", "mlp_bias": True}),
    "gemma-3": Kind(
        "Gemma3",
        {"num_hidden_layers": 3, "sliding_window": 13, "sliding_window_pattern": 2, "query_pre_attn_scalar": 24}
        | {"head_dim": 16, "num_key_value_heads": 1},
    ),
    "gemma-3-untied": Kind("Gemma3", {"head_dim": 24, "tie_word_embeddings": False, "rope_parameters": _GEMMA_ROPES}),
    "gemma-3-halves": Kind(
        "Gemma3",
        {"head_dim": 8, "attention_bias": True, "sliding_window": 64, "layer_types": _TYPES},
        dtype=torch.bfloat16,
    ),
    "smollm-3": Kind("SmolLM3", {"num_hidden_layers": 4}),
    "smollm-3-sliding": Kind(
        "SmolLM3", {"no_rope_layers": [0, 1], "use_sliding_window": True, "sliding_window": 9, "mlp_bias": True}
    ),
    "smollm-3-untied": Kind(
        "SmolLM3",
        {"tie_word_embeddings": False, "no_rope_layer_interval": 2, "attention_bias": True, "num_key_value_heads": 8},
        dtype=torch.float16,
    ),
    "granite": Kind(
        "Granite",
        {
            "embedding_multiplier": 12.0,
            "residual_multiplier": 0.22,
            "attention_multiplier": 0.125,
            "logits_scaling": 2.0,
        },
    ),
    "granite-plain": Kind("Granite", {"tie_word_embeddings": True, "attention_bias": True}),
    "granite-biased": Kind(
        "Granite",
        {"mlp_bias": True, "logits_scaling": 0.5, "residual_multiplier": 1.4, "num_key_value_heads": 8},
        dtype=torch.bfloat16,
    ),
    "olmo-2": Kind("Olmo2"),
    "olmo-2-tied": Kind("Olmo2", {"tie_word_embeddings": True, "num_key_value_heads": 8, "rope_theta": 500_000.0}),
    "olmo-2-biased": Kind(
        "Olmo2", {"attention_bias": True, "num_attention_heads": 4, "num_key_value_heads": 1}, dtype=torch.float16
    ),
    "phi-3": Kind("Phi3"),
    "phi-3-window": Kind("Phi3", {"sliding_window": 17, "num_key_value_heads": 8}, dtype=torch.float16),
    "phi-4-mini": Kind(
        "Phi3",
        {
            "pad_token_id": 0,
            "tie_word_embeddings": True,
            "head_dim": 16,
            "hidden_size": 128,
            "rope_parameters": _PHI_ROPE,
        },
    ),
    "gpt-2": Kind("GPT2", _GPT2),
    "gpt-2-wide": Kind("GPT2", _GPT2 | {"n_inner": 80, "activation_function": "gelu", "reorder_and_upcast_attn": True}),
    "gpt-2-untied": Kind("GPT2", _GPT2 | {"tie_word_embeddings": False, "n_layer": 3}, dtype=torch.float16),
    "pythia": Kind(
        "GPTNeoX", {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.25}}
    ),
    "gpt-neox-in-turn": Kind(
        "GPTNeoX", {"use_parallel_residual": False, "attention_bias": False, "rope_parameters": _HALF}
    ),
    "gpt-neox-tied": Kind(
        "GPTNeoX",
        {
            "tie_word_embeddings": True,
            "hidden_act": "gelu_new",
            "rope_parameters": _HALF | {"partial_rotary_factor": 1.0},
        },
        dtype=torch.bfloat16,
    ),
}

ARCHITECTURES = {"GPT2": "GPT2LMHeadModel"}
CONFIGURATIONS = {"Gemma3": "Gemma3TextConfig"}
"""Names of classes in transformers that do not follow from the family's."""


def config_class(family: str) -> Any:
    """The configuration class that transformers has for a family."""
    import transformers

    return getattr(transformers, CONFIGURATIONS.get(family, f"{family}Config"))


SHAPE = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": CONTEXT,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def shape_of(family: str) -> dict[str, Any]:
    """Those keys of the small shape that a family knows."""
    known = config_class(family)().to_dict()
    return {key: value for key, value in SHAPE.items() if key in known}


def write(folder: Path, kind: Kind, seed: int = 0) -> Any:
    """Write a random model as transformers does, wide enough that its tokens vary; returns it, in float32.

    Biases and norms are random as well.
    """
    import transformers

    config = config_class(kind.family)(**(shape_of(kind.family) | {"pad_token_id": 0} | kind.config))
    torch.manual_seed(seed)
    model = getattr(transformers, ARCHITECTURES.get(kind.family, f"{kind.family}ForCausalLM"))(config).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            is_gain = weight.dim() == 1 and name.endswith("weight")
            around = 1.0 if is_gain and kind.family != "Gemma3" else 0.0
            weight.normal_(around, 0.3 if weight.dim() == 1 else 1.5 * weight.shape[1] ** -0.5)
            weight.copy_(weight.to(kind.dtype))
    stored = {name: weight.to(kind.dtype) for name, weight in model.state_dict().items()}
    model.save_pretrained(folder, state_dict=stored, max_shard_size=kind.shard)
    return model


def reload(folder: Path) -> Any:
    """The model that transformers makes of a folder, in float32."""
    import transformers

    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def largest_gap(folder: Path) -> float:
    """How far our logits of a folder are from those of transformers, in the columns that both have."""
    ids = torch.tensor([[index * 7 % SHAPE["vocab_size"] for index in range(CONTEXT)]])
    with torch.no_grad():
        ours = load(folder, threads=1)(ids)[0][0]
        theirs = reload(folder)(ids).logits[0, :, : ours.shape[1]]
    assert theirs.std() > 0.1  # they say something
    return float((ours - theirs).abs().max())
