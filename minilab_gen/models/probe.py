"""A check at start: the kernels compute here what they compute everywhere.

Small models with made-up weights read three sequences, in chunks and together, and draw tokens, with each type of
weight. Among them they have every part that a model can be made of. The hash of all logits and tokens must be that of
these numerics. It takes a few milliseconds, and finds a library that was compiled wrongly, a processor that is told to
flush small numbers to zero, and the like.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from minilab_gen.kernels.decoder import WEIGHT_TYPES, Decoder, WeightType
from minilab_gen.kernels.library import KernelError, backend, numerics
from minilab_gen.kernels.sampler import TokenSampler
from minilab_gen.models.config import ModelConfig
from minilab_gen.models.rope_config import LinearScaling, RopeConfig
from minilab_gen.models.tensors import stored_tensors
from minilab_gen.request import SamplingSettings

_SMALL: Final = ModelConfig(
    vocab_size=83, context_length=48, n_layer=2, n_head=6, n_kv_head=2, d_model=36, d_hidden=52, own_head_dim=12
)
"""No size is a multiple of 16."""

_MODELS: Final = (
    replace(_SMALL, tied_embeddings=False, qkv_bias=True, output_bias=True, head_norm=True),
    replace(
        _SMALL,
        windows=(7, None),
        windowed_rope=RopeConfig(100.0, LinearScaling(2.0)),
        post_norm=True,
        row_norm=True,
        gain_from_one=True,
        activation="gelu_tanh",
        embedding_scale=6.0,
        residual_scale=0.75,
        attention_scale=0.25,
        logit_divisor=2.0,
    ),
    replace(
        _SMALL,
        rope_dim=4,
        unturned_layers=(1,),
        learned_positions=True,
        layer_norm=True,
        feed_forward_bias=True,
        activation="gelu",
        gated=False,
        parallel=True,
        naming="gpt2",
    ),
)

_STEPS: Final = (((0, 0, 1), (1, 0, 20)), ((0, 1, 2), (1, 20, 33), (2, 0, 17)), ((0, 2, 3), (1, 33, 34), (2, 17, 18)))
"""Of each step: sequence, the first of its tokens that are read, and the first that are not."""

_SETTINGS: Final = (
    SamplingSettings(),
    SamplingSettings(temperature=0.8, top_k=20, top_p=0.9, seed=1),
    SamplingSettings(temperature=1.5, seed=2),
)

_HASHES: Final = {1: "08f66405be41b6b6dd94b3530f0f63a6"}
"""By the version of the numerics."""


class _Ramp:
    """Numbers that every machine makes alike: multiples of 2^-18 in an order without a pattern."""

    dtype = "float32"

    def __init__(self, shape: tuple[int, ...], seed: int) -> None:
        self.shape: Sequence[int] = shape
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        self._numbers = array("f", ((((i + 1) * (40_503 + 2 * seed)) % 65_521 - 32_760) / 2**18 for i in range(count)))

    def data_ptr(self) -> int:
        return self._numbers.buffer_info()[0]

    def is_contiguous(self) -> bool:
        return True


def check_probe(threads: int = 2) -> None:
    """Raise KernelError unless the kernels give the probe's bits on this machine."""
    found, wanted = probe_hash(threads), _HASHES[numerics()]
    if found != wanted:
        raise KernelError(
            f"the kernels must give the probe {wanted}, got {found} with {backend()}: this build or this processor "
            "computes other bits, which no job may have; try MINILAB_KERNELS=plain"
        )


def probe_hash(threads: int) -> str:
    """The hash of all logits and tokens of the probe."""
    digest = hashlib.sha256()
    for config in _MODELS:
        for weights in WEIGHT_TYPES:
            _run(config, weights, threads, digest.update)
    return digest.hexdigest()[:32]


def _run(config: ModelConfig, weights: WeightType, threads: int, see: Callable[[bytes], object]) -> None:
    decoder = Decoder(config, weights, slots=len(_SETTINGS), threads=threads)
    for seed, each in enumerate(stored_tensors(config)):
        decoder.set(each.kernel, _Ramp(each.shape, seed), each.layer)
    samplers = [TokenSampler(settings, config.vocab_size) for settings in _SETTINGS]
    for step in _STEPS:
        rows = [(sequence, at) for sequence, first, end in step for at in range(first, end)]
        last = {(sequence, end - 1) for sequence, _, end in step}  # one draw of each: whichever thread comes first
        logits = array("f", bytes(4 * config.vocab_size * len(rows)))
        tokens = decoder.run(
            [(7 * sequence + 5 * at) % config.vocab_size for sequence, at in rows],
            [sequence for sequence, _ in rows],
            [at for _, at in rows],
            range(len(rows)),
            samplers=[samplers[row[0]] if row in last else None for row in rows],
            logits=logits.buffer_info()[0],
        )
        see(logits.tobytes() + array("i", tokens).tobytes())
