"""The families of models that are served: of which parts each is made, and what its keys in ``config.json`` mean.

It must not know torch. How a key is read is in :mod:`minilab_gen.models.config_json`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from minilab_gen.models.layer_windows import every_layer, later_layers, no_layer, unturned_layers, windowed_types
from minilab_gen.models.rope_settings import by_layer_type, learned, no_layer_turned, partly_turned, whole_heads
from minilab_gen.models.stored_config import StoredConfig

Reader = Callable[[StoredConfig], dict[str, Any]]
"""From the content of ``config.json`` to fields of a ModelConfig."""


@dataclass(frozen=True, slots=True)
class Family:
    """An architecture of Hugging Face."""

    model_type: str
    models: str
    """Those that people know."""
    parts: Mapping[str, Any] = field(default_factory=dict)
    """Fields of a ModelConfig that all its models have."""
    keys: Mapping[str, str] = field(default_factory=dict)
    """Keys of its own, by the field that they give, or in place of the usual ones."""
    flags: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Keys that are true or false, and the fields that they give."""
    only: Mapping[str, Any] = field(default_factory=dict)
    """Keys that may say nothing but this, because another model would be meant."""
    activation_key: str = "hidden_act"
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """What transformers takes for keys that a config leaves out."""
    read_windows: Reader = no_layer
    read_ropes: Reader = whole_heads
    own_keys: frozenset[str] = frozenset()
    """Keys that the readers read."""


_LLAMA: Final = {
    "vocab_size": 32_000,
    "hidden_size": 4096,
    "intermediate_size": 11_008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
    "rope_theta": 10_000.0,
}
_MISTRAL: Final = _LLAMA | {
    "intermediate_size": 14_336,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131_072,
    "sliding_window": 4096,
}
_QWEN2: Final = _LLAMA | {
    "vocab_size": 151_936,
    "intermediate_size": 22_016,
    "num_key_value_heads": 32,
    "max_position_embeddings": 32_768,
    "max_window_layers": 28,
    "sliding_window": 4096,
    "use_sliding_window": False,
}
_GEMMA3: Final = {
    "vocab_size": 262_208,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "sliding_window_pattern": 6,
    "rope_theta": 1_000_000.0,
    "rope_local_base_freq": 10_000.0,
}
_SMOLLM3: Final = _LLAMA | {
    "vocab_size": 128_256,
    "hidden_size": 2048,
    "num_hidden_layers": 36,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "max_position_embeddings": 32_768,
    "tie_word_embeddings": True,
    "use_sliding_window": False,
    "no_rope_layer_interval": 4,
    "rope_theta": 2_000_000.0,
}
_GRANITE: Final = _LLAMA | {
    "embedding_multiplier": 1.0,
    "residual_multiplier": 1.0,
    "attention_multiplier": 1.0,
    "logits_scaling": 1.0,
}
_OLMO2: Final = _LLAMA | {"vocab_size": 50_304, "rms_norm_eps": 1e-5}
_PHI3: Final = _LLAMA | {
    "vocab_size": 32_064,
    "hidden_size": 3072,
    "intermediate_size": 8192,
    "max_position_embeddings": 4096,
    "original_max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
}
_GPT2: Final = {
    "vocab_size": 50_257,
    "n_positions": 1024,
    "n_embd": 768,
    "n_layer": 12,
    "n_head": 12,
    "activation_function": "gelu_new",
    "layer_norm_epsilon": 1e-5,
    "tie_word_embeddings": True,
}
_GPT_NEOX: Final = {
    "vocab_size": 50_432,
    "hidden_size": 6144,
    "num_hidden_layers": 44,
    "num_attention_heads": 64,
    "intermediate_size": 24_576,
    "hidden_act": "gelu",
    "max_position_embeddings": 2048,
    "layer_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "use_parallel_residual": True,
    "attention_bias": True,
    "rotary_emb_base": 10_000.0,
    "rotary_pct": 0.25,
}

_ATTENTION_BIAS: Final = {"attention_bias": ("qkv_bias", "output_bias")}
_BIASES: Final = _ATTENTION_BIAS | {"mlp_bias": ("feed_forward_bias",)}
_WINDOW: Final = frozenset({"sliding_window"})
_SOME_WINDOWS: Final = frozenset({"layer_types", "max_window_layers", "sliding_window", "use_sliding_window"})
_LAYER_NORMED: Final = {"layer_norm": True, "gated": False, "feed_forward_bias": True}

FAMILIES: Final = {
    "LlamaForCausalLM": Family(
        "llama", "Llama 2 and 3, SmolLM, SmolLM2, TinyLlama, and many with other names", flags=_BIASES, defaults=_LLAMA
    ),
    "MistralForCausalLM": Family("mistral", "Mistral", defaults=_MISTRAL, read_windows=every_layer, own_keys=_WINDOW),
    "Qwen2ForCausalLM": Family(
        "qwen2",
        "Qwen2, Qwen2.5",
        parts={"qkv_bias": True},
        defaults=_QWEN2,
        read_windows=later_layers,
        own_keys=_SOME_WINDOWS,
    ),
    "Qwen3ForCausalLM": Family(
        "qwen3",
        "Qwen3",
        parts={"head_norm": True},
        flags=_ATTENTION_BIAS,
        defaults=_QWEN2 | {"head_dim": 128},
        read_windows=later_layers,
        own_keys=_SOME_WINDOWS,
    ),
    "Gemma3ForCausalLM": Family(
        "gemma3_text",
        "Gemma 3 of 270M and 1B",
        parts={"gain_from_one": True, "post_norm": True, "head_norm": True},
        flags=_ATTENTION_BIAS,
        only={"use_bidirectional_attention": False, "hidden_act": "gelu_pytorch_tanh"},  # the latter is said twice
        activation_key="hidden_activation",
        defaults=_GEMMA3,
        read_windows=windowed_types,
        read_ropes=by_layer_type,
        own_keys=frozenset(
            {"layer_types", "query_pre_attn_scalar", "rope_local_base_freq", "sliding_window"}
            | {"sliding_window_pattern", "_sliding_window_pattern"}
        ),
    ),
    "SmolLM3ForCausalLM": Family(
        "smollm3",
        "SmolLM3",
        flags=_BIASES,
        defaults=_SMOLLM3,
        read_windows=unturned_layers,
        read_ropes=no_layer_turned,
        own_keys=_SOME_WINDOWS - {"max_window_layers"} | {"no_rope_layers", "no_rope_layer_interval"},
    ),
    "GraniteForCausalLM": Family(
        "granite",
        "Granite 3, dense",
        keys={
            "embedding_scale": "embedding_multiplier",
            "residual_scale": "residual_multiplier",
            "attention_scale": "attention_multiplier",
            "logit_divisor": "logits_scaling",
        },
        flags=_BIASES,
        defaults=_GRANITE,
    ),
    "Olmo2ForCausalLM": Family(
        "olmo2",
        "OLMo 2",
        parts={"post_norm": True, "pre_norm": False, "row_norm": True},
        flags=_ATTENTION_BIAS,
        defaults=_OLMO2,
    ),
    "Phi3ForCausalLM": Family(
        "phi3",
        "Phi-3, Phi-3.5 and Phi-4 mini",
        parts={"naming": "phi3"},
        only={"full_attn_mod": 1, "interpolate_factor": 1, "lm_head_bias": False},  # said by Phi-4 mini
        defaults=_PHI3,
        read_windows=every_layer,
        read_ropes=partly_turned,
        own_keys=_WINDOW,
    ),
    "GPT2LMHeadModel": Family(
        "gpt2",
        "GPT-2, DistilGPT-2",
        parts={**_LAYER_NORMED, "qkv_bias": True, "output_bias": True, "naming": "gpt2"},
        keys={
            "context_length": "n_positions",
            "n_layer": "n_layer",
            "n_head": "n_head",
            "n_kv_head": "n_head",
            "d_model": "n_embd",
            "d_hidden": "n_inner",
            "norm_eps": "layer_norm_epsilon",
        },
        only={"scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False, "n_special": 0},
        activation_key="activation_function",
        defaults=_GPT2,
        read_ropes=learned,
        own_keys=frozenset(
            {"n_ctx", "reorder_and_upcast_attn"}  # the first is the context once more, the second an order of rounding
            | {f"summary_{end}" for end in ("activation", "proj_to_labels", "type", "use_proj")}  # of another head
        ),
    ),
    "GPTNeoXForCausalLM": Family(
        "gpt_neox",
        "Pythia, GPT-NeoX",
        parts={**_LAYER_NORMED, "naming": "gpt_neox"},
        keys={"norm_eps": "layer_norm_eps", "n_kv_head": "num_attention_heads"},
        flags={**_ATTENTION_BIAS, "use_parallel_residual": ("parallel",)},
        defaults=_GPT_NEOX,
        read_ropes=partly_turned,
        own_keys=frozenset({"rotary_emb_base", "rotary_pct"}),
    ),
}
