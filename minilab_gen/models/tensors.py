"""The tensors that a model is made of: their names on disk, in the kernels and in the torch decoder. Needs no torch.

On disk the query, key and value projections are three tensors or one, as in the libraries of Hugging Face; the torch
decoder has one, so that one product makes all three.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from minilab_gen.models.config import ModelConfig, Naming

Cut = Callable[[Any], Any]
"""From a numpy array to a part of it, perhaps turned round."""

Shape = tuple[int, ...]


class StoredTensor(NamedTuple):
    """One tensor of a model, and where a checkpoint has it."""

    stored: str
    """The name on disk,"""
    stored_shape: Shape
    """the shape there,"""
    cut: Cut | None
    """and how it comes out of that: None is as it is there."""
    shape: Shape
    kernel: str
    """Its name in :data:`minilab_gen.kernels.decoder.TENSORS`."""
    layer: int
    parameter: str
    """The parameter of :class:`~minilab_gen.models.decoder.MiniLabModel` that holds it,"""
    first: int = 0
    """and from which of its rows on."""


class _Own(NamedTuple):
    """A tensor of a model: its name in the kernels, its shape, and the torch decoder's parameter and first row."""

    kernel: str
    shape: Shape
    parameter: str
    first: int = 0


def stored_tensors(config: ModelConfig) -> Iterator[StoredTensor]:
    """All tensors that a checkpoint of this shape must hold."""
    names = names_of(config)
    for own in _of_model(config):
        yield StoredTensor(names[own.kernel], own.shape, None, own.shape, own.kernel, 0, own.parameter)
    for layer in range(config.n_layer):
        for own in _of_layer(config):
            shape, cut = _CUTS[config.naming](config, own)
            name, parameter = names[own.kernel].format(layer), f"blocks.{layer}.{own.parameter}"
            yield StoredTensor(name, shape, cut, own.shape, own.kernel, layer, parameter, own.first)


def _of_model(config: ModelConfig) -> Iterator[_Own]:
    of_model = (config.vocab_size, config.d_model)
    yield _Own("embedding", of_model, "embedding.weight")
    if config.learned_positions:
        yield _Own("positions", (config.context_length, config.d_model), "positions.weight")
    yield from _norm(config, "norm", has_bias=config.layer_norm)
    if not config.tied_embeddings:
        yield _Own("head", of_model, "head.weight")


def _of_layer(config: ModelConfig) -> Iterator[_Own]:
    for part, tensors in (("attention", _of_attention), ("feed_forward", _of_feed_forward)):
        if config.pre_norm:
            yield from _norm(config, f"{part}_norm", has_bias=config.layer_norm)
        yield from tensors(config)
        if config.post_norm:
            yield from _norm(config, f"{part}_post_norm")


def _norm(config: ModelConfig, name: str, *, has_bias: bool = False) -> Iterator[_Own]:
    yield _Own(name, (config.d_model,), f"{name}.weight")
    if has_bias:
        yield _Own(f"{name}_bias", (config.d_model,), f"{name}.bias")


def _of_attention(config: ModelConfig) -> Iterator[_Own]:
    first = 0
    for name, size in zip(("query", "key", "value"), config.qkv_sizes, strict=True):
        yield _Own(name, (size, config.d_model), "attention.qkv.weight", first)
        if config.qkv_bias:
            yield _Own(f"{name}_bias", (size,), "attention.qkv.bias", first)
        first += size
    if config.head_norm or config.row_norm:
        for name, size in zip(("query", "key"), config.qkv_sizes, strict=False):
            gains = size if config.row_norm else config.head_dim
            yield _Own(f"{name}_norm", (gains,), f"attention.head_norm.{name}.weight")
    yield from _product(config.output_bias, "output", config.d_model, config.qkv_sizes[0], "attention")


def _of_feed_forward(config: ModelConfig) -> Iterator[_Own]:
    d_model, d_hidden, bias = config.d_model, config.d_hidden, config.feed_forward_bias
    if config.gated:
        yield from _product(bias, "gate", d_hidden, d_model, "feed_forward")
    yield from _product(bias, "up", d_hidden, d_model, "feed_forward")
    yield from _product(bias, "down", d_model, d_hidden, "feed_forward")


def _product(has_bias: bool, name: str, rows: int, columns: int, part: str) -> Iterator[_Own]:
    yield _Own(name, (rows, columns), f"{part}.{name}.weight")
    if has_bias:
        yield _Own(f"{name}_bias", (rows,), f"{part}.{name}.bias")


# Names on disk --------------------------------------------------------------------------------------------------------


def _with_biases(weights: Mapping[str, str]) -> dict[str, str]:
    """The names of weights, and those of the biases beside them."""
    return {
        kernel + end: f"{name}.{stored}"
        for kernel, name in weights.items()
        for end, stored in (("", "weight"), ("_bias", "bias"))
    }


_LLAMA: Final = {
    "embedding": "model.embed_tokens",
    "norm": "model.norm",
    "head": "lm_head",
    "attention_norm": "model.layers.{}.input_layernorm",
    "query": "model.layers.{}.self_attn.q_proj",
    "key": "model.layers.{}.self_attn.k_proj",
    "value": "model.layers.{}.self_attn.v_proj",
    "query_norm": "model.layers.{}.self_attn.q_norm",
    "key_norm": "model.layers.{}.self_attn.k_norm",
    "output": "model.layers.{}.self_attn.o_proj",
    "feed_forward_norm": "model.layers.{}.post_attention_layernorm",
    "gate": "model.layers.{}.mlp.gate_proj",
    "up": "model.layers.{}.mlp.up_proj",
    "down": "model.layers.{}.mlp.down_proj",
}
_POST_NORMED: Final = {
    "attention_post_norm": "model.layers.{}.post_attention_layernorm",
    "feed_forward_norm": "model.layers.{}.pre_feedforward_layernorm",
    "feed_forward_post_norm": "model.layers.{}.post_feedforward_layernorm",
}
"""Names of norms where some stand behind parts."""

_FUSED: Final = {
    **dict.fromkeys(("query", "key", "value"), "model.layers.{}.self_attn.qkv_proj"),
    **dict.fromkeys(("gate", "up"), "model.layers.{}.mlp.gate_up_proj"),
}

_NAMES: Final[Mapping[Naming, Mapping[str, str]]] = MappingProxyType(
    {
        "llama": _with_biases(_LLAMA),
        "phi3": _with_biases(_LLAMA | _FUSED),
        "gpt2": _with_biases(
            {
                "embedding": "transformer.wte",
                "positions": "transformer.wpe",
                "norm": "transformer.ln_f",
                "head": "lm_head",
                "attention_norm": "transformer.h.{}.ln_1",
                **dict.fromkeys(("query", "key", "value"), "transformer.h.{}.attn.c_attn"),
                "output": "transformer.h.{}.attn.c_proj",
                "feed_forward_norm": "transformer.h.{}.ln_2",
                "up": "transformer.h.{}.mlp.c_fc",
                "down": "transformer.h.{}.mlp.c_proj",
            }
        ),
        "gpt_neox": _with_biases(
            {
                "embedding": "gpt_neox.embed_in",
                "norm": "gpt_neox.final_layer_norm",
                "head": "embed_out",
                "attention_norm": "gpt_neox.layers.{}.input_layernorm",
                **dict.fromkeys(("query", "key", "value"), "gpt_neox.layers.{}.attention.query_key_value"),
                "output": "gpt_neox.layers.{}.attention.dense",
                "feed_forward_norm": "gpt_neox.layers.{}.post_attention_layernorm",
                "up": "gpt_neox.layers.{}.mlp.dense_h_to_4h",
                "down": "gpt_neox.layers.{}.mlp.dense_4h_to_h",
            }
        ),
    }
)


def names_of(config: ModelConfig) -> Mapping[str, str]:
    """What a checkpoint calls the kernels' tensors; a pair of braces stands for the layer."""
    names = _NAMES[config.naming]
    return {**names, **_with_biases(_POST_NORMED)} if config.post_norm else names


# How they lie there ---------------------------------------------------------------------------------------------------


def _as_they_are(_config: ModelConfig, own: _Own) -> tuple[Shape, Cut | None]:
    return own.shape, None


def _rows(own: _Own, sizes: tuple[int, ...], index: int) -> tuple[Shape, Cut]:
    """One of several that are stored below each other."""
    first = sum(sizes[:index])
    return (sum(sizes), *own.shape[1:]), lambda stored: stored[first : first + sizes[index]]


def _of_phi3(config: ModelConfig, own: _Own) -> tuple[Shape, Cut | None]:
    if own.kernel in _ATTENDING:
        return _rows(own, config.qkv_sizes, _ATTENDING.index(own.kernel))
    if own.kernel in ("gate", "up"):
        return _rows(own, (config.d_hidden, config.d_hidden), ("gate", "up").index(own.kernel))
    return own.shape, None


def _of_gpt2(config: ModelConfig, own: _Own) -> tuple[Shape, Cut | None]:
    """Its matrices are stored the other way round: inputs by outputs."""
    name = own.kernel.removesuffix("_bias")
    if name in _ATTENDING:
        shape, cut = _rows(own, config.qkv_sizes, _ATTENDING.index(name))
        return shape[::-1], lambda stored: cut(stored.T)
    if len(own.shape) == 1:
        return own.shape, None
    return own.shape[::-1], lambda stored: stored.T


def _of_gpt_neox(config: ModelConfig, own: _Own) -> tuple[Shape, Cut | None]:
    """Queries, keys and values of a head are stored together, head by head."""
    name = own.kernel.removesuffix("_bias")
    if name not in _ATTENDING:
        return own.shape, None
    of_heads, index = (config.n_head, 3, config.head_dim), _ATTENDING.index(name)

    def cut(stored: Any) -> Any:
        return stored.reshape(*of_heads, *own.shape[1:])[:, index].reshape(own.shape)

    return (3 * own.shape[0], *own.shape[1:]), cut


_ATTENDING: Final = ("query", "key", "value")

_CUTS: Final[Mapping[Naming, Callable[[ModelConfig, _Own], tuple[Shape, Cut | None]]]] = MappingProxyType(
    {"llama": _as_they_are, "phi3": _of_phi3, "gpt2": _of_gpt2, "gpt_neox": _of_gpt_neox}
)
