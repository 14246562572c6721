"""The tensors that a model is made of: their names on disk, in the kernels and in the torch decoder. Needs no torch.

On disk the query, key and value projections are three tensors, as in the libraries of Hugging Face; the torch decoder
has one, so that one product makes all three.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from minilab_gen.models.config import ModelConfig


class StoredTensor(NamedTuple):
    """One tensor of a checkpoint."""

    stored: str
    """Its name on disk."""
    shape: tuple[int, ...]
    kernel: str
    """Its name in :data:`minilab_gen.kernels.decoder.TENSORS`."""
    layer: int
    parameter: str
    """The parameter of :class:`~minilab_gen.models.decoder.MiniLabModel` that holds it,"""
    first: int = 0
    """and from which of its rows on."""


def stored_tensors(config: ModelConfig) -> Iterator[StoredTensor]:
    """All tensors that a checkpoint of this shape must hold."""
    of_model = (config.vocab_size, config.d_model)
    yield StoredTensor("model.embed_tokens.weight", of_model, "embedding", 0, "embedding.weight")
    yield StoredTensor("model.norm.weight", (config.d_model,), "norm", 0, "norm.weight")
    if not config.tied_embeddings:
        yield StoredTensor("lm_head.weight", of_model, "head", 0, "head.weight")
    for layer in range(config.n_layer):
        for stored, shape, kernel, parameter, first in _of_layer(config):
            yield StoredTensor(
                f"model.layers.{layer}.{stored}", shape, kernel, layer, f"blocks.{layer}.{parameter}", first
            )


def _of_layer(config: ModelConfig) -> Iterator[tuple[str, tuple[int, ...], str, str, int]]:
    """Name on disk, shape, the kernels' name, parameter and first row of each tensor of a layer."""
    d_model, d_hidden = config.d_model, config.d_hidden
    yield "input_layernorm.weight", (d_model,), "attention_norm", "attention_norm.weight", 0
    first = 0
    for name, size in zip(("query", "key", "value"), config.qkv_sizes, strict=True):
        yield f"self_attn.{name[0]}_proj.weight", (size, d_model), name, "qkv.weight", first
        if config.qkv_bias:
            yield f"self_attn.{name[0]}_proj.bias", (size,), f"{name}_bias", "qkv.bias", first
        first += size
    if config.head_norm:
        for name in ("query", "key"):
            yield f"self_attn.{name[0]}_norm.weight", (config.head_dim,), f"{name}_norm", f"head_norm.{name}", 0
    yield "self_attn.o_proj.weight", (d_model, config.qkv_sizes[0]), "output", "output.weight", 0
    if config.output_bias:
        yield "self_attn.o_proj.bias", (d_model,), "output_bias", "output.bias", 0
    yield "post_attention_layernorm.weight", (d_model,), "feed_forward_norm", "feed_forward_norm.weight", 0
    for name in ("gate", "up"):
        yield f"mlp.{name}_proj.weight", (d_hidden, d_model), name, f"{name}.weight", 0
    yield "mlp.down_proj.weight", (d_model, d_hidden), "down", "down.weight", 0
