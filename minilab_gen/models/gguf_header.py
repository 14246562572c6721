"""What a GGUF file says about itself: its metadata, and where each tensor stands. No weight is read.

The reader of the package ``gguf`` maps a file and trusts its counts, so that a damaged one takes all memory or shows
bytes of another tensor. This one is bounded by the size of the file, and every complaint names the key or the tensor.

Source: docs/gguf.md of ggml. Versions 2 and 3 are alike in files for little-endian processors.
"""

from __future__ import annotations

import math
import os
import struct
from array import array
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeVar

from minilab_gen.errors import CheckpointError
from minilab_gen.impostors import impostor
from minilab_gen.request import shown

_MAGIC: Final = b"GGUF"
_OLD_MAGICS: Final = (b"GGML", b"ggml", b"lmgg", b"ggmf", b"fmgg", b"ggjt", b"tjgg", b"ggla", b"algg")
"""Formats before GGUF, as the bytes may stand."""
_VERSIONS: Final = (2, 3)

_BOOL, _STRING, _ARRAY = 7, 8, 9
_NUMBERS: Final = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", _BOOL: "B", 10: "Q", 11: "q", 12: "d"}
"""Types of values that are numbers: their letters in :mod:`struct` and :mod:`array`."""

_LONGEST_KEY: Final = 65_535
_LONGEST_NAME: Final = 64
_MOST_DIMENSIONS: Final = 4
"""By the format, as the two above."""

_MOST_ELEMENTS: Final = 1 << 22
"""Of an array: eight times the merges of the largest vocabularies. It bounds the memory that a large file takes."""
_MOST_METADATA: Final = 1 << 27
"""Bytes, ten times what the largest vocabularies take."""

_ALIGNMENT_KEY: Final = "general.alignment"
_LARGEST_ALIGNMENT: Final = 1 << 16

_Kind = TypeVar("_Kind", int, float, str, bool)


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """Where a tensor stands, and how its numbers are packed."""

    name: str
    shape: tuple[int, ...]
    """In the order of everyone else: rows first."""
    type: int
    """A ``GGMLQuantizationType``."""
    start: int
    """Of its bytes, from the beginning of the file."""
    row_bytes: int

    @property
    def size(self) -> int:
        """Its bytes."""
        return math.prod(self.shape[:-1]) * self.row_bytes


@dataclass(frozen=True)
class GgufHeader:
    """The metadata by key, and the tensors by name."""

    path: Path
    metadata: dict[str, Any]
    tensors: dict[str, GgufTensor]

    def get(self, key: str, kind: type[_Kind]) -> _Kind | None:
        """A value of this kind, None where the key is missing. Raises CheckpointError for one of another kind."""
        value = self.metadata.get(key)
        if value is None:
            return None
        if kind is float and type(value) is int:
            return kind(value)
        if type(value) is not kind:
            raise CheckpointError(f"{self.path}: {key} must be of the type {kind.__name__}, got {shown(value)}")
        return value

    def need(self, key: str, kind: type[_Kind]) -> _Kind:
        """A value that must be there. Raises CheckpointError."""
        value = self.get(key, kind)
        if value is None:
            raise CheckpointError(f"{self.path} lacks the key {key}")
        return value

    def texts(self, key: str) -> list[str] | None:
        """A list of texts, None where the key is missing. Raises CheckpointError for anything else."""
        value = self.metadata.get(key)
        if value is not None and not (isinstance(value, list) and all(isinstance(text, str) for text in value)):
            raise CheckpointError(f"{self.path}: {key} must be an array of strings, got {shown(value)}")
        return value

    def numbers(self, key: str) -> list[int] | list[float] | None:
        """A list of numbers, None where the key is missing. Raises CheckpointError for anything else."""
        value = self.metadata.get(key)
        if value is not None and not isinstance(value, array):
            raise CheckpointError(f"{self.path}: {key} must be an array of numbers, got {shown(value)}")
        return None if value is None else value.tolist()

    @cached_property
    def architecture(self) -> str:
        """Which prefix the keys of the model have."""
        return self.need("general.architecture", str)


def read_header(path: Path) -> GgufHeader:
    """The header of a GGUF file. Raises CheckpointError, naming the key or tensor, for one that is damaged."""
    try:
        with path.open("rb") as file:
            return _read(path, file, os.fstat(file.fileno()).st_size)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error


def _read(path: Path, file: BinaryIO, size: int) -> GgufHeader:
    reader = _Reader(path, file, size)
    _check_start(reader)
    tensor_count, key_count = reader.unpack("<QQ", "the counts of tensors and keys")
    reader.check_count(tensor_count, 24, "tensors")
    reader.check_count(key_count, 13, "keys")
    metadata: dict[str, Any] = {}
    for number in range(key_count):
        key = reader.text(f"key {number}", _LONGEST_KEY)
        if key in metadata:
            raise CheckpointError(f"{path}: the key {shown(key)} stands there twice")
        metadata[key] = reader.value(key)
    parts = [reader.tensor(number) for number in range(tensor_count)]
    alignment = _alignment(path, metadata)
    data = -(-reader.position // alignment) * alignment
    tensors: dict[str, GgufTensor] = {}
    for name, shape, kind, offset in parts:
        if name in tensors:
            raise CheckpointError(f"{path}: the tensor {shown(name)} stands there twice")
        if offset % alignment:
            raise CheckpointError(f"{path}: {name} must begin at a multiple of {alignment}, got {offset}")
        tensors[name] = GgufTensor(name, shape, kind, data + offset, _row_bytes(path, name, shape, kind))
    _check_places(path, tensors, size)
    return GgufHeader(path, metadata, tensors)


def _check_start(reader: _Reader) -> None:
    """See that the file is a GGUF of a version and byte order that is read."""
    path = reader.path
    start = reader.bytes(4, "the magic number") if reader.size >= 4 else b""
    if start != _MAGIC:
        if other := impostor(path):
            raise CheckpointError(other)
        if start == _MAGIC[::-1]:
            raise CheckpointError(_big_endian(path))
        older = ", an older format; convert the model again, to GGUF" if start in _OLD_MAGICS else ""
        raise CheckpointError(f"{path} must begin with GGUF, got {start!r}{older}")
    (version,) = reader.unpack("<I", "the version")
    if version in _VERSIONS:
        return
    if version and not version & 0xFFFF:
        raise CheckpointError(_big_endian(path))
    raise CheckpointError(f"{path} must be a GGUF of version 2 or 3, got version {version}; convert the model again")


def _big_endian(path: Path) -> str:
    return f"{path} is a big-endian GGUF; convert it in place: gguf-convert-endian {path} little"


class _Reader:
    """Takes a header apart. Nothing is read, and no memory taken, that the rest of the file cannot hold."""

    def __init__(self, path: Path, file: BinaryIO, size: int) -> None:
        self.path, self.size, self.position = path, size, 0
        self._file = file

    def bytes(self, count: int, what: str) -> bytes:
        """The next bytes."""
        if count > self.size - self.position or len(found := self._file.read(count)) < count:
            raise CheckpointError(
                f"{self.path} is cut short or damaged: {what} needs {count} bytes from {self.position} on, "
                f"{max(self.size - self.position, 0)} are there"
            )
        self.position += count
        if self.position > _MOST_METADATA:
            raise CheckpointError(f"{self.path}: metadata must be at most {_MOST_METADATA} bytes; {what} is beyond")
        return found

    def unpack(self, form: str, what: str) -> tuple[Any, ...]:
        """Numbers."""
        return struct.unpack(form, self.bytes(struct.calcsize(form), what))

    def check_count(self, count: int, smallest: int, what: str) -> None:
        """See that so many things, of so many bytes at least, can be in the rest of the file."""
        if count * smallest > self.size - self.position:
            raise CheckpointError(
                f"{self.path} is cut short or damaged: it must have {count} {what}, "
                f"and {self.size - self.position} bytes are left"
            )

    def text(self, what: str, longest: int | None = None) -> str:
        """A text in UTF-8, with its length before it."""
        (length,) = self.unpack("<Q", what)
        if longest is not None and length > longest:
            raise CheckpointError(f"{self.path}: {what} must be at most {longest} bytes long, got {length}")
        try:
            return self.bytes(length, what).decode()
        except UnicodeDecodeError as error:
            raise CheckpointError(f"{self.path}: {what} is not UTF-8: {error}") from error

    def value(self, key: str) -> Any:
        """The value of a key."""
        name = shown(key)
        (kind,) = self.unpack("<I", name)
        if kind == _ARRAY:
            return self._array(name)
        if kind == _STRING:
            return self.text(name)
        if kind not in _NUMBERS:
            raise CheckpointError(f"{self.path}: the value of {name} must be of a type from 0 to 12, got {kind}")
        (number,) = self.unpack(f"<{_NUMBERS[kind]}", name)
        return bool(number) if kind == _BOOL else number

    def _array(self, name: str) -> list[str] | array[Any]:
        kind, count = self.unpack("<IQ", name)
        if kind != _STRING and kind not in _NUMBERS:
            raise CheckpointError(f"{self.path}: the array {name} must hold strings or numbers, got the type {kind}")
        each = 8 if kind == _STRING else struct.calcsize(f"<{_NUMBERS[kind]}")
        self.check_count(count, each, f"elements in {name}")
        if count > _MOST_ELEMENTS:
            raise CheckpointError(f"{self.path}: {name} must have at most {_MOST_ELEMENTS} elements, got {count}")
        if kind == _STRING:
            return [self.text(name) for _ in range(count)]
        return array(_NUMBERS[kind], self.bytes(count * each, name))

    def tensor(self, number: int) -> tuple[str, tuple[int, ...], int, int]:
        """Name, shape, type and offset of a tensor."""
        name = self.text(f"the name of tensor {number}", _LONGEST_NAME)
        (dimensions,) = self.unpack("<I", name)
        if not 1 <= dimensions <= _MOST_DIMENSIONS:
            raise CheckpointError(
                f"{self.path}: {shown(name)} must have 1 to {_MOST_DIMENSIONS} dimensions, got {dimensions}"
            )
        shape = self.unpack(f"<{dimensions}Q", name)
        kind, offset = self.unpack("<IQ", name)
        return name, shape[::-1], kind, offset


def _alignment(path: Path, metadata: dict[str, Any]) -> int:
    given = metadata.get(_ALIGNMENT_KEY, 32)
    if type(given) is not int or not 8 <= given <= _LARGEST_ALIGNMENT or given % 8:
        rule = f"must be a multiple of 8 up to {_LARGEST_ALIGNMENT}"
        raise CheckpointError(f"{path}: {_ALIGNMENT_KEY} {rule}, got {shown(given)}")
    return given


def _row_bytes(path: Path, name: str, shape: tuple[int, ...], kind: int) -> int:
    """Bytes of a row, which holds whole blocks."""
    from minilab_gen.models.gguf_types import SIZES, type_name  # numpy, which no client needs

    if kind not in SIZES:
        raise CheckpointError(f"{path}: {name} is of the type {type_name(kind)}, which is not read; {_REQUANTIZE}")
    block, size = SIZES[kind]
    if shape[-1] % block or not all(shape):
        rule = f"the rows of {type_name(kind)} must be a multiple of {block} long"
        raise CheckpointError(f"{path}: {name}: {rule}, got the shape {shape}")
    return shape[-1] // int(block) * int(size)


_REQUANTIZE: Final = "quantize the model again, by llama-quantize to Q8_0 for instance"


def _check_places(path: Path, tensors: dict[str, GgufTensor], size: int) -> None:
    """See that each tensor is in the file, and none within another."""
    for tensor in tensors.values():
        if tensor.start + tensor.size > size:
            raise CheckpointError(
                f"{path} is cut short or damaged: {tensor.name} {tensor.shape} ends at byte "
                f"{tensor.start + tensor.size}, and the file at {size}"
            )
    for one, two in pairwise(sorted(tensors.values(), key=lambda tensor: tensor.start)):
        if one.start + one.size > two.start:
            raise CheckpointError(f"{path}: the tensors {one.name} and {two.name} overlap")
