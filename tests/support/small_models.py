"""Models small enough for tests: random ones that compute, and stubs that answer what they are told."""

from __future__ import annotations

from typing import cast

import torch
from hypothesis import settings
from tokenizers import Tokenizer as Library
from tokenizers import decoders, models, pre_tokenizers
from torch import Tensor

from minilab_gen.kernels.decoder import WeightType
from minilab_gen.models.config import ModelConfig
from minilab_gen.models.decoder import MiniLabModel
from minilab_gen.models.kernel_model import KernelModel
from minilab_gen.models.kv_cache import KVCache
from minilab_gen.text.tokenizer import Tokenizer

PROPERTY = settings(derandomize=True, deadline=None, max_examples=150)
"""For hypothesis: the same examples in every run, and no limit on the time of one, because machines are loaded."""

EIGHT_TO_ONE = ModelConfig(
    vocab_size=64,
    context_length=32,
    n_layer=2,
    n_head=8,
    n_kv_head=1,
    d_model=64,
    d_hidden=64,
    tied_embeddings=False,  # random tied ones repeat their last token for ever
)
THREE_TO_ONE = ModelConfig(
    vocab_size=61,
    context_length=32,
    n_layer=2,
    n_head=6,
    n_kv_head=2,
    d_model=72,
    d_hidden=56,
    tied_embeddings=False,
)
ONE_TO_ONE = ModelConfig(
    vocab_size=67,
    context_length=37,
    n_layer=1,
    n_head=4,
    n_kv_head=4,
    d_model=48,
    d_hidden=72,
    tied_embeddings=False,
)
SHAPES = {"8:1": EIGHT_TO_ONE, "3:1": THREE_TO_ONE, "1:1": ONE_TO_ONE}
"""One shape for each way of grouping query heads; only the first has sizes that are all multiples of 8."""


def random_model(config: ModelConfig = EIGHT_TO_ONE, *, seed: int = 0) -> MiniLabModel:
    """A torch decoder whose weights are wide enough that its tokens vary."""
    model = MiniLabModel(config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() == 2:
                weight.normal_(std=2 * weight.shape[1] ** -0.5, generator=generator)
    return model


def kernel_model(
    config: ModelConfig = EIGHT_TO_ONE, weights: WeightType = "float32", *, seed: int = 0, threads: int = 1
) -> KernelModel:
    """The kernels' copy of :func:`random_model`."""
    return KernelModel.of(random_model(config, seed=seed), weights, threads=threads)


def tokenizer_of(vocab_size: int) -> Tokenizer:
    """A byte-level tokenizer of so many ids, up to 256: one for each of the first bytes."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())[:vocab_size]
    library = Library(models.BPE({letter: index for index, letter in enumerate(letters)}, []))
    library.decoder = decoders.ByteLevel()
    return Tokenizer(library)


class Stub:
    """A model that answers given logits, the last of them for ever; what it was asked is in ``reads``."""

    def __init__(self, *logits: list[float], context_length: int) -> None:
        self.config = ModelConfig(
            vocab_size=len(logits[0]), context_length=context_length, n_layer=1, n_head=1, d_model=4, d_hidden=1
        )
        self.device = torch.device("cpu")
        self.reads: list[list[int]] = []
        self._logits = [torch.tensor(row) for row in logits]

    def __call__(self, ids: Tensor, targets: Tensor | None = None, cache: KVCache | None = None) -> tuple[Tensor, None]:
        self.reads.append(ids[0].tolist())
        if cache is not None:
            cache.length += ids.shape[1]
        row = self._logits[min(len(self.reads), len(self._logits)) - 1]
        return row.expand(*ids.shape, -1), None


def stub(*logits: list[float], context_length: int = 32) -> MiniLabModel:
    """A :class:`Stub` for a test that wants a model: the rows of logits of its first step, its second, and so on."""
    return cast(MiniLabModel, Stub(*logits, context_length=context_length))


def naming(vocab_size: int, *tokens: int, context_length: int = 32) -> MiniLabModel:
    """A stub whose most probable token is each of these in turn."""
    rows = [[float(index == token) for index in range(vocab_size)] for token in tokens]
    return stub(*rows, context_length=context_length)
