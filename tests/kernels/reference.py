"""The rules of ``source/rules.h`` once more, in numpy: what every logit must be, to the bit. It must not know C++."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from minilab_gen.kernels.decoder import WeightType
from minilab_gen.models.config import ModelConfig

Floats = NDArray[np.float32]
LANES = 16


def fma(a: Any, b: Any, c: Any) -> Floats:
    """``a * b + c`` rounded once: the sum of an exact product is rounded to odd in float64, then to float32."""
    product = np.asarray(a, np.float64) * np.asarray(b, np.float64)
    addend = np.asarray(c, np.float64)
    total = product + addend
    back = total - product
    lost = (product - (total - back)) + (addend - back)
    bits = np.atleast_1d(total).view(np.int64).copy()
    lost = np.broadcast_to(np.atleast_1d(lost), bits.shape)
    nudged = (lost != 0) & np.isfinite(lost) & (bits % 2 == 0)
    away = (lost > 0) == (np.atleast_1d(total) > 0)
    bits += np.where(nudged, np.where(away, 1, -1), 0)
    rounded: Floats = bits.view(np.float64).astype(np.float32).reshape(total.shape)
    return rounded


def product(x: Floats, weight: Floats) -> Floats:
    """(rows, inputs) by (outputs, inputs): a chain over k for each output."""
    chain = np.zeros((len(x), len(weight)), np.float32)
    for k in range(x.shape[1]):
        chain = fma(x[:, k, None], weight[None, :, k], chain)
    return chain


def lane_sum(lanes: Floats) -> np.float32:
    """16 lanes by the one tree."""
    while len(lanes) > 1:
        half = len(lanes) // 2
        lanes = lanes[:half] + lanes[half:]
    return np.float32(lanes[0])


def exp(x: Any) -> Floats:
    """E to the x, for x up to 88."""
    f, x = np.float32, np.asarray(x, np.float32)
    magic = f(12582912.0)
    clamped = np.maximum(x, f(-87.3))
    n = fma(clamped, f(1.44269504088896341), magic) - magic
    r = fma(n, f(2.12194440e-4), fma(n, f(-0.693359375), clamped))
    p: Any = np.full_like(x, f(1) / f(5040))
    for denominator in (720, 120, 24, 6, 2, 1, 1):
        p = fma(p, r, f(1) / f(denominator))
    result: Floats = np.where(x < f(-87.3), f(0), p * np.exp2(n).astype(np.float32))
    return result


def silu(x: Floats) -> Floats:
    return x / (np.float32(1) + exp(np.minimum(-x, np.float32(88))))


def norm(x: Floats, gain: Floats, eps: float) -> Floats:
    """RMS norm of one row."""
    sums = np.zeros(LANES, np.float32)
    wide = np.zeros(-(-len(x) // LANES) * LANES, np.float32)
    wide[: len(x)] = x
    for block in wide.reshape(-1, LANES):
        sums = fma(block, block, sums)
    mean = lane_sum(sums) / np.float32(len(x)) + np.float32(eps)
    normed: Floats = x * (np.float32(1) / np.sqrt(mean)) * gain
    return normed


def turned(head: Floats, cosine: Floats, sine: Floats) -> Floats:
    low, high = np.split(head, 2)
    return np.concatenate([fma(low, cosine, np.float32(0) - high * sine), fma(high, cosine, low * sine)])


def attended(query: Floats, keys: Floats, values: Floats) -> Floats:
    """One head's mix of (length, head_dim) keys and values."""
    scores = product(query[None], keys)[0]
    e = exp(scores - scores.max())
    sums = np.zeros(LANES, np.float32)
    for i in range(0, len(e), LANES):
        sums[: len(e[i : i + LANES])] += e[i : i + LANES]
    mixed: Floats = product(e[None], np.ascontiguousarray(values.T))[0] * (np.float32(1) / lane_sum(sums))
    return mixed


class Weight:
    """A matrix as it is kept in a type: numbers, and what an output is multiplied by at the end."""

    def __init__(self, tensor: Tensor, weights: WeightType) -> None:
        self.scale = np.ones(len(tensor), np.float32)
        if weights == "bfloat16":
            tensor = tensor.bfloat16().float()
        elif weights == "int8":
            scale = tensor.abs().amax(1) / 127
            tensor, self.scale = torch.round(tensor / scale[:, None]), scale.numpy()
        self.numbers: Floats = tensor.numpy()

    def __call__(self, x: Floats) -> Floats:
        return product(x, self.numbers) * self.scale


def logits_of(
    config: ModelConfig,
    tensors: Mapping[tuple[str, int], Tensor],
    weights: WeightType,
    ids: list[int],
    tables: tuple[Floats, Floats],
) -> Floats:
    """(len(ids), vocab) logits; ``tables`` are cosines and sines, (context, head_dim / 2)."""
    heads, kv_heads, size = config.n_head, config.n_kv_head, config.head_dim
    matrix = {key: Weight(tensor, weights) for key, tensor in tensors.items() if tensor.dim() == 2}
    vector = {key: tensor.numpy() for key, tensor in tensors.items() if tensor.dim() == 1}
    table = matrix["embedding", 0]
    x = table.numbers[ids] * table.scale[ids][:, None]
    for layer in range(config.n_layer):
        normed = np.stack([norm(row, vector["attention_norm", layer], config.norm_eps) for row in x])
        rows = {}
        for name, count in (("query", heads), ("key", kv_heads), ("value", kv_heads)):
            out = matrix[name, layer](normed)
            if config.qkv_bias:
                out = out + vector[f"{name}_bias", layer]
            out = out.reshape(len(ids), count, size)
            if config.head_norm and name != "value":
                out = np.stack([[norm(h, vector[f"{name}_norm", layer], config.norm_eps) for h in row] for row in out])
            if name != "value":
                out = np.stack([[turned(h, tables[0][t], tables[1][t]) for h in row] for t, row in enumerate(out)])
            rows[name] = out
        queries = rows["query"] * (np.float32(1) / np.sqrt(np.float32(size)))
        mixed = np.stack(
            [
                np.concatenate(
                    [
                        attended(
                            queries[t, h],
                            rows["key"][: t + 1, h // (heads // kv_heads)],
                            rows["value"][: t + 1, h // (heads // kv_heads)],
                        )
                        for h in range(heads)
                    ]
                )
                for t in range(len(ids))
            ]
        )
        out = matrix["output", layer](mixed)
        x = x + (out + vector["output_bias", layer] if config.output_bias else out)
        normed = np.stack([norm(row, vector["feed_forward_norm", layer], config.norm_eps) for row in x])
        hidden = silu(matrix["gate", layer](normed)) * matrix["up", layer](normed)
        x = x + matrix["down", layer](hidden)
    normed = np.stack([norm(row, vector["norm", 0], config.norm_eps) for row in x])
    return (table if config.tied_embeddings else matrix["head", 0])(normed)
