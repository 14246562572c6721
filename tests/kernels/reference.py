"""The rules of ``source/rules.h`` once more, in numpy: what every logit must be, to the bit. It must not know C++."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
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


def gelu_tanh(x: Floats) -> Floats:
    f = np.float32
    cubed = fma(x * x * x, f(0.044715), x)
    return x / (f(1) + exp(np.minimum(cubed * f(-1.5957691216057308), f(88))))


def gelu(x: Floats) -> Floats:
    f = np.float32
    scaled = x * f(-0.70710678118654752)
    z = np.abs(scaled)
    t = f(1) / fma(z, f(0.5), f(1))
    p = np.full_like(t, f(0.17087277))
    for coefficient in (
        *(-0.82215223, 1.48851587, -1.13520398, 0.27886807, -0.18628806),
        *(0.09678418, 0.37409196, 1.00002368, -1.26551223),
    ):
        p = fma(p, t, f(coefficient))
    beyond = t * exp(fma(-z, z, p))
    result: Floats = x * f(0.5) * np.where(scaled < 0, f(2) - beyond, beyond)
    return result


ACTIVATIONS = {"silu": silu, "gelu_tanh": gelu_tanh, "gelu": gelu}


def blocks_of(x: Floats) -> Floats:
    """(n, 16): a row, and zeros behind it."""
    wide = np.zeros(-(-len(x) // LANES) * LANES, np.float32)
    wide[: len(x)] = x
    return wide.reshape(-1, LANES)


def scale_of(x: Floats, eps: float) -> np.float32:
    """One over the root of the mean square of a row."""
    sums = np.zeros(LANES, np.float32)
    for block in blocks_of(x):
        sums = fma(block, block, sums)
    return np.float32(np.float32(1) / np.sqrt(lane_sum(sums) / np.float32(len(x)) + np.float32(eps)))


def norm(x: Floats, gain: Floats, eps: float, bias: Floats | None = None) -> Floats:
    """RMS norm of one row, or its layer norm where there is a bias."""
    if bias is None:
        return np.asarray(x * scale_of(x, eps) * gain)
    sums = np.zeros(LANES, np.float32)
    for block in blocks_of(x):
        sums = sums + block
    centred = x - lane_sum(sums) / np.float32(len(x))
    return fma(centred * scale_of(centred, eps), gain, bias)


def turned(head: Floats, cosine: Floats, sine: Floats) -> Floats:
    """A head of which the first dimensions are turned, as many as there are angles twice."""
    low, high, rest = np.split(head, [len(cosine), 2 * len(cosine)])
    return np.concatenate([fma(low, cosine, np.float32(0) - high * sine), fma(high, cosine, low * sine), rest])


def attended(query: Floats, keys: Floats, values: Floats, start: int = 0) -> Floats:
    """One head's mix of the keys and values, (length, head_dim), from a position on; lanes are those from 0 on."""
    keys, values = keys[start:], values[start:]
    scores = product(query[None], keys)[0]
    e = exp(scores - scores.max())
    sums = np.zeros(LANES, np.float32)
    for block in blocks_of(np.concatenate([np.zeros(start % LANES, np.float32), e])):
        sums = sums + block
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


class Parts:
    """The parts of a model over the rows of one sequence."""

    def __init__(
        self,
        config: ModelConfig,
        tensors: Mapping[tuple[str, int], Tensor],
        weights: WeightType,
        tables: Sequence[tuple[Floats, Floats]],
    ) -> None:
        self.config, self.tables = config, tables
        matrices = {key: tensor for key, tensor in tensors.items() if tensor.dim() == 2 and key[0] != "positions"}
        self.matrix = {key: Weight(tensor, weights) for key, tensor in matrices.items()}
        self.vector = {key: tensor.numpy() for key, tensor in tensors.items() if key not in matrices}
        for key, values in self.vector.items():
            if config.gain_from_one and key[0].endswith("norm"):
                self.vector[key] = np.float32(1) + values

    def normed(self, x: Floats, name: str, layer: int) -> Floats:
        """Each row; as it is where the model has no such norm."""
        gain, bias = self.vector.get((name, layer)), self.vector.get((f"{name}_bias", layer))
        return x if gain is None else np.stack([norm(row, gain, self.config.norm_eps, bias) for row in x])

    def multiplied(self, x: Floats, name: str, layer: int) -> Floats:
        bias = self.vector.get((f"{name}_bias", layer))
        out = self.matrix[name, layer](x)
        return out if bias is None else out + bias

    def heads(self, x: Floats, name: str, count: int, layer: int) -> Floats:
        """Queries, keys or values, (rows, count, head_dim), normed and turned."""
        config = self.config
        out = self.multiplied(x, name, layer)
        if name == "value":
            return out.reshape(len(x), count, -1)
        if config.row_norm:
            out = self.normed(out, f"{name}_norm", layer)
        out = out.reshape(len(x), count, -1)
        if config.head_norm:
            out = np.stack([self.normed(row, f"{name}_norm", layer) for row in out])
        rope = config.rope_of_layer(layer)
        if rope is not None:
            cosine, sine = self.tables[rope]
            out = np.stack([[turned(h, cosine[t], sine[t]) for h in row] for t, row in enumerate(out)])
        return out

    def attention(self, x: Floats, layer: int) -> Floats:
        config = self.config
        group, window = config.n_head // config.n_kv_head, config.window_of_layer(layer)
        default = np.float32(1) / np.sqrt(np.float32(config.head_dim))
        queries = self.heads(x, "query", config.n_head, layer) * np.float32(config.attention_scale or default)
        keys = self.heads(x, "key", config.n_kv_head, layer)
        values = self.heads(x, "value", config.n_kv_head, layer)
        mixed = np.stack(
            [
                np.concatenate(
                    [
                        attended(
                            queries[t, h],
                            keys[: t + 1, h // group],
                            values[: t + 1, h // group],
                            0 if window is None else max(0, t + 1 - window),
                        )
                        for h in range(config.n_head)
                    ]
                )
                for t in range(len(x))
            ]
        )
        return self.multiplied(mixed, "output", layer)

    def feed_forward(self, x: Floats, layer: int) -> Floats:
        activation = ACTIVATIONS[self.config.activation]
        up = self.multiplied(x, "up", layer)
        hidden = activation(self.multiplied(x, "gate", layer)) * up if self.config.gated else activation(up)
        return self.multiplied(hidden, "down", layer)

    def settled(self, added: Floats, part: str, layer: int) -> Floats:
        return self.normed(added, f"{part}_post_norm", layer) * np.float32(self.config.residual_scale)


def logits_of(
    config: ModelConfig,
    tensors: Mapping[tuple[str, int], Tensor],
    weights: WeightType,
    ids: list[int],
    tables: Sequence[tuple[Floats, Floats]],
) -> Floats:
    """(len(ids), vocab) logits; ``tables`` are cosines and sines of each rope, (context, turned_dim / 2)."""
    parts = Parts(config, tensors, weights, tables)
    table = parts.matrix["embedding", 0]
    x: Floats = table.numbers[ids] * table.scale[ids][:, None] * np.float32(config.embedding_scale)
    if config.learned_positions:
        x = x + parts.vector["positions", 0][: len(ids)]
    for layer in range(config.n_layer):
        given = x
        x = x + parts.settled(parts.attention(parts.normed(x, "attention_norm", layer), layer), "attention", layer)
        read = parts.normed(given if config.parallel else x, "feed_forward_norm", layer)
        x = x + parts.settled(parts.feed_forward(read, layer), "feed_forward", layer)
    head = table if config.tied_embeddings else parts.matrix["head", 0]
    return head(parts.normed(x, "norm", 0)) / np.float32(config.logit_divisor)


def logarithm(x: float) -> float:
    """The natural logarithm of a double above 0."""
    m, e = math.frexp(x)
    m, e = 2 * m, e - 1
    if m > math.sqrt(2):
        m, e = m / 2, e + 1
    s = (m - 1) / (m + 1)
    z, p = s * s, 1 / 21
    for n in range(19, 2, -2):
        p = p * z + 1 / n
    return e * 6.93147180369123816490e-01 + (2 * s + (2 * s * z * p + e * 1.90821492927058770002e-10))


def logprobs(logits: Floats) -> Floats:
    """Of every token of a row whose highest logit is finite."""
    highest = logits.max()
    sums = np.zeros(LANES, np.float32)
    wide = np.full(-(-len(logits) // LANES) * LANES, -np.inf, np.float32)
    wide[: len(logits)] = logits
    for block in wide.reshape(-1, LANES):
        sums = sums + exp(block - highest)
    exact = (logits.astype(np.float64) - np.float64(highest)) - logarithm(float(lane_sum(sums)))
    return np.maximum(exact.astype(np.float32), np.float32(-9999))


def most_probable(logits: Floats, count: int) -> list[int]:
    """Ids, of equals the lowest first."""
    return [int(token) for token in np.argsort(-logits, kind="stable")[:count]]
