"""Ways to drive a decoder that must all give the same logits, and a digest of them. It must not know pytest."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from minilab_gen.kernels.decoder import Decoder, WeightType
from minilab_gen.models.config import LinearScaling, ModelConfig, RopeScaling, YarnScaling

Logits = dict[tuple[int, int], Tensor]
"""Of each sequence and position, (vocab,)."""

TINY = ModelConfig(
    vocab_size=83, context_length=64, n_layer=2, n_head=6, n_kv_head=2, d_model=36, d_hidden=52, own_head_dim=12
)
"""No size is a multiple of 16."""

KINDS: Mapping[str, ModelConfig] = {
    "odd": TINY,
    "llama": replace(TINY, vocab_size=96, d_model=64, d_hidden=80, n_head=4, n_kv_head=1, own_head_dim=16),
    "llama-3": replace(TINY, rope_scaling=RopeScaling(8.0, 1.0, 4.0, 32), rope_theta=500_000.0, tied_embeddings=False),
    "yarn": replace(TINY, rope_scaling=YarnScaling(4.0, 16), rope_theta=1_000_000.0),
    "linear": replace(TINY, rope_scaling=LinearScaling(4.0)),
    "mistral": replace(TINY, own_head_dim=24, tied_embeddings=False),
    "qwen-2": replace(TINY, qkv_bias=True),
    "biased": replace(TINY, qkv_bias=True, output_bias=True, tied_embeddings=False),
    "qwen-3": replace(TINY, own_head_dim=32, head_norm=True),
    "single": replace(TINY, n_head=5, n_kv_head=1, own_head_dim=4),
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
    of_layer: dict[str, tuple[int, ...]] = {
        "attention_norm": (d,),
        "query": (queries, d),
        "key": (keys, d),
        "value": (keys, d),
    }
    if config.qkv_bias:
        of_layer |= {"query_bias": (queries,), "key_bias": (keys,), "value_bias": (keys,)}
    if config.output_bias:
        of_layer |= {"output_bias": (d,)}
    if config.head_norm:
        of_layer |= {"query_norm": (config.head_dim,), "key_norm": (config.head_dim,)}
    of_layer |= {
        "output": (d, queries),
        "feed_forward_norm": (d,),
        "gate": (hidden, d),
        "up": (hidden, d),
        "down": (d, hidden),
    }
    shapes: dict[tuple[str, int], tuple[int, ...]] = {("embedding", 0): (vocab, d), ("norm", 0): (d,)}
    if not config.tied_embeddings:
        shapes["head", 0] = (vocab, d)
    return shapes | {(name, layer): shape for layer in range(config.n_layer) for name, shape in of_layer.items()}


def tensors_of(config: ModelConfig) -> dict[tuple[str, int], Tensor]:
    """Weights wide enough that logits vary."""
    made = {}
    for seed, (key, shape) in enumerate(tensor_shapes(config).items()):
        values = numbers(seed, *shape)
        made[key] = (
            values * (3.0 / shape[-1] ** 0.5) if len(shape) > 1 else values * 0.3 + (1.0 if "norm" in key[0] else 0.0)
        )
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
