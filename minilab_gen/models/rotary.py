"""Rotary positions: each head turned by angles that grow with its position.

Sources: Su et al. 2021, "RoFormer"; Grattafiori et al. 2024, "The Llama 3 Herd of Models" (the scaling of slow angles).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from minilab_gen.models.config import ModelConfig, RopeScaling


class Rotary(nn.Module):
    """The two halves of each head turned by the angle of its position."""

    cosine: Tensor
    sine: Tensor

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self._half = config.head_dim // 2
        # In float32 as in other libraries, since models were trained with these roundings: far into a long context they
        # add up.
        exponents = torch.arange(0, config.head_dim, 2).float() / config.head_dim
        frequencies = 1.0 / config.rope_theta**exponents  # (half,)
        if config.rope_scaling is not None:
            frequencies = _scaled(frequencies, config.rope_scaling)
        angle = torch.outer(torch.arange(config.context_length).float(), frequencies).double()  # (context, half)
        cosine, sine = angle.cos().float(), angle.sin().float()
        self.register_buffer("cosine", torch.cat([cosine, cosine], 1), persistent=False)
        self.register_buffer("sine", torch.cat([-sine, sine], 1), persistent=False)

    def turn(self, heads: Tensor, start: int) -> Tensor:
        """Heads (..., tokens, head_dim) at positions ``start``, ``start + 1``, ..., turned by their angles."""
        at = slice(start, start + heads.shape[-2])
        cosine, sine = self.cosine[at].to(heads.dtype), self.sine[at].to(heads.dtype)
        return heads * cosine + torch.roll(heads, self._half, -1) * sine


def _scaled(frequencies: Tensor, scaling: RopeScaling) -> Tensor:
    """Radians for each position, (half,), slowed down where they are slow."""
    turns = scaling.original_max_position_embeddings / (2 * math.pi / frequencies)
    share = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    share = share.clamp(0, 1)  # 0: slowed down by the whole factor; 1: as it was
    return (1 - share) * frequencies / scaling.factor + share * frequencies
