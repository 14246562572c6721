"""A linear layer that gives a row the same bits however many rows stand beside it.

Rows go in, rows come out.

Two ways to compute the same product, both row-exact; :meth:`Linear.freeze` chooses between them.

packed
    The weight is laid out once for oneDNN, and its inner product is used directly. Equal bits at every row
    count, with no padding except for a lone long row, and a SiLU that follows is fused. (A sum or product could
    be as well, but its call costs 15 microseconds more than the operation by itself.) These operators are what
    ``torch.compile`` emits for frozen weights; they are not documented, so this file is the only one that
    names them and the worker checks their exactness at start. Not every processor has them for every type of weight.
padded
    ``F.linear`` over rows padded to a multiple of :data:`ROW_TILE`. It differentiates, so training uses it.
"""

from __future__ import annotations

from functools import cache
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

ROW_TILE = 8
"""Rows. ``F.linear`` takes one path for every multiple of 8 rows; fewer rows take others."""

_SILU_PIECE = 16_384
"""Elements. PyTorch splits elementwise work between threads from 32 768 on, wherever the split may fall."""

_SILU_TILE = 64
"""Elements: a multiple of what any processor's vector loop takes at a time."""

_LONE_ROW = 1024
"""Input features. oneDNN sums a lone row of more than these in another order than rows that stand beside others."""

_FEW_ROWS, _LARGE_WEIGHT = 4, 300_000
"""Rows and numbers. Reading a large weight takes all the time that a few rows need, and oneDNN reads it faster for 4
rows than for fewer."""

_PACK_ROWS = 64
"""Rows that oneDNN lays the weight out for. A hint: any row count gives the same bits."""


_TRIAL = 16
"""Rows and features of the product that is tried; a processor that has the operators has them for every size."""


def can_pack(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether weights of this type can be packed here, on this processor and with this build of PyTorch.

    Asked by trying, because the answer depends on the type: with AVX2 alone, float32 can be packed and bfloat16 not.
    """
    return device.type == "cpu" and _packs(dtype)


@cache
def _packs(dtype: torch.dtype) -> bool:
    ones = torch.ones(_TRIAL, _TRIAL, dtype=dtype)
    try:
        tried: Tensor = _product_of_packed()(ones, _pack(ones), None, "none", [], "")
    except (AttributeError, RuntimeError):  # the build has no such operator, the processor no instructions for it
        return False
    return bool((tried == _TRIAL).all())


def _pack(weight: Tensor) -> Tensor:
    """The weight in oneDNN's own layout."""
    return cast(Tensor, torch.ops.mkldnn._reorder_linear_weight(weight, _PACK_ROWS))


def _product_of_packed() -> Any:
    """The operator that multiplies by a packed weight."""
    return torch.ops.mkldnn._linear_pointwise.default


def init_normal(weight: Tensor, std: float) -> None:
    """Random numbers for training to begin with; none for a tensor that is only a shape."""
    if not weight.is_meta:
        nn.init.normal_(weight, std=std)


class DirectModule(nn.Module):
    """A module whose call is its ``forward`` and nothing else.

    Calling a module looks for hooks first, which are never set here and which takes longer than some of our operations.
    """

    def __call__(self, *arguments: Any) -> Any:
        return self.forward(*arguments)


class Linear(DirectModule):
    """``x @ weight.T + bias`` for rows ``x`` of shape (rows, in_features), exact per row."""

    def __init__(self, in_features: int, out_features: int, *, bias: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(out_features, in_features))
        self.bias = nn.Parameter(torch.zeros(out_features)) if bias else None
        self._packed: Tensor | None = None
        is_large = in_features * out_features >= _LARGE_WEIGHT or in_features > _LONE_ROW
        self._fewest_rows = _FEW_ROWS if is_large else 1
        self._product: Any = None  # the operator, looked up once: finding it takes microseconds
        init_normal(self.weight, 0.02)

    def freeze(self, *, packed: bool) -> None:
        """Fix the weight for inference. A packed layer keeps its own layout of it and lets ``weight`` go.

        Raises ValueError where a layer is packed already and should not be, or cannot be packed here.
        """
        self.requires_grad_(False)
        if self._packed is not None and not packed:
            raise ValueError("a packed layer has let its weight go; read the model again to have it unpacked")
        if packed and self._packed is None:
            if not can_pack(self.weight.device, self.weight.dtype):
                raise ValueError(
                    f"{self.weight.dtype} weights cannot be packed on this processor; freeze(packed=False)"
                )
            self._packed, self._product = _pack(self.weight), _product_of_packed()
            self.weight = nn.Parameter(self.weight.new_empty(0), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        """The plain product, (rows, out_features)."""
        if self._packed is None:
            return self._padded(x)
        return self._pointwise(x, "none")

    def silu(self, x: Tensor) -> Tensor:
        """SiLU of the product, (rows, out_features)."""
        if self._packed is None:
            return _silu(self._padded(x))
        return self._pointwise(x, "swish")

    def times(self, x: Tensor, other: Tensor) -> Tensor:
        """The product multiplied by ``other``, elementwise, (rows, out_features)."""
        product = self.forward(x)
        return product * other if self._packed is None else product.mul_(other)

    def plus(self, x: Tensor, other: Tensor) -> Tensor:
        """The product added to ``other``, (rows, out_features)."""
        product = self.forward(x)
        return product + other if self._packed is None else product.add_(other)

    def _padded(self, x: Tensor) -> Tensor:
        rows = x.shape[0]
        missing = -rows % ROW_TILE
        if not missing:
            return F.linear(x, self.weight, self.bias)
        return F.linear(F.pad(x, (0, 0, 0, missing)), self.weight, self.bias)[:rows]

    def _pointwise(self, x: Tensor, attribute: str) -> Tensor:
        rows = len(x)
        if rows < self._fewest_rows:
            return self._pointwise(F.pad(x, (0, 0, 0, self._fewest_rows - rows)), attribute)[:rows]
        return cast(Tensor, self._product(x, self._packed, self.bias, attribute, [], ""))


def _silu(x: Tensor) -> Tensor:
    """SiLU with the same bits at every row count and every number of threads.

    What a thread has left over after whole vectors takes another ``exp``, with another last bit. So no piece here is
    split between threads, and none has a rest.
    """
    if x.requires_grad:  # training, where only speed counts
        return F.silu(x)
    flat = F.pad(x.flatten(), (0, -x.numel() % _SILU_TILE))
    for piece in flat.split(_SILU_PIECE):
        F.silu(piece, inplace=True)
    return flat[: x.numel()].view_as(x)
