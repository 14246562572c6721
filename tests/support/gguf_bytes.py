"""GGUF files written byte by byte, so that any field may be wrong. It holds no test."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

UINT32, FLOAT32, BOOL, STRING, ARRAY, UINT64 = 4, 6, 7, 8, 9, 10


def text(value: str | bytes) -> bytes:
    """A string as the format has it."""
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def texts(*values: str) -> bytes:
    """An array of strings."""
    return struct.pack("<IQ", STRING, len(values)) + b"".join(map(text, values))


@dataclass
class Tensor:
    """What stands about a tensor, and its bytes."""

    name: str
    dims: Sequence[int]
    """The length of a row first, as there."""
    kind: int = 0
    data: bytes = b""
    offset: int | None = None
    """Where it says that it begins; None is where it does."""
    dimensions: int | None = None
    """How many it says that there are."""


@dataclass
class Draft:
    """A file that may be changed anywhere before it is written."""

    keys: list[tuple[str | bytes, int, bytes]] = field(default_factory=list)
    """Key, type and bytes of the value."""
    tensors: list[Tensor] = field(default_factory=list)
    magic: bytes = b"GGUF"
    version: int = 3
    tensor_count: int | None = None
    key_count: int | None = None
    alignment: int = 32

    def file(self) -> bytes:
        """Its bytes."""
        head = self.magic + struct.pack(
            "<IQQ",
            self.version,
            len(self.tensors) if self.tensor_count is None else self.tensor_count,
            len(self.keys) if self.key_count is None else self.key_count,
        )
        for key, kind, value in self.keys:
            head += text(key) + struct.pack("<I", kind) + value
        data = b""
        for tensor in self.tensors:
            data += b"\0" * (-len(data) % self.alignment)
            offset = len(data) if tensor.offset is None else tensor.offset
            dimensions = len(tensor.dims) if tensor.dimensions is None else tensor.dimensions
            head += text(tensor.name) + struct.pack("<I", dimensions)
            head += b"".join(struct.pack("<Q", dim) for dim in tensor.dims) + struct.pack("<IQ", tensor.kind, offset)
            data += tensor.data
        return head + b"\0" * (-len(head) % self.alignment) + data

    def change(self, **fields: Any) -> Draft:
        """The same with fields of the first tensor, or of the file, changed."""
        for name, value in fields.items():
            target = self if hasattr(self, name) else self.tensors[0]
            setattr(target, name, value)
        return self
