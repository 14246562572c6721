"""What surrounds the kernels changes no bit: where data lie, what the host has set; what makes no sense is refused."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from kernels.driving import KINDS, chunked, decoder_of, differences, sequences, tensors_of
from minilab_gen.kernels.decoder import Decoder
from minilab_gen.kernels.library import KernelError


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_weights_may_lie_at_any_address(dtype: torch.dtype) -> None:
    config = KINDS["odd"]
    tensors = {key: tensor.to(dtype) for key, tensor in tensors_of(config).items()}
    prompts = sequences(config, [20])
    found = []
    for offset in (0, 1, 2, 3, 31, 63):
        decoder = Decoder(config, "float32", slots=1, threads=1)
        for (name, layer), tensor in tensors.items():
            decoder.set(name, _Shifted(tensor, offset), layer)
        found.append(chunked(decoder, prompts, [20]))

    assert [differences(found[0], other) for other in found] == [[]] * len(found)


class _Shifted:
    """A tensor's bytes, copied to an address that is ``offset`` from a multiple of 64."""

    def __init__(self, tensor: torch.Tensor, offset: int) -> None:
        self.shape, self.dtype = tensor.shape, tensor.dtype
        data = tensor.contiguous().view(torch.uint8).numpy().tobytes()
        self._room = ctypes.create_string_buffer(len(data) + 128)
        base = ctypes.addressof(self._room)
        self._at = base + -base % 64 + offset
        ctypes.memmove(self._at, data, len(data))

    def data_ptr(self) -> int:
        return self._at

    def is_contiguous(self) -> bool:
        return True


@contextmanager
def flushing() -> Iterator[None]:
    """Subnormal numbers flushed, as torch and others set it for a whole process."""
    if not torch.set_flush_denormal(True):
        pytest.skip("SKIPPED: this processor flushes no subnormal numbers")
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


def test_a_host_that_flushes_subnormals_changes_no_bit_and_keeps_its_setting() -> None:
    config = KINDS["odd"]
    prompts = sequences(config, [20])
    tensors = {("norm", 0): tensors_of(config)["norm", 0] * 1e-39}
    decoder = decoder_of(config, threads=2)
    decoder.set("norm", tensors["norm", 0])
    kept = chunked(decoder, prompts, [20])

    with flushing():
        flushed = chunked(decoder, prompts, [20])
        tiny = torch.tensor([1e-39]) * 0.5

    assert tiny.item() == 0
    assert max(logits.abs().max().item() for logits in kept.values()) > 0
    assert differences(kept, flushed) == []


@pytest.mark.parametrize(
    ("ids", "slots", "positions", "outputs", "message"),
    [
        ([83], [0], [0], [0], "ids must be below 83"),
        ([1], [8], [0], [0], "slots must be below 8"),
        ([1], [0], [64], [0], "positions must be below the context of 64"),
        ([1, 2], [0, 0], [0, 2], [0], "positions must ascend by 1"),
        ([1, 2, 3], [0, 1, 0], [0, 0, 1], [0], "slot 0 must stand together"),
        ([1, 2], [0, 1], [0, 0], [1, 0], "output rows must ascend"),
        ([], [], [], [], "at least 1 row"),
    ],
)
def test_a_step_that_makes_no_sense_is_refused(
    ids: list[int], slots: list[int], positions: list[int], outputs: list[int], message: str
) -> None:
    with pytest.raises(KernelError, match=message):
        decoder_of(KINDS["odd"]).run(ids, slots, positions, outputs)


def test_a_tensor_that_is_missing_or_of_another_shape_is_named() -> None:
    decoder = Decoder(KINDS["odd"], "float32", slots=1, threads=1)

    with pytest.raises(KernelError, match=r"gate must be \(52, 36\), got \(52, 37\)"):
        decoder.set("gate", torch.zeros(52, 37))
    with pytest.raises(KernelError, match="layer 0 lacks its embedding"):
        decoder.run([1], [0], [0], [0])
