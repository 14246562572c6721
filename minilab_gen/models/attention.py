"""Attention of the torch decoder: each query mixes the values of the positions up to its own.

Source: Vaswani et al. 2017, "Attention Is All You Need", section 3.2.1.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def attend(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Mixed values (batch, tokens, n_head * head_dim) of the last ``tokens`` positions.

    ``queries`` is (batch, n_head, tokens, head_dim), ``keys`` and ``values`` (batch, n_kv_head, length, head_dim) with
    all positions so far; neighbouring query heads share a key head.
    """
    tokens, length = queries.shape[2], keys.shape[2]
    seen = None
    if tokens != length:
        seen = torch.ones(tokens, length, dtype=torch.bool, device=queries.device).tril(length - tokens)
    mixed = F.scaled_dot_product_attention(
        queries, keys, values, attn_mask=seen, is_causal=seen is None, enable_gqa=True
    )
    return mixed.transpose(1, 2).flatten(2)
