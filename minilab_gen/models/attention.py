"""Attention of the torch decoder: each query mixes the values of the positions up to its own.

Source: Vaswani et al. 2017, "Attention Is All You Need", section 3.2.1.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def attend(
    queries: Tensor, keys: Tensor, values: Tensor, scale: float | None = None, window: int | None = None
) -> Tensor:
    """Mixed values (batch, tokens, n_head * head_dim) of the last ``tokens`` positions.

    ``queries`` is (batch, n_head, tokens, head_dim), ``keys`` and ``values`` (batch, n_kv_head, length, head_dim) with
    all positions so far; neighbouring query heads share a key head. Scores are multiplied by ``scale``, by default
    ``head_dim ** -0.5``; with a ``window`` only so many positions are seen, a query's own the last of them.
    """
    tokens, length = queries.shape[2], keys.shape[2]
    seen = None
    if tokens != length or window is not None:
        whole = torch.ones(tokens, length, dtype=torch.bool, device=queries.device)
        seen = whole.tril(length - tokens)
        if window is not None:
            seen &= whole.triu(length - tokens - window + 1)
    mixed = F.scaled_dot_product_attention(
        queries, keys, values, attn_mask=seen, is_causal=seen is None, enable_gqa=True, scale=scale
    )
    return mixed.transpose(1, 2).flatten(2)
