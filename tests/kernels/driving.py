"""Ways to drive a decoder that must all give the same logits, and a digest of them. It must not know pytest."""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from minilab_gen.kernels.decoder import Decoder, WeightType, rope_of
from minilab_gen.kernels.library import check, library
from minilab_gen.models.config import ModelConfig
from minilab_gen.models.rope_config import LinearScaling, LongScaling, RopeConfig, RopeScaling, YarnScaling

Logits = dict[tuple[int, int], Tensor]
"""Of each sequence and position, (vocab,)."""

TINY = ModelConfig(
    vocab_size=83, context_length=64, n_layer=2, n_head=6, n_kv_head=2, d_model=36, d_hidden=52, own_head_dim=12
)
"""No size is a multiple of 16."""

KINDS: Mapping[str, ModelConfig] = {
    "odd": TINY,
    "llama": replace(TINY, vocab_size=96, d_model=64, d_hidden=80, n_head=4, n_kv_head=1, own_head_dim=16),
    "llama-3": replace(TINY, rope=RopeConfig(500_000.0, RopeScaling(8.0, 1.0, 4.0, 32)), tied_embeddings=False),
    "yarn": replace(TINY, rope=RopeConfig(1_000_000.0, YarnScaling(4.0, 16))),
    "linear": replace(TINY, rope=RopeConfig(scaling=LinearScaling(4.0))),
    "longrope": replace(TINY, rope=RopeConfig(scaling=LongScaling((1.0, 1.5, 4.0), 4.0, 16)), rope_dim=6),
    "mistral": replace(TINY, own_head_dim=24, tied_embeddings=False),
    "qwen-2": replace(TINY, qkv_bias=True),
    "biased": replace(TINY, qkv_bias=True, output_bias=True, tied_embeddings=False),
    "qwen-3": replace(TINY, own_head_dim=32, head_norm=True),
    "single": replace(TINY, n_head=5, n_kv_head=1, own_head_dim=4),
    "window": replace(TINY, windows=(5, 17)),
    "gemma-3": replace(
        TINY,
        gain_from_one=True,
        post_norm=True,
        head_norm=True,
        activation="gelu_tanh",
        windows=(7, None),
        windowed_rope=RopeConfig(100.0),
        embedding_scale=6.0,
        attention_scale=0.2,
    ),
    "smollm-3": replace(TINY, unturned_layers=(1,), feed_forward_bias=True, output_bias=True, qkv_bias=True),
    "granite": replace(TINY, embedding_scale=12.0, residual_scale=0.22, attention_scale=0.015625, logit_divisor=8.0),
    "olmo-2": replace(TINY, pre_norm=False, post_norm=True, row_norm=True, tied_embeddings=False),
    "phi-3": replace(TINY, rope_dim=8, windows=(9, 9)),
    "gpt-2": replace(
        TINY,
        rope_dim=0,
        learned_positions=True,
        layer_norm=True,
        qkv_bias=True,
        output_bias=True,
        feed_forward_bias=True,
        gated=False,
        activation="gelu_tanh",
    ),
    "gpt-neox": replace(
        TINY,
        rope_dim=4,
        layer_norm=True,
        qkv_bias=True,
        output_bias=True,
        feed_forward_bias=True,
        gated=False,
        activation="gelu",
        parallel=True,
        tied_embeddings=False,
    ),
}
"""A small model of each family and of awkward sizes."""


def numbers(seed: int, *shape: int) -> Tensor:
    """Numbers from -1 to 1 that every machine makes alike: steps of 2^-23 from a generator of integers."""
    generator = torch.Generator().manual_seed(seed)
    whole = torch.randint(-(2**23), 2**23, shape, generator=generator)
    return whole.float() / 2**23


def tensor_shapes(config: ModelConfig) -> dict[tuple[str, int], tuple[int, ...]]:
    """The kernels' tensors of a shape, by name and layer."""
    queries, keys, _ = config.qkv_sizes
    d, hidden, vocab = config.d_model, config.d_hidden, config.vocab_size
    of_query, of_key = (queries, keys) if config.row_norm else (config.head_dim, config.head_dim)
    biased = config.feed_forward_bias
    of_layer: dict[str, tuple[bool, tuple[int, ...]]] = {
        "attention_norm": (config.pre_norm, (d,)),
        "query": (True, (queries, d)),
        "key": (True, (keys, d)),
        "value": (True, (keys, d)),
        "query_bias": (config.qkv_bias, (queries,)),
        "key_bias": (config.qkv_bias, (keys,)),
        "value_bias": (config.qkv_bias, (keys,)),
        "output_bias": (config.output_bias, (d,)),
        "query_norm": (config.head_norm or config.row_norm, (of_query,)),
        "key_norm": (config.head_norm or config.row_norm, (of_key,)),
        "output": (True, (d, queries)),
        "feed_forward_norm": (config.pre_norm, (d,)),
        "gate": (config.gated, (hidden, d)),
        "up": (True, (hidden, d)),
        "down": (True, (d, hidden)),
        "attention_norm_bias": (config.layer_norm, (d,)),
        "feed_forward_norm_bias": (config.layer_norm, (d,)),
        "attention_post_norm": (config.post_norm, (d,)),
        "feed_forward_post_norm": (config.post_norm, (d,)),
        "gate_bias": (biased and config.gated, (hidden,)),
        "up_bias": (biased, (hidden,)),
        "down_bias": (biased, (d,)),
    }
    shapes: dict[tuple[str, int], tuple[int, ...]] = {("embedding", 0): (vocab, d), ("norm", 0): (d,)}
    if not config.tied_embeddings:
        shapes["head", 0] = (vocab, d)
    if config.layer_norm:
        shapes["norm_bias", 0] = (d,)
    if config.learned_positions:
        shapes["positions", 0] = (config.context_length, d)
    of_every = {name: shape for name, (is_there, shape) in of_layer.items() if is_there}
    return shapes | {(name, layer): shape for layer in range(config.n_layer) for name, shape in of_every.items()}


def tensors_of(config: ModelConfig) -> dict[tuple[str, int], Tensor]:
    """Weights wide enough that logits vary."""
    made = {}
    for seed, (key, shape) in enumerate(tensor_shapes(config).items()):
        values = numbers(seed, *shape)
        is_gain = key[0].endswith("norm")
        made[key] = values * (3.0 / shape[-1] ** 0.5) if len(shape) > 1 else values * 0.3 + (1.0 if is_gain else 0.0)
    return made


def tables_of(config: ModelConfig) -> list[tuple[NDArray[np.float32], NDArray[np.float32]]]:
    """Cosines and sines of each of a model's ropes, both (context, turned_dim / 2)."""
    made = []
    for rope in config.ropes:
        tables = np.empty((2, config.context_length, config.turned_dim // 2), np.float32)
        given = rope_of(rope)
        status = library().mlk_rope_tables(
            ctypes.byref(given), config.turned_dim, config.context_length, *(t.ctypes.data for t in tables)
        )
        check(status)
        made.append((tables[0], tables[1]))
    return made


def decoder_of(config: ModelConfig, weights: WeightType = "float32", *, slots: int = 8, threads: int = 1) -> Decoder:
    """A small decoder with :func:`tensors_of`."""
    decoder = Decoder(config, weights, slots=slots, threads=threads)
    for (name, layer), tensor in tensors_of(config).items():
        decoder.set(name, tensor.contiguous(), layer)
    return decoder


def sequences(config: ModelConfig, lengths: Sequence[int], seed: int = 7) -> list[list[int]]:
    """Prompts of these lengths."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(0, config.vocab_size, (length,), generator=generator).tolist() for length in lengths]


@dataclass(frozen=True, slots=True)
class Piece:
    """Tokens of a sequence that a step reads."""

    sequence: int
    start: int
    end: int
    slot: int


def read(decoder: Decoder, prompts: Sequence[Sequence[int]], steps: Sequence[Sequence[Piece]]) -> Logits:
    """The logits of every token that the steps read."""
    logits: Logits = {}
    for step in steps:
        places = [(piece, at) for piece in step for at in range(piece.start, piece.end)]
        out = torch.empty(len(places), decoder.config.vocab_size)
        decoder.run(
            [prompts[piece.sequence][at] for piece, at in places],
            [piece.slot for piece, _ in places],
            [at for _, at in places],
            range(len(places)),
            logits=out.data_ptr(),
        )
        for (piece, at), row in zip(places, out, strict=True):
            logits[piece.sequence, at] = row
    return logits


def one_by_one(decoder: Decoder, prompts: Sequence[Sequence[int]]) -> Logits:
    """Each token in a step of its own."""
    steps = [[Piece(n, at, at + 1, n % decoder.slots)] for n, ids in enumerate(prompts) for at in range(len(ids))]
    return read(decoder, prompts, steps)


def together(decoder: Decoder, prompts: Sequence[Sequence[int]]) -> Logits:
    """All sequences at once, a token of each in a step."""
    longest = max(map(len, prompts))
    steps = [[Piece(n, at, at + 1, n) for n, ids in enumerate(prompts) if at < len(ids)] for at in range(longest)]
    return read(decoder, prompts, steps)


def chunked(decoder: Decoder, prompts: Sequence[Sequence[int]], chunks: Sequence[int], slot: int = 0) -> Logits:
    """Each sequence alone, in chunks."""
    steps = []
    for n, ids in enumerate(prompts):
        start = 0
        for chunk in (*chunks, len(ids)):
            end = min(start + chunk, len(ids))
            if end > start:
                steps.append([Piece(n, start, end, slot)])
            start = end
    return read(decoder, prompts, steps)


def same_bits(a: Tensor, b: Tensor) -> bool:
    return torch.equal(a.view(torch.int32), b.view(torch.int32))


def differences(a: Logits, b: Logits) -> list[tuple[int, int]]:
    """Where two readings differ in a bit, or are not both there."""
    return [key for key in a.keys() | b.keys() if key not in a or key not in b or not same_bits(a[key], b[key])]


def digest(logits: Logits) -> str:
    """A hash of all logits."""
    hashed = hashlib.sha256()
    for key in sorted(logits):
        hashed.update(logits[key].contiguous().numpy().tobytes())
    return hashed.hexdigest()[:32]
