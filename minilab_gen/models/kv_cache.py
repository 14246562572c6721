"""The keys and values of one sequence, kept so that no token is projected twice."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from minilab_gen.kernels.decoder import Decoder


class KVCache:
    """What a model keeps of one sequence; it grows as tokens are read.

    A :class:`~minilab_gen.models.kernel_model.KernelModel` and a :class:`~minilab_gen.models.decoder.MiniLabModel` keep
    different things in it, so one cache is used with one model.
    """

    def __init__(self, n_layer: int) -> None:
        if n_layer < 1:
            raise ValueError(f"n_layer must be at least 1, got {n_layer}")
        self.n_layer = n_layer
        self.length = 0
        self.projected = 0
        """Tokens that passed through the query, key and value projections, summed over the layers."""
        self.layers: list[tuple[Tensor, Tensor]] = []
        """Of the torch decoder: keys and values of each layer, (n_kv_head, length, head_dim)."""
        self.decoder: Decoder | None = None
        """Of the kernels: a decoder whose first slot holds the sequence."""

    def read(self, tokens: int) -> None:
        """Count tokens that a model has read into it."""
        self.length += tokens
        self.projected += tokens * self.n_layer
