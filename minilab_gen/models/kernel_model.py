"""A model that the kernels compute: the same bits however a sequence is read, on whichever processor.

What the kernels guarantee, and why, is in ``docs/exactness.md``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from minilab_gen.kernels.decoder import LANES, Decoder, WeightType
from minilab_gen.models.config import ModelConfig
from minilab_gen.models.kv_cache import KVCache, check_ids
from minilab_gen.models.tensors import stored_tensors

if TYPE_CHECKING:
    from torch import Tensor

    from minilab_gen.models.decoder import MiniLabModel


class KernelModel:
    """Weights in the kernels' layout, read by any number of decoders; ``model(ids, cache=cache)`` gives logits.

    Calls read one sequence at a time and compute with ``threads`` threads. Batches of many sequences are the engine's.
    """

    device: Final = "cpu"

    def __init__(self, config: ModelConfig, weights: WeightType = "float32", *, threads: int = 1) -> None:
        """A model without weights: :meth:`set` gives it each tensor. Raises KernelError for a shape that cannot be."""
        self.config, self.weights, self.threads = config, weights, threads
        self._decoder = Decoder(config, weights, slots=1, threads=1)
        self.set = self._decoder.set

    @classmethod
    def of(cls, model: MiniLabModel, weights: WeightType = "float32", *, threads: int = 1) -> KernelModel:
        """The kernels' copy of a torch decoder."""
        copy = cls(model.config, weights, threads=threads)
        for each in stored_tensors(model.config):
            rows = slice(each.first, each.first + each.shape[0])
            copy.set(each.kernel, model.get_parameter(each.parameter).detach()[rows].contiguous(), each.layer)
        return copy

    def decoder(self, slots: int, threads: int | None = None) -> Decoder:
        """A decoder over these weights, with caches of its own. Raises KernelError where there is no memory for it."""
        return self._decoder.beside(slots, threads or self.threads)

    @property
    def weight_bytes(self) -> int:
        """What the weights take."""
        return self._decoder.weight_bytes

    @property
    def bytes_of_a_token(self) -> int:
        """What the keys and values of one token take, in float32; a head's value begins at a whole vector."""
        config = self.config
        return config.n_layer * config.n_kv_head * (config.head_dim + -(-config.head_dim // LANES) * LANES) * 4

    def __call__(
        self, ids: Tensor, targets: Tensor | None = None, cache: KVCache | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Logits (batch, length, vocab_size) of ids (batch, length), and the mean cross-entropy if targets are given.

        With a cache, ids hold the tokens after those it has read, for one sequence (batch 1). Raises ValueError where
        the shape is wrong or the context overflows.
        """
        import torch  # which a worker does without: it takes a second, and 200 MB

        check_ids(ids, cache, self.config.context_length)
        logits = torch.empty(*ids.shape, self.config.vocab_size)
        for row, out in zip(ids, logits, strict=True):
            self._read(row, cache or KVCache(self.config.n_layer), out)
        loss = None if targets is None else torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        return logits, loss

    def _read(self, ids: Tensor, cache: KVCache, logits: Tensor) -> None:
        """Read the next ids of a sequence and write their logits, (length, vocab_size)."""
        if cache.decoder is None:
            cache.decoder = self.decoder(slots=1)
        tokens, start = len(ids), cache.length
        positions = range(start, start + tokens)
        cache.decoder.run(ids.tolist(), [0] * tokens, positions, range(tokens), logits=logits.data_ptr())
        cache.read(tokens)
