"""The tensors of a checkpoint folder, in one ``safetensors`` file or several: found, checked and read one at a time.

One tensor is in memory at a time, as it is stored.
"""

from __future__ import annotations

import ctypes
import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from safetensors import SafetensorError, safe_open

from minilab_gen.errors import CheckpointError
from minilab_gen.impostors import impostor
from minilab_gen.json_file import read_json
from minilab_gen.models.other_weights import check_that_nothing_else_holds_weights
from minilab_gen.models.tensor_names import plain_names
from minilab_gen.models.tensors import Cut

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
"""Which of several files holds which tensor."""

_DTYPES: Final = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
"""How a weight may be stored, in the words of safetensors and of everyone else."""

_BYTES: Final = {"float32": 4, "float16": 2, "bfloat16": 2}

_LENGTH_BYTES = 8
"""Bytes of the number at the start of a file that gives the length of its header."""

_LONGEST_HEADER = 100_000_000
"""Bytes that safetensors allows a header to have."""

_PIECE = 1 << 20
"""Bytes of a tensor that are compared at a time."""


class RawTensor:
    """The numbers of a tensor as they are stored; a :class:`~minilab_gen.kernels.decoder.Source`."""

    def __init__(self, numbers: bytearray, dtype: str, shape: tuple[int, ...]) -> None:
        self.numbers, self.dtype, self.shape = numbers, dtype, shape
        self._buffer = (ctypes.c_char * len(numbers)).from_buffer(numbers)

    def data_ptr(self) -> int:
        """The address of the first number."""
        return ctypes.addressof(self._buffer)

    def is_contiguous(self) -> bool:
        """It is: files hold tensors row by row."""
        return True

    def part(self, cut: Cut | None) -> RawTensor:
        """What is cut out of it; itself where nothing is."""
        if cut is None:
            return self
        taken = np.ascontiguousarray(cut(np.frombuffer(self.numbers, f"u{_BYTES[self.dtype]}").reshape(self.shape)))
        return RawTensor(bytearray(taken.data.cast("B")), self.dtype, taken.shape)


class _Place(NamedTuple):
    """Where the numbers of a tensor stand, and of what kind they are."""

    file: Path
    start: int
    size: int
    """Their bytes."""
    stored_as: str
    """Their type in the words of safetensors."""
    shape: tuple[int, ...]


class StoredWeights:
    """The tensors in a folder, by name. Raises CheckpointError for a file that is missing, cut short or damaged."""

    def __init__(self, folder: Path) -> None:
        self.files = weight_files(folder)
        self._places: dict[str, _Place] = {}
        for file in self.files:
            self._look_into(file)
        names = plain_names(self._places, folder)
        self._places = {names[name]: place for name, place in self._places.items()}

    def check(self, expected: Iterable[tuple[str, tuple[int, ...]]], ignored: tuple[str, ...]) -> None:
        """Raise CheckpointError unless these tensors are there, in these shapes and types known here, and no others.

        ``expected`` is taken no further than to the first that is missing. ``ignored`` are ends of names that may stand
        there besides, in whatever type: masks are seldom numbers.
        """
        folder, known = self.files[0].parent, set()
        for name, shape in expected:
            known.add(name)
            place = self._places.get(name)
            if place is None:
                raise CheckpointError(f"{folder} lacks the tensor {name}, which must be {shape}")
            if place.shape != shape:
                raise CheckpointError(f"{place.file}: the tensor {name} must be {shape}, got {place.shape}")
            if place.stored_as not in _DTYPES:
                rule = f"{name} must be stored as {', '.join(_DTYPES)}"
                raise CheckpointError(f"{place.file}: {rule}, got {place.stored_as}")
        extra = [name for name in self._places if name not in known and not name.endswith(ignored)]
        if extra:
            others = f" and {len(extra) - 1} more" if len(extra) > 1 else ""
            raise CheckpointError(f"{self._places[extra[0]].file}: no part of this model takes {extra[0]}{others}")

    def __contains__(self, name: str) -> bool:
        return name in self._places

    def rename(self, name: str, new: str) -> None:
        """Call a tensor otherwise from now on."""
        self._places[new] = self._places.pop(name)

    def equal(self, name: str, other: str) -> bool:
        """Whether two tensors are stored alike: the same type, shape and bits."""
        one, two = self._places[name], self._places[other]
        if (one.stored_as, one.shape) != (two.stored_as, two.shape):
            return False
        left = one.size
        with one.file.open("rb") as first, two.file.open("rb") as second:
            first.seek(one.start)
            second.seek(two.start)
            while left:
                count = min(left, _PIECE)
                if first.read(count) != second.read(count):
                    return False
                left -= count
        return True

    def read(self, name: str, rows: int | None = None) -> RawTensor:
        """The first rows of a tensor, or all, as they are stored.

        They are read and not mapped: a file that is cut short meanwhile is then an error, not the end of the process.
        """
        file, start, _, stored_as, shape = self._places[name]
        dtype, shape = _DTYPES[stored_as], (shape[0] if rows is None else rows, *shape[1:])
        numbers = bytearray(math.prod(shape) * _BYTES[dtype])
        try:
            with file.open("rb", buffering=0) as opened:
                opened.seek(start)
                view = memoryview(numbers)
                while view and (count := opened.readinto(view)):  # a call reads 2 GB at most
                    view = view[count:]
        except OSError as error:
            raise _unreadable(file, error) from error
        if view:
            raise CheckpointError(f"{file} was cut short while it was read: {name} lacks {len(view)} bytes")
        return RawTensor(numbers, dtype, shape)

    def _look_into(self, file: Path) -> None:
        """Note what a file holds; no weight is read."""
        try:
            with safe_open(file, framework="np") as opened:  # which checks the header; torch takes seconds
                header, data = _header(file)
                for name in opened.keys():  # noqa: SIM118 - it is no mapping
                    part = opened.get_slice(name)
                    start, end = header[name]["data_offsets"]
                    place = _Place(file, data + start, end - start, part.get_dtype(), tuple(part.get_shape()))
                    self._places[name] = place
        except (OSError, SafetensorError) as error:
            raise _unreadable(file, error) from error


def _header(file: Path) -> tuple[dict[str, Any], int]:
    """What a file says about its tensors, and where their numbers begin."""
    with file.open("rb") as opened:
        length = int.from_bytes(opened.read(_LENGTH_BYTES), "little")
        return json.loads(opened.read(length)), _LENGTH_BYTES + length


def check_weight_files(folder: Path) -> None:
    """Raise CheckpointError unless all files with weights are there and none is cut short. Needs no torch."""
    for file in weight_files(folder):
        _check_size(file)


def weight_files(folder: Path) -> list[Path]:
    """The files that hold the weights of a folder, in order."""
    index = folder / INDEX_FILE
    if (folder / SINGLE_FILE).exists():
        return [folder / SINGLE_FILE]
    if not index.exists():
        check_that_nothing_else_holds_weights(folder)
        return [folder / SINGLE_FILE]
    names = read_json(index).get("weight_map")
    if not isinstance(names, dict) or not names:
        raise CheckpointError(f"{index} must have a weight_map of tensors and files")
    files = sorted(set(map(str, names.values())))
    for name in files:
        if Path(name).name != name:
            raise CheckpointError(f"{index} must name files of its own folder, got {name!r}")
    return [folder / name for name in files]


def _unreadable(file: Path, error: Exception) -> CheckpointError:
    """What is wrong with a file, in words that help: most often it is a copy that was broken off."""
    try:
        _check_size(file)
    except CheckpointError as known:
        return known
    return CheckpointError(f"{file} cannot be read: {error}")


def _check_size(file: Path) -> None:
    try:
        other = impostor(file)
        size, promised = file.stat().st_size, _promised_size(file)
    except OSError as error:
        raise CheckpointError(f"{file} cannot be read: {error.strerror}") from error
    if other is not None:
        raise CheckpointError(other)
    if promised is not None and size < promised:
        raise CheckpointError(f"{file} cannot be read: it is cut short, {size} of {promised} bytes are there")


def _promised_size(file: Path) -> int | None:
    """The size that a file's header says it has; None where there is no header to be read."""
    with file.open("rb") as opened:
        start = opened.read(_LENGTH_BYTES)
        if len(start) < _LENGTH_BYTES:
            return _LENGTH_BYTES
        length = int.from_bytes(start, "little")
        if length > _LONGEST_HEADER:
            return None
        header = opened.read(length)
    try:
        ends = [tensor["data_offsets"][1] for name, tensor in json.loads(header).items() if name != "__metadata__"]
        return _LENGTH_BYTES + length + max(ends, default=0)
    except (ValueError, TypeError, LookupError, AttributeError):
        return _LENGTH_BYTES + length if len(header) < length else None
