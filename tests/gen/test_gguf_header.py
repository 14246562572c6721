"""Headers of GGUF files that are damaged, crafted, or of another kind: one line that names the key or the tensor."""

from __future__ import annotations

import random
import struct
import sys
import time
import tracemalloc
from collections.abc import Callable
from itertools import count
from pathlib import Path

import gguf
import numpy as np
import pytest
from support.family_checkpoints import Kind
from support.gguf_bytes import ARRAY, BOOL, FLOAT32, STRING, UINT32, UINT64, Draft, Tensor, text, texts
from support.gguf_files import byte_level_tokens, write_gguf
from support.tokenizer_kinds import llama_3

from minilab_gen.errors import CheckpointError
from minilab_gen.models.gguf_header import read_header
from minilab_gen.models.gguf_weights import GgufWeights
from minilab_gen.models.source import checkpoint_of

MOST_SECONDS = 2.0
MOST_BYTES = 100_000_000


def draft() -> Draft:
    """A file of two keys and two tensors."""
    return Draft(
        keys=[("general.architecture", STRING, text("llama")), ("a.list", ARRAY, texts("one", "two"))],
        tensors=[Tensor("first", (2, 3), data=bytes(24)), Tensor("second", (5,), data=b"\1" * 20)],
    )


def refusal(path: Path, content: bytes) -> str:
    """The one line that a file is refused by, soon and in little memory."""
    path.write_bytes(content)
    start = time.monotonic()
    tracemalloc.start()
    try:
        with pytest.raises(CheckpointError) as caught:
            read_header(path)
        taken = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert time.monotonic() - start < MOST_SECONDS
    assert taken < MOST_BYTES
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    return str(caught.value).replace(str(path), "FILE")


def key(name: str | bytes, kind: int, value: bytes) -> Callable[[Draft], Draft]:
    def add(changed: Draft) -> Draft:
        changed.keys.append((name, kind, value))
        return changed

    return add


def tensor(**fields: object) -> Callable[[Draft], Draft]:
    return lambda changed: changed.change(**fields)


def second(**fields: object) -> Callable[[Draft], Draft]:
    def change(changed: Draft) -> Draft:
        for name, value in fields.items():
            setattr(changed.tensors[1], name, value)
        return changed

    return change


def u32(value: int) -> bytes:
    return struct.pack("<I", value)


_numbers = count()


def _numbered(_: object) -> str:
    """Different names for tests whose messages may be the same."""
    return str(next(_numbers))


@pytest.mark.parametrize("version", [2, 3])
def test_versions_2_and_3_are_read_alike(tmp_path: Path, version: int) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(draft().change(version=version).file())

    header = read_header(path)

    assert header.metadata == {"general.architecture": "llama", "a.list": ["one", "two"]}
    assert [(each.name, each.shape, each.size) for each in header.tensors.values()] == [
        ("first", (3, 2), 24),
        ("second", (5,), 20),
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (tensor(version=1), "FILE must be a GGUF of version 2 or 3, got version 1; convert the model again"),
        (tensor(version=4), "FILE must be a GGUF of version 2 or 3, got version 4; convert the model again"),
        (tensor(version=0), "FILE must be a GGUF of version 2 or 3, got version 0; convert the model again"),
        (tensor(version=3 << 24), "FILE is a big-endian GGUF; convert it in place: gguf-convert-endian FILE little"),
        (tensor(magic=b"FUGG"), "FILE is a big-endian GGUF; convert it in place: gguf-convert-endian FILE little"),
        (
            tensor(magic=b"GGML"),
            "FILE must begin with GGUF, got b'GGML', an older format; convert",
        ),
        (
            tensor(magic=b"tjgg"),
            "FILE must begin with GGUF, got b'tjgg', an older format; convert",
        ),
        (tensor(magic=b"PK\3\4"), r"FILE must begin with GGUF, got b'PK\x03\x04'"),
        (tensor(tensor_count=2**63), "FILE is cut short or damaged: it must have 9223372036854775808 tensors"),
        (tensor(key_count=2**60), "FILE is cut short or damaged: it must have 1152921504606846976 keys"),
        (tensor(key_count=1), "FILE: 'a.list' must have 1 to 4 dimensions, got 9"),
        (tensor(tensor_count=1), ""),
        (key("general.architecture", STRING, text("llama")), "FILE: the key 'general.architecture' stands there twice"),
        (key(b"\xff\xfe", UINT32, u32(1)), "FILE: key 2 is not UTF-8"),
        (key("x" * 65_536, UINT32, u32(1)), "FILE: key 2 must be at most 65535 bytes long, got 65536"),
        (key("a.text", STRING, struct.pack("<Q", 2**63)), "'a.text' needs 9223372036854775808 bytes"),
        (key("a.text", STRING, text(b"\xff")), "FILE: 'a.text' is not UTF-8"),
        (key("a.value", 13, u32(1)), "the value of 'a.value' must be of a type from 0 to 12, got 13"),
        (key("a.value", 2**31, u32(1)), "the value of 'a.value' must be of a type from 0 to 12, got 2147483648"),
        (key("a.list", ARRAY, texts()), "FILE: the key 'a.list' stands there twice"),
        (key("b.list", ARRAY, struct.pack("<IQ", STRING, 2**60)), "1152921504606846976 elements in 'b.list'"),
        (key("b.list", ARRAY, struct.pack("<IQ", UINT64, 2**61)), "2305843009213693952 elements in 'b.list'"),
        (key("b.list", ARRAY, struct.pack("<IQ", ARRAY, 1)), "'b.list' must hold strings or numbers, got the type 9"),
        (
            key("b.list", ARRAY, struct.pack("<IQ", STRING, 1) + struct.pack("<Q", 2**40)),
            "'b.list' needs 1099511627776",
        ),
        *[
            (
                key("general.alignment", UINT32, u32(given)),
                f"FILE: general.alignment must be a multiple of 8 up to 65536, got {given}",
            )
            for given in (0, 3, 2**32 - 32, 2**31)
        ],
        (key("general.alignment", 5, struct.pack("<i", -32)), "must be a multiple of 8 up to 65536, got -32"),
        (key("general.alignment", STRING, text("32")), "must be a multiple of 8 up to 65536, got '32'"),
        (key("general.alignment", BOOL, b"\1"), "must be a multiple of 8 up to 65536, got True"),
        (key("general.alignment", FLOAT32, struct.pack("<f", 32)), "must be a multiple of 8 up to 65536, got 32.0"),
        (tensor(name="second"), "FILE: the tensor 'second' stands there twice"),
        (tensor(name="x" * 65), "FILE: the name of tensor 0 must be at most 64 bytes long, got 65"),
        (tensor(dimensions=0), "FILE: 'first' must have 1 to 4 dimensions, got 0"),
        (tensor(dimensions=9), "FILE: 'first' must have 1 to 4 dimensions, got 9"),
        (tensor(dimensions=2**32 - 1), "FILE: 'first' must have 1 to 4 dimensions, got 4294967295"),
        (tensor(dims=(2**42 + 1, 3)), "FILE is cut short or damaged: first (3, 4398046511105) ends at byte"),
        (tensor(dims=(2**33, 2**33)), "FILE is cut short or damaged: first (8589934592, 8589934592) ends at byte"),
        (tensor(dims=(2**32, 2**32 + 1)), "FILE is cut short or damaged: first"),
        (tensor(dims=(0, 3)), "FILE: first: the rows of F32 must be a multiple of 1 long, got the shape (3, 0)"),
        (tensor(dims=(2, 0)), "FILE: first: the rows of F32 must be a multiple of 1 long, got the shape (0, 2)"),
        (tensor(offset=2**40), "FILE is cut short or damaged: first (3, 2) ends at byte"),
        (tensor(offset=2**64 - 32), "FILE is cut short or damaged: first (3, 2) ends at byte"),
        (tensor(offset=8), "FILE: first must begin at a multiple of 32, got 8"),
        (second(offset=0), "FILE: the tensors first and second overlap"),
        (tensor(dims=(2, 5)), "FILE: the tensors first and second overlap"),
        (tensor(kind=999), "FILE: first is of the type 999, which is not read; quantize the model again"),
        (tensor(kind=24), "FILE: first is of the type I8, which is not read; quantize the model again"),
        (tensor(kind=2), "FILE: first: the rows of Q4_0 must be a multiple of 32 long, got the shape (3, 2)"),
        (tensor(kind=12), "FILE: first: the rows of Q4_K must be a multiple of 256 long, got the shape (3, 2)"),
    ],
    ids=_numbered,
)
def test_a_crafted_file_is_refused_by_one_line(tmp_path: Path, change: Callable[[Draft], Draft], message: str) -> None:
    content = change(draft()).file()

    if message:
        assert message in refusal(tmp_path / "model.gguf", content)
    else:  # counts are what counts: the rest would be read as data, which begins elsewhere
        (tmp_path / "model.gguf").write_bytes(content)
        assert list(read_header(tmp_path / "model.gguf").tensors) == ["first"]


def test_arrays_longer_than_any_vocabulary_are_refused(tmp_path: Path) -> None:
    changed = key("b.list", ARRAY, struct.pack("<IQ", BOOL, 2**22 + 1) + bytes(2**22 + 1))(draft())

    assert "'b.list' must have at most 4194304 elements, got 4194305" in refusal(tmp_path / "x", changed.file())


def test_every_file_that_is_cut_short_is_refused(tmp_path: Path) -> None:
    content = draft().file()
    whole = len(content)

    for size in range(whole):
        message = refusal(tmp_path / "model.gguf", content[:size])
        assert "cut short" in message or "is empty" in message or "must begin with GGUF" in message, size


def test_a_model_that_is_cut_short_anywhere_is_refused(tmp_path: Path) -> None:
    tokens = byte_level_tokens(llama_3(), "llama-bpe", bos_token_id=0)
    content = write_gguf(tmp_path / "model.gguf", Kind("Llama"), tokens).path.read_bytes()
    tensors = read_header(tmp_path / "model.gguf").tensors.values()
    header, data_end = min(each.start for each in tensors), max(each.start + each.size for each in tensors)
    path = tmp_path / "cut.gguf"

    for size in [*range(0, header, 499), *range(header, data_end, 20_011), data_end - 1]:
        path.write_bytes(content[:size])
        with pytest.raises(CheckpointError, match=r"cut short|is empty|must begin with GGUF"):
            checkpoint_of(path).check()


def test_damaged_bytes_are_refused_or_change_no_more_than_they_say(tmp_path: Path) -> None:
    """Whatever stands in a header, nothing but CheckpointError comes of it."""
    tokens = byte_level_tokens(llama_3(), "llama-bpe", bos_token_id=0)
    content = write_gguf(tmp_path / "model.gguf", Kind("Llama"), tokens).path.read_bytes()
    header = min(each.start for each in read_header(tmp_path / "model.gguf").tensors.values())
    path, draw = tmp_path / "damaged.gguf", random.Random(0)
    refused = 0

    for _ in range(400):
        damaged = bytearray(content)
        for _ in range(draw.choice((1, 1, 4))):
            damaged[draw.randrange(header)] = draw.choice((0, 1, 0x7F, 0x80, 0xFF, draw.randrange(256)))
        path.write_bytes(damaged)
        try:
            checkpoint_of(path).check()
        except CheckpointError as error:
            refused += 1
            assert "\n" not in str(error)  # noqa: PT017 - what is refused is not known before
    assert 20 < refused < 400


@pytest.mark.parametrize("alignment", [8, 24, 32, 64])
def test_tensors_are_the_same_at_any_alignment(tmp_path: Path, alignment: int) -> None:
    numbers = np.arange(20, dtype=np.float32)
    changed = key("general.alignment", UINT32, u32(alignment))(draft().change(alignment=alignment))
    changed.tensors = [
        Tensor("odd", (3,), kind=1, data=b"\1\2" * 3),
        Tensor("token_embd.weight", (4, 5), data=numbers.tobytes()),
    ]
    path = tmp_path / "model.gguf"
    path.write_bytes(changed.file())  # whose last row ends with the file

    read = GgufWeights(read_header(path)).read("model.embed_tokens.weight", 3)

    assert (read.shape, read.dtype) == ((3, 4), "float32")
    assert bytes(read.numbers) == numbers[:12].tobytes()


def test_a_file_cut_short_while_it_is_read_ends_in_an_error(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    changed = draft()
    changed.tensors[0].name = "output.weight"
    path.write_bytes(changed.file())
    weights = GgufWeights(read_header(path))
    path.write_bytes(path.read_bytes()[:-40])

    with pytest.raises(CheckpointError, match=r"was cut short while it was read: output.weight lacks \d+ bytes"):
        weights.read("lm_head.weight")
    path.unlink()
    with pytest.raises(CheckpointError, match="cannot be read: No such file"):
        weights.read("lm_head.weight")


@pytest.mark.skipif(sys.byteorder == "big", reason="this processor writes such files itself")
def test_a_whole_file_of_the_other_byte_order_is_known(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "llama", endianess=gguf.GGUFEndian.BIG)
    writer.add_tensor("first", np.ones(4, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    with pytest.raises(CheckpointError, match=r"is a big-endian GGUF; convert it in place: gguf-convert-endian"):
        read_header(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "FILE is empty; download or copy it again"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "FILE is a git-lfs pointer to the file"),
        (b"<!doctype html><html>", "FILE is a web page and not the file"),
    ],
)
def test_what_is_no_such_file_at_all_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    assert message in refusal(tmp_path / "model.gguf", content)
