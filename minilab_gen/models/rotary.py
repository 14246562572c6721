"""Rotary positions: each head turned by angles that grow with its position.

Sources: Su et al. 2021, "RoFormer"; of the ways to scale angles, Chen et al. 2023, "Extending Context Window of Large
Language Models via Positional Interpolation" (linear); Grattafiori et al. 2024, "The Llama 3 Herd of Models"; Peng et
al. 2023, "YaRN"; Ding et al. 2024, "LongRoPE".
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from minilab_gen.models.config import ModelConfig
from minilab_gen.models.rope_config import LinearScaling, LongScaling, RopeConfig, RopeScaling, YarnScaling


class Rotary(nn.Module):
    """The two halves of each head's first dimensions turned by the angle of its position."""

    cosine: Tensor
    sine: Tensor

    def __init__(self, config: ModelConfig, rope: RopeConfig) -> None:
        super().__init__()
        self._dim = config.turned_dim
        # In float32 as in other libraries, since models were trained with these roundings: far into a long context they
        # add up.
        exponents = torch.arange(0, self._dim, 2).float() / self._dim
        powers = rope.theta**exponents  # (half,)
        frequencies, attention = _scaled(powers, rope)
        angle = torch.outer(torch.arange(config.context_length).float(), frequencies).double()  # (context, half)
        cosine, sine = angle.cos().float() * attention, angle.sin().float() * attention
        self.register_buffer("cosine", torch.cat([cosine, cosine], 1), persistent=False)
        self.register_buffer("sine", torch.cat([-sine, sine], 1), persistent=False)

    def turn(self, heads: Tensor, start: int) -> Tensor:
        """Heads (..., tokens, head_dim) at positions ``start``, ``start + 1``, ..., turned by their angles."""
        at = slice(start, start + heads.shape[-2])
        cosine, sine = self.cosine[at].to(heads.dtype), self.sine[at].to(heads.dtype)
        turned, rest = heads.split([self._dim, heads.shape[-1] - self._dim], -1)
        return torch.cat([turned * cosine + torch.roll(turned, self._dim // 2, -1) * sine, rest], -1)


def _scaled(powers: Tensor, rope: RopeConfig) -> tuple[Tensor, float]:
    """Radians for each position, (half,), and what sines and cosines are multiplied by."""
    match rope.scaling:
        case None:
            return 1.0 / powers, 1.0
        case LinearScaling(factor):
            return 1.0 / powers / factor, 1.0
        case RopeScaling() as scaling:
            return _as_llama3(1.0 / powers, scaling), 1.0
        case YarnScaling() as scaling:
            return _as_yarn(powers, scaling, rope.theta), scaling.attention(math.log)
        case LongScaling() as scaling:
            return 1.0 / (torch.tensor(scaling.divisors) * powers), scaling.attention(math.log)


def _as_llama3(frequencies: Tensor, scaling: RopeScaling) -> Tensor:
    """Frequencies slowed down where they are slow."""
    turns = scaling.original_max_position_embeddings / (2 * math.pi / frequencies)
    share = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    share = share.clamp(0, 1)  # 0: slowed down by the whole factor; 1: as it was
    return (1 - share) * frequencies / scaling.factor + share * frequencies


def _as_yarn(powers: Tensor, scaling: YarnScaling, theta: float) -> Tensor:
    """Frequencies mixed by dimension: the first ones stay, the last ones are divided by the whole factor."""

    def pair_that_turns(times: float) -> float:
        turns = scaling.original_max_position_embeddings / (times * 2 * math.pi)
        return 2 * len(powers) * math.log(turns) / (2 * math.log(theta))

    low, high = pair_that_turns(scaling.beta_fast), pair_that_turns(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, 2 * len(powers) - 1)
    high += 0.001 if low == high else 0
    share = 1 - ((torch.arange(len(powers)).float() - low) / (high - low)).clamp(0, 1)
    return 1.0 / (scaling.factor * powers) * (1 - share) + 1.0 / powers * share
