"""A Llama-style decoder in plain PyTorch: RMSNorm, rotary positions, SwiGLU, grouped-query attention.

It must not know where prompts come from or how tokens are chosen: ids go in, logits come out.

Sources: Touvron et al. 2023, "LLaMA"; Su et al. 2021, "RoFormer" (rotary positions); Shazeer 2020, "GLU Variants
Improve Transformer" (SwiGLU); Ainslie et al. 2023, "GQA"; Zhang and Sennrich 2019, "Root Mean Square Layer
Normalization".
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minilab_gen.attention import AttentionMemory, TrainingAttention
from minilab_gen.kv_cache import KVCache
from minilab_gen.linear import DirectModule, Linear, packing_is_available

__all__ = ["KVCache", "MiniLabModel", "ModelConfig", "load"]


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The shape of a model. The defaults are the shape of the shipped base model."""

    vocab_size: int = 2048
    context_length: int = 128
    n_layer: int = 4
    n_head: int = 8
    n_kv_head: int = 1
    d_model: int = 256
    d_hidden: int = 512
    rope_theta: float = 10_000.0
    norm_eps: float = 1e-5
    tied_embeddings: bool = True

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.type == "int" and (type(value) is not int or value < 1):
                raise ValueError(f"{field.name} must be an integer of at least 1, got {value!r}")
            if field.type == "float" and (type(value) not in (int, float) or not 0 < value < float("inf")):
                raise ValueError(f"{field.name} must be a number above 0, got {value!r}")
        if self.d_model % self.n_head or self.head_dim % 2:
            raise ValueError(f"d_model must be n_head times an even number, got {self.d_model} and {self.n_head}")
        if self.n_head % self.n_kv_head:
            raise ValueError(f"n_head must be a multiple of n_kv_head, got {self.n_head} and {self.n_kv_head}")

    @property
    def head_dim(self) -> int:
        return self.d_model // self.n_head


class RMSNorm(DirectModule):
    """``x / rms(x) * weight`` over the last dimension."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self._shape, self._eps = (size,), eps
        self._gain: Tensor | None = None

    def freeze(self) -> None:
        """Fix the weight for inference."""
        self._gain = self.weight.detach() * self._shape[0] ** 0.5

    def forward(self, x: Tensor) -> Tensor:
        if self._gain is None:
            return F.rms_norm(x, self._shape, self.weight, self._eps)
        # The same over sums instead of means, in place: three quarters of the time, and each operation rounds exactly.
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        return x.div(length.mul_(length).add_(self._shape[0] * self._eps).sqrt_()).mul_(self._gain)


class Rotary(nn.Module):
    """Rotary positions: the two halves of each head turned by an angle that grows with the position."""

    cosine: Tensor
    sine: Tensor

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        half = config.head_dim // 2
        frequency = config.rope_theta ** (-torch.arange(half, dtype=torch.float64) / half)
        angle = torch.outer(torch.arange(config.context_length, dtype=torch.float64), frequency)  # (context, half)
        cosine, sine = angle.cos().float(), angle.sin().float()
        self.register_buffer("cosine", torch.cat([cosine, cosine], 1)[:, None], persistent=False)
        self.register_buffer("sine", torch.cat([-sine, sine], 1)[:, None], persistent=False)
        self._half = half

    def at(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """The cosines and signed sines of each position, both (tokens, 1, head_dim)."""
        return self.cosine[positions], self.sine[positions]

    def turn(self, heads: Tensor, angle: tuple[Tensor, Tensor]) -> Tensor:
        """Heads (tokens, n, head_dim) turned by their angle."""
        cosine, sine = angle
        return torch.roll(heads, self._half, -1).mul_(sine).addcmul_(heads, cosine)


class Block(nn.Module):
    """One layer: attention, then the feed-forward part, each normed before and added to the residual stream."""

    def __init__(self, config: ModelConfig, dropout: float) -> None:
        super().__init__()
        d_model, head_dim = config.d_model, config.head_dim
        self.n_head, self.n_kv_head = config.n_head, config.n_kv_head
        self.head_dim, self._dropout = head_dim, dropout
        self.attention_norm = RMSNorm(d_model, config.norm_eps)
        self.qkv = Linear(d_model, (config.n_head + 2 * config.n_kv_head) * head_dim)
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
        turned = rotary.turn(heads[:, : self.n_head + self.n_kv_head], angle)  # values are not turned
        queries, keys = turned[:, : self.n_head], turned[:, self.n_head :]
        keys_values = torch.cat([keys, heads[:, -self.n_kv_head :]], dim=-1)  # (tokens, n_kv_head, 2 * head_dim)
        x = self.output.plus(memory.attend(layer, queries, keys_values), x)
        normed = self._dropped(self.feed_forward_norm(x))
        return self.down.plus(self.up.times(normed, self.gate.silu(normed)), x)

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
        self.norm = RMSNorm(config.d_model, config.norm_eps)
        self.head = Linear(config.d_model, config.vocab_size)
        nn.init.normal_(self.embedding.weight, std=0.02)
        if config.tied_embeddings:
            self.head.weight = cast(nn.Parameter, self.embedding.weight)
        for name, weight in self.named_parameters():
            if name.endswith(("output.weight", "down.weight")):
                nn.init.normal_(weight, std=0.02 * (2 * config.n_layer) ** -0.5)

    @property
    def device(self) -> torch.device:
        return self.embedding.weight.device

    def freeze(self, *, packed: bool | None = None) -> MiniLabModel:
        """Fix the weights for inference and lay them out for speed; ``packed=None`` packs where it can."""
        packed = packing_is_available() and self.device.type == "cpu" if packed is None else packed
        self.eval().requires_grad_(False)
        for module in self.modules():
            vars(module).update(module.named_children())  # nn.Module would search for them at every use
            if isinstance(module, Linear):
                module.freeze(packed=packed)
            elif isinstance(module, RMSNorm):
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
        x = self.embedding(ids)
        angle = self.rotary.at(memory.positions)
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


def load(path: str | Path) -> MiniLabModel:
    """The model of a checkpoint folder, frozen for inference. Errors: :class:`~minilab_gen.errors.CheckpointError`."""
    from minilab_gen.checkpoint import read_model  # a checkpoint knows models, so the import goes this way round

    return read_model(Path(path)).freeze()
