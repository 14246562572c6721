"""Zeros that take no memory until they are written, and that can be given back.

The operating system does the bookkeeping: a large anonymous mapping is only addresses, its pages come with the first
write, and a page that is given back reads as zeros again. So a cache can be laid out for the longest sequences and
still cost what is used, while every kernel sees plain tensors.

Source: Prabhu et al. 2024, "vAttention: Dynamic Memory Management for Serving LLMs without PagedAttention".
"""

from __future__ import annotations

import mmap
import sys
from math import prod

import torch
from torch import Tensor

from minilab_gen.errors import MiniLabError

_FLOAT = 4
"""Bytes of a float32."""

_IS_LINUX = sys.platform == "linux"  # elsewhere a page that is given back may keep what it held
_WITHOUT_RESERVE = 0x4000 if _IS_LINUX else 0
"""MAP_NORESERVE, which Python 3.11 does not name: more addresses than there is memory are no mistake here."""


class LazyMemory:
    """One float32 tensor of zeros."""

    def __init__(self, shape: tuple[int, ...], device: torch.device) -> None:
        """Raises MiniLabError where the operating system has no room for so many addresses."""
        self.tensor: Tensor
        self._map: mmap.mmap | None = None
        if device.type != "cpu":
            self.tensor = torch.zeros(shape, device=device)
            return
        size = prod(shape) * _FLOAT
        try:
            self._map = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _WITHOUT_RESERVE)
        except (OSError, OverflowError) as error:
            raise MiniLabError(
                f"{size / 1e9:.1f} GB of addresses for keys and values were refused: {error}; use a smaller --max-batch"
            ) from error
        if hasattr(mmap, "MADV_NOHUGEPAGE"):
            self._map.madvise(mmap.MADV_NOHUGEPAGE)  # one written position would take 2 MB
        self.tensor = torch.frombuffer(self._map, dtype=torch.float32).view(shape)

    def clear(self, part: Tensor) -> None:
        """Make a contiguous part of the tensor zero, and give back the pages that lie in it."""
        if self._map is None or not _IS_LINUX:
            part.zero_()
            return
        start = part.data_ptr() - self.tensor.data_ptr()
        end = start + part.numel() * _FLOAT
        first_page = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
        pages_end = end // mmap.PAGESIZE * mmap.PAGESIZE
        if first_page >= pages_end:
            part.zero_()
            return
        flat = part.flatten()
        flat[: (first_page - start) // _FLOAT].zero_()
        flat[(pages_end - start) // _FLOAT :].zero_()
        self._map.madvise(mmap.MADV_DONTNEED, first_page, pages_end - first_page)
