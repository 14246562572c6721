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
    "qwen-2": Kind("Qwen2", {"num_key_value_heads": 2, "rope_theta": 1_000_000.0}, shard="60KB"),
    "qwen-2.5": Kind("Qwen2", {"tie_word_embeddings": True, "use_sliding_window": False, "sliding_window": 16}),
    "qwen-3": Kind("Qwen3", {"head_dim": 32, "tie_word_embeddings": True}),
    "qwen-3-biased": Kind("Qwen3", {"head_dim": 24, "attention_bias": True}, dtype=torch.bfloat16),
}

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


def write(folder: Path, kind: Kind, seed: int = 0) -> Any:
    """Write a random model as transformers does, wide enough that its tokens vary; returns it, in float32.

    Biases and norms are random as well.
    """
    import transformers

    config = getattr(transformers, f"{kind.family}Config")(**(SHAPE | kind.config))
    torch.manual_seed(seed)
    model = getattr(transformers, f"{kind.family}ForCausalLM")(config).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            around = 1.0 if name.endswith("norm.weight") else 0.0
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
