"""A Llama-style decoder in plain PyTorch: RMSNorm, rotary positions, SwiGLU, grouped-query attention.

Ids go in, logits come out. It trains, it runs on any device, and it is the independent witness of the kernels
(:mod:`minilab_gen.kernels`), which serve. Its bits depend on the processor and on what is computed together.

Sources: Touvron et al. 2023, "LLaMA"; Shazeer 2020, "GLU Variants Improve Transformer" (SwiGLU); Ainslie et al. 2023,
"GQA"; Zhang and Sennrich 2019, "Root Mean Square Layer Normalization"; Bai et al. 2023, "Qwen Technical Report" (biases
of queries, keys and values); Yang et al. 2025, "Qwen3 Technical Report" (norms of query and key heads).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minilab_gen.models.attention import attend
from minilab_gen.models.config import ModelConfig
from minilab_gen.models.kv_cache import KVCache, check_ids
from minilab_gen.models.rotary import Rotary


class HeadNorm(nn.Module):
    """RMSNorm of each head, with one weight for all query heads and one for all key heads."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.query = nn.Parameter(torch.ones(config.head_dim))
        self.key = nn.Parameter(torch.ones(config.head_dim))
        self._shape, self._eps = (config.head_dim,), config.norm_eps

    def forward(self, queries: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        """Heads of shape (..., head_dim)."""
        return (
            F.rms_norm(queries, self._shape, self.query, self._eps),
            F.rms_norm(keys, self._shape, self.key, self._eps),
        )


class Block(nn.Module):
    """One layer: attention, then the feed-forward part, each normed before and added to the residual stream."""

    def __init__(self, config: ModelConfig, dropout: float) -> None:
        super().__init__()
        d_model = config.d_model
        self._sizes, self._head_dim, self._dropout = config.qkv_sizes, config.head_dim, dropout
        self.attention_norm = nn.RMSNorm(d_model, config.norm_eps)
        self.qkv = nn.Linear(d_model, sum(config.qkv_sizes), bias=config.qkv_bias)
        self.head_norm = HeadNorm(config) if config.head_norm else None
        self.output = nn.Linear(config.qkv_sizes[0], d_model, bias=config.output_bias)
        self.feed_forward_norm = nn.RMSNorm(d_model, config.norm_eps)
        self.gate = nn.Linear(d_model, config.d_hidden, bias=False)
        self.up = nn.Linear(d_model, config.d_hidden, bias=False)
        self.down = nn.Linear(config.d_hidden, d_model, bias=False)

    def forward(self, x: Tensor, rotary: Rotary, past: tuple[Tensor, Tensor] | None) -> tuple[Tensor, Tensor, Tensor]:
        """The residual stream after this layer, (batch, tokens, d_model), and all keys and values so far.

        Keys and values, those of ``past`` too, are (batch, n_kv_head, length, head_dim).
        """
        qkv = self.qkv(self._dropped(self.attention_norm(x)))
        queries, keys, values = (
            part.unflatten(-1, (-1, self._head_dim)).transpose(1, 2) for part in qkv.split(self._sizes, dim=-1)
        )
        if self.head_norm is not None:
            queries, keys = self.head_norm(queries, keys)
        start = 0 if past is None else past[0].shape[2]
        queries, keys = rotary.turn(queries, start), rotary.turn(keys, start)
        if past is not None:
            keys, values = torch.cat([past[0], keys], dim=2), torch.cat([past[1], values], dim=2)
        x = x + self.output(attend(queries, keys, values))
        normed = self._dropped(self.feed_forward_norm(x))
        return x + self.down(F.silu(self.gate(normed)) * self.up(normed)), keys, values

    def _dropped(self, x: Tensor) -> Tensor:
        return F.dropout(x, self._dropout) if self.training and self._dropout else x


class MiniLabModel(nn.Module):
    """The decoder. ``model(ids, cache=cache)`` gives logits; with targets, for training, a loss as well."""

    def __init__(self, config: ModelConfig, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.d_model)
        self.rotary = Rotary(config)
        self.blocks = nn.ModuleList(Block(config, dropout) for _ in range(config.n_layer))
        self.norm = nn.RMSNorm(config.d_model, config.norm_eps)
        self.head = nn.Linear(config.d_model, config.vocab_size, bias=False)
        if config.tied_embeddings:
            self.head.weight = self.embedding.weight
        for name, weight in self.named_parameters():
            is_last = name.endswith(("output.weight", "down.weight"))  # of what is added to the residual stream
            if weight.dim() > 1:
                nn.init.normal_(weight, std=0.02 * ((2 * config.n_layer) ** -0.5 if is_last else 1.0))
            elif name.endswith("bias"):
                nn.init.zeros_(weight)

    @property
    def device(self) -> torch.device:
        return self.embedding.weight.device

    def forward(
        self, ids: Tensor, targets: Tensor | None = None, cache: KVCache | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Logits (batch, length, vocab_size) of ids (batch, length), and the mean cross-entropy if targets are given.

        With a cache, ids hold the tokens after those it has read, for one sequence (batch 1). Raises ValueError where
        the shape is wrong or the context overflows.
        """
        check_ids(ids, cache, self.config.context_length)
        x = self.embedding(ids)
        for layer, block in enumerate(self.blocks):
            past = cache.layers[layer] if cache is not None and cache.length else None
            x, *keys_values = block(x, self.rotary, past)
            if cache is not None:
                cache.layers[layer : layer + 1] = [tuple(keys_values)]
        if cache is not None:
            cache.read(ids.shape[1])
        logits = self.head(self.norm(x))
        loss = None if targets is None else F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())
        return logits, loss
