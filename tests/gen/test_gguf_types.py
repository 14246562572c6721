"""Packed weights: the bits that the package ``gguf`` unpacks, chosen for each tensor by its own type."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from support.gguf_bytes import UINT32, Draft, Tensor

from minilab_gen.errors import CheckpointError
from minilab_gen.models.gguf_header import read_header
from minilab_gen.models.gguf_types import TYPES
from minilab_gen.models.gguf_weights import GgufWeights
from minilab_gen.models.weights import RawTensor

ROWS, COLUMNS = 37, 512
UNREAD = [number for number in [*range(41), 999] if number not in TYPES]


def packed(kind: gguf.GGMLQuantizationType, columns: int = COLUMNS) -> Any:
    """Random bytes of a type, whatever numbers they are."""
    block, size = gguf.GGML_QUANT_SIZES[kind]
    draw = np.random.default_rng(int(kind))
    return draw.integers(0, 256, (ROWS, columns // block * size), dtype=np.uint8)


def weights(path: Path, tensors: dict[str, tuple[int, int, bytes]]) -> GgufWeights:
    """A file of matrices: type, columns and bytes of each."""
    drafted = [Tensor(name, (columns, ROWS), kind, data) for name, (kind, columns, data) in tensors.items()]
    file_type = ("general.file_type", UINT32, (7).to_bytes(4, "little"))  # "mostly Q8_0", which decides nothing
    path.write_bytes(Draft(keys=[file_type], tensors=drafted).file())
    return GgufWeights(read_header(path))


def bits(read: RawTensor) -> Any:
    """What was read, as the bits of float32."""
    if read.dtype == "bfloat16":
        return np.frombuffer(read.numbers, np.uint16).astype(np.uint32) << 16
    if read.dtype == "float16":
        return np.frombuffer(read.numbers, np.float16).astype(np.float32).view(np.uint32)
    return np.frombuffer(read.numbers, np.uint32)


@pytest.mark.parametrize("kind", TYPES.values(), ids=lambda kind: kind.name)
def test_every_type_that_is_read_has_the_bits_of_gguf(tmp_path: Path, kind: gguf.GGMLQuantizationType) -> None:
    data = packed(kind)
    read = weights(tmp_path / "x.gguf", {"output.weight": (int(kind), COLUMNS, data.tobytes())}).read("lm_head.weight")

    with np.errstate(all="ignore"):
        expected = gguf.dequantize(data, kind).astype(np.float32, copy=False)
    assert read.shape == (ROWS, COLUMNS)
    assert np.array_equal(bits(read), expected.view(np.uint32).ravel())


@pytest.mark.parametrize("columns", [896, 32, 64])
@pytest.mark.parametrize("name", ["Q4_0", "Q5_0", "Q8_0", "IQ4_NL"])
def test_rows_that_are_no_multiple_of_256_have_blocks_of_32(tmp_path: Path, name: str, columns: int) -> None:
    kind = gguf.GGMLQuantizationType[name]
    data = packed(kind, columns)
    stored = weights(tmp_path / "x.gguf", {"output.weight": (int(kind), columns, data.tobytes())})

    read = stored.read("lm_head.weight", 5)

    with np.errstate(all="ignore"):
        assert np.array_equal(bits(read), gguf.dequantize(data[:5], kind).view(np.uint32).ravel())


def test_one_file_may_mix_types(tmp_path: Path) -> None:
    kinds = [gguf.GGMLQuantizationType[name] for name in ("Q4_K", "Q6_K", "F32", "Q5_0")]
    names = ["output.weight", "token_embd.weight", "blk.0.ffn_up.weight", "blk.0.ffn_down.weight"]
    ours = ["lm_head.weight", "model.embed_tokens.weight", "model.layers.0.mlp.up_proj.weight"]
    ours.append("model.layers.0.mlp.down_proj.weight")
    data = {name: packed(kind) for name, kind in zip(names, kinds, strict=True)}

    stored = weights(
        tmp_path / "x.gguf",
        {name: (int(kind), COLUMNS, data[name].tobytes()) for name, kind in zip(names, kinds, strict=True)},
    )

    for mine, name, kind in zip(ours, names, kinds, strict=True):
        with np.errstate(all="ignore"):
            expected = gguf.dequantize(data[name], kind)
        assert np.array_equal(bits(stored.read(mine)), expected.view(np.uint32).ravel())


def test_numbers_are_unpacked_piece_by_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minilab_gen.models.gguf_weights._PIECE", 1000)  # a few rows
    kind = gguf.GGMLQuantizationType.Q8_0
    data = packed(kind)
    read = weights(tmp_path / "x.gguf", {"output.weight": (int(kind), COLUMNS, data.tobytes())}).read("lm_head.weight")

    with np.errstate(all="ignore"):
        assert np.array_equal(bits(read), gguf.dequantize(data, kind).view(np.uint32).ravel())


@pytest.mark.parametrize("kind", UNREAD)
def test_every_other_type_is_refused_with_its_tensor(tmp_path: Path, kind: int) -> None:
    name = {each.value: each.name for each in gguf.GGMLQuantizationType}.get(kind, str(kind))

    with pytest.raises(CheckpointError, match=f"output.weight is of the type {name}, which is not read"):
        weights(tmp_path / "x.gguf", {"output.weight": (kind, COLUMNS, bytes(ROWS * COLUMNS * 8))})
