"""A decoder from a checkpoint folder: each tensor is mapped, copied into the kernels' layout and let go."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from minilab_gen.kernels.decoder import Decoder, WeightType
from minilab_gen.models.checkpoint import expected_tensors, spoken_vocabulary
from minilab_gen.models.checkpoint_folder import read_config
from minilab_gen.models.config import ModelConfig
from minilab_gen.models.weights import StoredWeights

_OF_MODEL = {"embedding": "model.embed_tokens.weight", "norm": "model.norm.weight", "head": "lm_head.weight"}
"""The kernels' name of a tensor: that on disk."""

_OF_LAYER = {
    "attention_norm": "input_layernorm.weight",
    "query": "self_attn.q_proj.weight",
    "key": "self_attn.k_proj.weight",
    "value": "self_attn.v_proj.weight",
    "query_bias": "self_attn.q_proj.bias",
    "key_bias": "self_attn.k_proj.bias",
    "value_bias": "self_attn.v_proj.bias",
    "query_norm": "self_attn.q_norm.weight",
    "key_norm": "self_attn.k_norm.weight",
    "output": "self_attn.o_proj.weight",
    "feed_forward_norm": "post_attention_layernorm.weight",
    "gate": "mlp.gate_proj.weight",
    "up": "mlp.up_proj.weight",
    "down": "mlp.down_proj.weight",
}
"""The same within a layer."""


def load_decoder(folder: Path, weights: WeightType = "float32", *, slots: int, threads: int) -> Decoder:
    """The decoder of a folder. Raises CheckpointError naming the tensor that is wrong, KernelError for lack of memory.

    Its vocabulary ends where the tokenizer's does, as in :func:`minilab_gen.models.checkpoint.read_model`.
    """
    stored = read_config(folder)
    files = StoredWeights(folder)
    expected = expected_tensors(stored)
    files.check(expected, ("rotary_emb.inv_freq", "lm_head.weight"))
    config = replace(stored, vocab_size=spoken_vocabulary(folder, stored.vocab_size))
    decoder = Decoder(config, weights, slots=slots, threads=threads)
    for name, tensor, layer in names_of(config):
        if tensor in expected:
            rows = config.vocab_size if name in ("embedding", "head") else None
            decoder.set(name, files.read(tensor)[:rows].contiguous(), layer)
    return decoder


def names_of(config: ModelConfig) -> list[tuple[str, str, int]]:
    """The kernels' name, the name on disk and the layer of each tensor that any family has."""
    of_model = [(name, tensor, 0) for name, tensor in _OF_MODEL.items()]
    return of_model + [
        (name, f"model.layers.{layer}.{tensor}", layer)
        for layer in range(config.n_layer)
        for name, tensor in _OF_LAYER.items()
    ]
