"""A Llama-style decoder in plain PyTorch: RMSNorm, rotary positions, SwiGLU, grouped-query attention.

Ids go in, logits come out.

Sources: Touvron et al. 2023, "LLaMA"; Shazeer 2020, "GLU Variants Improve Transformer" (SwiGLU); Ainslie et al. 2023,
"GQA"; Zhang and Sennrich 2019, "Root Mean Square Layer Normalization"; Bai et al. 2023, "Qwen Technical Report" (biases
of queries, keys and values); Yang et al. 2025, "Qwen3 Technical Report" (norms of query and key heads).
"""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minilab_gen.models.attention import AttentionMemory, TrainingAttention
from minilab_gen.models.config import ModelConfig
from minilab_gen.models.kv_cache import KVCache
from minilab_gen.models.linear import DirectModule, Linear, can_pack, init_normal
from minilab_gen.models.rotary import Rotary


class RMSNorm(DirectModule):
    """``x / rms(x) * weight`` over the last dimension."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self._shape, self._eps = (size,), eps
        self._gain: Tensor | None = None

    def freeze(self) -> None:
        """Fix the weight for inference."""
        self._gain = self.weight.detach().float() * self._shape[0] ** 0.5

    def forward(self, x: Tensor) -> Tensor:
        if self._gain is None:
            return F.rms_norm(x, self._shape, self.weight, self._eps)
        return _normed(x, self._gain, self._shape[0] * self._eps)


class HeadNorm(DirectModule):
    """The same over each head, with one weight for all query heads and one for all key heads."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.query = nn.Parameter(torch.ones(config.head_dim))
        self.key = nn.Parameter(torch.ones(config.head_dim))
        self._heads = (config.n_head, config.n_kv_head)
        self._shape, self._eps = (config.head_dim,), config.norm_eps
        self._gain: Tensor | None = None

    def freeze(self) -> None:
        """Fix the weights for inference."""
        self._gain = self._weight().detach().float() * self._shape[0] ** 0.5

    def forward(self, heads: Tensor) -> Tensor:
        """Query heads, then key heads, (tokens, n_head + n_kv_head, head_dim)."""
        if self._gain is None:
            return F.rms_norm(heads, self._shape, None, self._eps) * self._weight()
        return _normed(heads, self._gain, self._shape[0] * self._eps)

    def _weight(self) -> Tensor:
        n_head, n_kv_head = self._heads
        return torch.cat([self.query.expand(n_head, -1), self.key.expand(n_kv_head, -1)])


def _normed(x: Tensor, gain: Tensor, eps: float) -> Tensor:
    """A norm over sums instead of means, in place: three quarters of the time, and each operation rounds exactly.

    ``gain`` is the weight and ``eps`` the norm's own, times the root of the size and times the size.
    """
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32)
    return x.div(length.mul_(length).add_(eps).sqrt_()).mul_(gain).to(x.dtype)


class Block(nn.Module):
    """One layer: attention, then the feed-forward part, each normed before and added to the residual stream."""

    def __init__(self, config: ModelConfig, dropout: float) -> None:
        super().__init__()
        d_model, head_dim = config.d_model, config.head_dim
        self.n_head, self.n_kv_head = config.n_head, config.n_kv_head
        self.head_dim, self._dropout = head_dim, dropout
        self.attention_norm = RMSNorm(d_model, config.norm_eps)
        self.qkv = Linear(d_model, sum(config.qkv_sizes), bias=config.qkv_bias)
        self.head_norm = HeadNorm(config) if config.head_norm else None
        self.output = Linear(config.n_head * head_dim, d_model)
        self.feed_forward_norm = RMSNorm(d_model, config.norm_eps)
        self.gate = Linear(d_model, config.d_hidden)
        self.up = Linear(d_model, config.d_hidden)
        self.down = Linear(config.d_hidden, d_model)

    def forward(
        self, x: Tensor, layer: int, rotary: Rotary, angle: tuple[Tensor, Tensor], memory: AttentionMemory
    ) -> Tensor:
        """The residual stream after this layer, (tokens, d_model)."""
        heads = self.qkv(self._dropped(self.attention_norm(x))).unflatten(1, (-1, self.head_dim))
        queries_keys = heads[:, : self.n_head + self.n_kv_head]  # values are neither normed nor turned
        if self.head_norm is not None:
            queries_keys = self.head_norm(queries_keys)
        turned = rotary.turn(queries_keys, angle)
        queries, keys = turned[:, : self.n_head], turned[:, self.n_head :]
        keys_values = torch.cat([keys, heads[:, -self.n_kv_head :]], dim=-1)  # (tokens, n_kv_head, 2 * head_dim)
        # In float32 whatever the weights are: products of bfloat16 split their sums where they like.
        mixed = memory.attend(layer, queries.float(), keys_values.float())
        x = self.output.plus(mixed.to(x.dtype), x)
        normed = self._dropped(self.feed_forward_norm(x))
        return self.down.plus(self.up.times(normed, self.gate.silu(normed)), x)

    def _dropped(self, x: Tensor) -> Tensor:
        return F.dropout(x, self._dropout) if self.training and self._dropout else x


class MiniLabModel(nn.Module):
    """The decoder. ``model(ids, cache=cache)`` gives logits; with targets, for training, a loss as well."""

    def __init__(self, config: ModelConfig, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.config = config
        weight = torch.empty(config.vocab_size, config.d_model)
        self.embedding: nn.Embedding = nn.Embedding.from_pretrained(weight, freeze=False)
        init_normal(self.embedding.weight, 1.0)  # what nn.Embedding draws, so that a seed gives the model that it gave
        with torch.device("cpu"):  # it follows from the configuration, also where a model is only shapes
            self.rotary = Rotary(config)
        self.blocks = nn.ModuleList(Block(config, dropout) for _ in range(config.n_layer))
        self.norm = RMSNorm(config.d_model, config.norm_eps)
        self.head = Linear(config.d_model, config.vocab_size)
        init_normal(self.embedding.weight, 0.02)
        if config.tied_embeddings:
            self.head.weight = cast(nn.Parameter, self.embedding.weight)
        for name, weight in self.named_parameters():
            if name.endswith(("output.weight", "down.weight")):
                init_normal(weight, 0.02 * (2 * config.n_layer) ** -0.5)

    @property
    def device(self) -> torch.device:
        return self.embedding.weight.device

    @property
    def dtype(self) -> torch.dtype:
        """What the model computes in. The embedding may be stored in another type."""
        return self.norm.weight.dtype

    def freeze(self, *, packed: bool | None = None) -> MiniLabModel:
        """Fix the weights for inference and lay them out for speed; ``packed=None`` packs where it can.

        A packed layer lets go of the weight that it was made from. Raises ValueError where ``packed=True`` cannot be.
        """
        packed = can_pack(self.device, self.dtype) if packed is None else packed
        self.eval().requires_grad_(False)
        for module in self.modules():
            vars(module).update(module.named_children())  # nn.Module would search for them at every use
            if isinstance(module, Linear):
                module.freeze(packed=packed)
            elif isinstance(module, RMSNorm | HeadNorm):
                module.freeze()
        return self

    def forward(
        self, ids: Tensor, targets: Tensor | None = None, cache: KVCache | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Logits (batch, length, vocab_size) of ids (batch, length), and the mean cross-entropy if targets are given.

        With a cache, ids hold the tokens after those it has read, for one sequence (batch 1). Raises ValueError where
        the shape is wrong or the context overflows.
        """
        if ids.dim() != 2 or ids.shape[1] < 1:
            raise ValueError(f"ids must have the shape (batch, length >= 1), got {tuple(ids.shape)}")
        end = ids.shape[1] + (cache.length if cache is not None else 0)
        if end > self.config.context_length:
            raise ValueError(f"a sequence must fit the context of {self.config.context_length} tokens, got {end}")
        if targets is not None:
            return self._with_loss(ids, targets)
        if cache is not None and ids.shape[0] != 1:
            raise ValueError(f"a cache holds one sequence, got a batch of {ids.shape[0]}")
        rows = [self._read(row, cache or KVCache(self.config.n_layer)) for row in ids]
        return torch.stack(rows), None

    def trunk(self, ids: Tensor, memory: AttentionMemory) -> Tensor:
        """The normed residual stream after the last layer, (tokens, d_model), of flat ids (tokens,)."""
        x = self.embedding(ids).to(self.dtype)
        angle = self.rotary.at(memory.positions, x.dtype)
        for layer, block in enumerate(self.blocks):
            x = block(x, layer, self.rotary, angle, memory)
        normed: Tensor = self.norm(x)
        return normed

    def _read(self, ids: Tensor, cache: KVCache) -> Tensor:
        logits: Tensor = self.head(self.trunk(ids, cache.reading(len(ids), ids.device)))
        return logits

    def _with_loss(self, ids: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        batch, length = ids.shape
        logits = self.head(self.trunk(ids.flatten(), TrainingAttention(batch, length, ids.device)))
        loss = F.cross_entropy(logits.float(), targets.flatten())
        return logits.unflatten(0, (batch, length)), loss
