"""A decoder in plain PyTorch, put together from the parts that a configuration names.

Ids go in, logits come out. It trains, it runs on any device, and it is the independent witness of the kernels
(:mod:`minilab_gen.kernels`), which serve. Its bits depend on the processor and on what is computed together.

Sources: Touvron et al. 2023, "LLaMA"; Shazeer 2020, "GLU Variants Improve Transformer"; Ainslie et al. 2023, "GQA"; Bai
et al. 2023, "Qwen Technical Report" (biases of queries, keys and values); Yang et al. 2025, "Qwen3 Technical Report"
(norms of query and key heads); Gemma Team 2025, "Gemma 3 Technical Report" (norms on both sides of a part, windows in
some layers); Walsh et al. 2024, "2 OLMo 2 Furious" (norms behind parts alone); Bakouch et al. 2025, "SmolLM3" (layers
without positions); Radford et al. 2019, "Language Models are Unsupervised Multitask Learners" (GPT-2: learned
positions); Black et al. 2022, "GPT-NeoX-20B" (parallel parts).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minilab_gen.models.attention import attend
from minilab_gen.models.config import ModelConfig
from minilab_gen.models.kv_cache import KVCache, check_ids
from minilab_gen.models.norms import HeadNorm, Norm
from minilab_gen.models.rotary import Rotary

Past = tuple[Tensor, Tensor]
"""Keys and values, (batch, n_kv_head, length, head_dim)."""

_ACTIVATIONS: Final[Mapping[str, Callable[[Tensor], Tensor]]] = MappingProxyType(
    {"silu": F.silu, "gelu": F.gelu, "gelu_tanh": lambda x: F.gelu(x, approximate="tanh")}
)


class Attention(nn.Module):
    """Grouped-query attention of one layer, over all positions or a window of them."""

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        self._sizes, self._head_dim = config.qkv_sizes, config.head_dim
        self._scale, self._window = config.attention_scale, config.window_of_layer(layer)
        self.qkv = nn.Linear(config.d_model, sum(config.qkv_sizes), bias=config.qkv_bias)
        self.head_norm = HeadNorm(config) if config.head_norm or config.row_norm else None
        self.output = nn.Linear(config.qkv_sizes[0], config.d_model, bias=config.output_bias)

    def forward(self, x: Tensor, rotary: Rotary | None, past: Past | None) -> tuple[Tensor, Past]:
        """What is added to the residual stream, (batch, tokens, d_model), and all keys and values so far."""
        queries, keys, values = (
            part.unflatten(-1, (-1, self._head_dim)).transpose(1, 2) for part in self.qkv(x).split(self._sizes, dim=-1)
        )
        if self.head_norm is not None:
            queries, keys = self.head_norm(queries, keys)
        start = 0 if past is None else past[0].shape[2]
        if rotary is not None:
            queries, keys = rotary.turn(queries, start), rotary.turn(keys, start)
        if past is not None:
            keys, values = torch.cat([past[0], keys], dim=2), torch.cat([past[1], values], dim=2)
        return self.output(attend(queries, keys, values, self._scale, self._window)), (keys, values)


class FeedForward(nn.Module):
    """Activations of one product, which multiply those of another where it is gated, and a product back."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        d_model, d_hidden, bias = config.d_model, config.d_hidden, config.feed_forward_bias
        self._activation = _ACTIVATIONS[config.activation]
        self.gate = nn.Linear(d_model, d_hidden, bias=bias) if config.gated else None
        self.up = nn.Linear(d_model, d_hidden, bias=bias)
        self.down = nn.Linear(d_hidden, d_model, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, tokens, d_model)."""
        hidden = self._activation(self.up(x)) if self.gate is None else self._activation(self.gate(x)) * self.up(x)
        added: Tensor = self.down(hidden)
        return added


class Block(nn.Module):
    """One layer: attention, then the feed-forward part, each with norms before or behind it, added to the stream."""

    def __init__(self, config: ModelConfig, layer: int, dropout: float) -> None:
        super().__init__()

        def norm(is_there: bool, *, before: bool) -> Norm | None:
            return Norm(config, config.d_model, has_bias=before and config.layer_norm) if is_there else None

        self._dropout, self._scale, self._is_parallel = dropout, config.residual_scale, config.parallel
        self.attention_norm = norm(config.pre_norm, before=True)
        self.attention = Attention(config, layer)
        self.attention_post_norm = norm(config.post_norm, before=False)
        self.feed_forward_norm = norm(config.pre_norm, before=True)
        self.feed_forward = FeedForward(config)
        self.feed_forward_post_norm = norm(config.post_norm, before=False)

    def forward(self, x: Tensor, rotary: Rotary | None, past: Past | None) -> tuple[Tensor, Past]:
        """The residual stream after this layer, (batch, tokens, d_model), and all keys and values so far."""
        given = x
        added, kept = self.attention(self._read(x, self.attention_norm), rotary, past)
        x = x + self._settled(added, self.attention_post_norm)
        read = self._read(given if self._is_parallel else x, self.feed_forward_norm)
        return x + self._settled(self.feed_forward(read), self.feed_forward_post_norm), kept

    def _read(self, x: Tensor, norm: Norm | None) -> Tensor:
        x = x if norm is None else norm(x)
        return F.dropout(x, self._dropout) if self.training and self._dropout else x

    def _settled(self, added: Tensor, norm: Norm | None) -> Tensor:
        added = added if norm is None else norm(added)
        return added if self._scale == 1 else added * self._scale


class MiniLabModel(nn.Module):
    """The decoder. ``model(ids, cache=cache)`` gives logits; with targets, for training, a loss as well."""

    def __init__(self, config: ModelConfig, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.d_model)
        learned = config.learned_positions
        self.positions = nn.Embedding(config.context_length, config.d_model) if learned else None
        self.rotary = nn.ModuleList(Rotary(config, rope) for rope in config.ropes)
        self.blocks = nn.ModuleList(Block(config, layer, dropout) for layer in range(config.n_layer))
        self.norm = Norm(config, config.d_model, has_bias=config.layer_norm)
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
        x = self._embedded(ids, cache.length if cache is not None else 0)
        for layer, block in enumerate(self.blocks):
            past = cache.layers[layer] if cache is not None and cache.length else None
            rope = self.config.rope_of_layer(layer)
            x, kept = block(x, None if rope is None else self.rotary[rope], past)
            if cache is not None:
                cache.layers[layer : layer + 1] = [kept]
        if cache is not None:
            cache.read(ids.shape[1])
        logits = self.head(self.norm(x)) / self.config.logit_divisor
        loss = None if targets is None else F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())
        return logits, loss

    def _embedded(self, ids: Tensor, start: int) -> Tensor:
        """(batch, length, d_model) of ids at positions ``start``, ``start + 1``, ..."""
        x: Tensor = self.embedding(ids)
        if self.config.embedding_scale != 1:
            x = x * self.config.embedding_scale
        if self.positions is not None:
            x = x + self.positions.weight[start : start + ids.shape[1]]
        return x
