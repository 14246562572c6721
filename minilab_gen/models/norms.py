"""Norms of the torch decoder.

Sources: Zhang and Sennrich 2019, "Root Mean Square Layer Normalization"; Ba et al. 2016, "Layer Normalization".
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minilab_gen.models.config import ModelConfig


class Norm(nn.Module):
    """The norm of a model over the last dimension, of ``size``: an RMS norm, or a layer norm with a bias."""

    def __init__(self, config: ModelConfig, size: int, *, has_bias: bool = False) -> None:
        super().__init__()
        self._eps, self._offset = config.norm_eps, float(config.gain_from_one)
        self.weight = nn.Parameter(torch.full((size,), 1 - self._offset))
        self.bias = nn.Parameter(torch.zeros(size)) if has_bias else None

    def forward(self, x: Tensor) -> Tensor:
        gain = self.weight + self._offset if self._offset else self.weight
        if self.bias is not None:
            return F.layer_norm(x, gain.shape, gain, self.bias, self._eps)
        return F.rms_norm(x, gain.shape, gain, self._eps)


class HeadNorm(nn.Module):
    """The norms of queries and of keys: each head by itself with one gain for all, or all heads as one row."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        queries, keys, _ = config.qkv_sizes
        self._is_of_rows = config.row_norm
        self.query = Norm(config, queries if config.row_norm else config.head_dim)
        self.key = Norm(config, keys if config.row_norm else config.head_dim)

    def forward(self, queries: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        """Heads of shape (batch, n, tokens, head_dim)."""
        return self._normed(queries, self.query), self._normed(keys, self.key)

    def _normed(self, heads: Tensor, norm: Norm) -> Tensor:
        if not self._is_of_rows:
            normed: Tensor = norm(heads)
            return normed
        rows = heads.transpose(1, 2)  # (batch, tokens, n, head_dim)
        normed = norm(rows.flatten(2))
        return normed.view(rows.shape).transpose(1, 2)
