"""Operations one by one: what is fused, how NaN, subnormals and halves are treated, and where data may lie."""

from __future__ import annotations

import ctypes
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from kernels import reference
from kernels.driving import KINDS, chunked, decoder_of, same_bits, sequences, tables_of, tensors_of
from minilab_gen.kernels.decoder import ACTIVATIONS, WeightType
from minilab_gen.kernels.library import check, library
from minilab_gen.models.config import ModelConfig
from minilab_gen.models.rope_config import RopeConfig

LONGEST = 67
NANS = {"quiet": 0x7FC00000, "negative": 0xFFC00000, "payload": 0x7F800001, "negative payload": 0xFFFFFFFF}


def functions(
    a: reference.Floats, b: reference.Floats, c: reference.Floats, activation: str = "silu"
) -> tuple[reference.Floats, ...]:
    """fma(a, b, c), exp(a) and an activation of a."""
    out = tuple(np.empty(len(a), np.float32) for _ in range(3))
    number = ACTIVATIONS.index(activation)
    check(library().mlk_functions(*(x.ctypes.data for x in (a, b, c, *out)), number, len(a)))
    return out


def bits(x: reference.Floats) -> NDArray[np.int32]:
    return np.ascontiguousarray(x).view(np.int32)


def top_of(logits: reference.Floats) -> int:
    """The id that a greedy step would give."""
    token = ctypes.c_int32()
    check(library().mlk_choose(logits.ctypes.data, len(logits), 1, len(logits), None, ctypes.addressof(token)))
    return token.value


def random_bits(count: int, seed: int = 1) -> reference.Floats:
    """Numbers of every kind: each pattern of bits is as likely."""
    whole: reference.Floats = np.random.default_rng(seed).integers(0, 2**32, count, np.uint32).view(np.float32)
    return whole


def test_a_product_and_a_sum_are_fused_where_the_source_says_so(each_backend: str) -> None:
    a = np.full(16, 1 + 2**-12, np.float32)
    fused, _, _ = functions(a, a, np.full(16, -(1 + 2**-11), np.float32))

    assert set(fused) == {np.float32(2**-24)}


@pytest.mark.parametrize("size", range(1, 34))
def test_a_chain_of_any_length_is_the_reference_s(each_backend: str, size: int) -> None:
    config = ModelConfig(16, 16, 1, 1, 1, 2, size, own_head_dim=4)
    (ids,) = sequences(config, [3])
    wanted = reference.logits_of(config, tensors_of(config), "float32", ids, tables_of(config))

    found = chunked(decoder_of(config), [ids], [3])

    assert all(same_bits(found[0, at], torch.from_numpy(wanted[at])) for at in range(3))


@pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered:RuntimeWarning")
def test_fma_is_rounded_once_for_all_kinds_of_numbers(each_backend: str) -> None:
    a, b, c = (random_bits(1 << 20, seed) for seed in range(3))
    near = np.random.default_rng(3).random(1 << 20, np.float32)
    cases = [(a, b, c), (near, near[::-1].copy(), -near * near[::-1]), (a, np.float32(2) ** -near, -a)]
    for x, y, z in cases:
        wanted, (found, _, _) = reference.fma(x, y, z), functions(x, y, np.ascontiguousarray(z))
        both_nan = np.isnan(wanted) & np.isnan(found)
        assert np.array_equal(bits(found)[~both_nan], bits(wanted)[~both_nan])


def test_exp_and_silu_have_the_bits_of_the_rules_and_are_near_the_truth(each_backend: str) -> None:
    x = np.concatenate(
        [np.linspace(-104, 88, 1 << 16, dtype=np.float32), -np.logspace(-30, 1, 1 << 12, dtype=np.float32)]
    )
    _, exps, silus = functions(x, x, x)

    assert np.array_equal(bits(exps), bits(reference.exp(x)))
    assert np.array_equal(bits(silus), bits(reference.silu(x)))
    true, normal = np.exp(x.astype(np.float64)), x > -87.3
    assert np.abs(exps[normal] / true[normal] - 1).max() < 2 * 2**-24 * 2
    assert exps[~normal].max() == 0


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations_have_the_bits_of_the_rules_and_are_near_the_truth(each_backend: str, activation: str) -> None:
    x = np.concatenate(
        [np.linspace(-40, 40, 1 << 16, dtype=np.float32), np.array([0, -0.0, 1e-30, -1e-30], np.float32)]
    )
    x = np.resize(x, 1 << 16)
    _, _, found = functions(x, x, x, activation)
    exact = torch.from_numpy(x.astype(np.float64))
    true = {
        "silu": F.silu(exact),
        "gelu": F.gelu(exact),
        "gelu_tanh": F.gelu(exact, approximate="tanh"),
    }[activation].numpy()

    assert np.array_equal(bits(found), bits(reference.ACTIVATIONS[activation](x)))
    assert (np.abs(found - true) <= 1e-7 + 4e-7 * np.abs(true)).all()


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_nan_stays_nan_through_every_function(each_backend: str, activation: str) -> None:
    x = np.full(16, np.nan, np.float32)

    assert all(np.isnan(out).all() for out in functions(x, x, x, activation))


@pytest.mark.parametrize("kind", NANS)
def test_a_nan_at_any_place_of_any_length_is_found(each_backend: str, kind: str) -> None:
    missed = []
    for length in range(1, LONGEST + 1):
        for at in range(length):
            logits = np.linspace(-1, 1, length, dtype=np.float32)
            logits.view(np.uint32)[at] = NANS[kind]
            if top_of(logits) != -1:
                missed.append((length, at))

    assert missed == []


@pytest.mark.parametrize("bad", [math.inf, -math.inf])
def test_infinity_is_no_highest_logit(each_backend: str, bad: float) -> None:
    rows = [np.full(length, -math.inf, np.float32) for length in range(1, LONGEST)]
    for row in rows if bad > 0 else []:
        row[len(row) // 2] = math.inf

    assert {top_of(row) for row in rows} == {-1}


def test_minus_infinity_beside_a_number_is_a_logit_like_others(each_backend: str) -> None:
    logits = np.full(40, -math.inf, np.float32)
    logits[33] = -5

    assert top_of(logits) == 33


def test_of_equal_logits_the_lowest_id_is_chosen(each_backend: str) -> None:
    for length in range(2, LONGEST):
        for first in range(length - 1):
            logits = np.full(length, -1, np.float32)
            logits[first], logits[length - 1] = -0.0, 0.0
            assert top_of(logits) == first


@pytest.mark.parametrize("weights", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("name", ["query", "value", "output", "gate", "down", "attention_norm", "key_bias"])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_weight_that_is_no_number_ends_in_no_token(
    each_backend: str, weights: WeightType, name: str, bad: float
) -> None:
    config = KINDS["qwen-2"]
    decoder = decoder_of(config, weights, threads=2)
    broken = tensors_of(config)[name, 1].clone()
    broken.view(-1)[-1] = bad
    decoder.set(name, broken, 1)

    if bad == math.inf and name == "gate":
        assert decoder.run([3, 4], [0, 1], [0, 0], [0, 1])  # silu(-inf) may be finite: only that it ends is promised
    else:
        assert decoder.run([3, 4], [0, 1], [0, 0], [0, 1]) == [-1, -1]


def test_a_broken_neighbour_leaves_others_their_bits(each_backend: str) -> None:
    config = KINDS["odd"]
    decoder, out = decoder_of(config), torch.empty(2, config.vocab_size)
    embedding = tensors_of(config)["embedding", 0].clone()
    embedding[5] = math.nan
    decoder.set("embedding", embedding)
    alone = torch.empty(1, config.vocab_size)

    beside = decoder.run([5, 7], [0, 1], [0, 0], [0, 1], logits=out.data_ptr())
    decoder.run([7], [2], [0], [0], logits=alone.data_ptr())

    assert beside[0] == -1
    assert same_bits(out[1], alone[0])
    assert torch.equal(out[0].view(torch.int32), torch.full((config.vocab_size,), NANS["quiet"], dtype=torch.int32))


# Numbers of 16 bits ---------------------------------------------------------------------------------------------------


def to_bfloat16(x: reference.Floats) -> NDArray[np.uint16]:
    out = np.empty(len(x), np.uint16)
    as_floats, as_halves = ctypes.POINTER(ctypes.c_float), ctypes.POINTER(ctypes.c_uint16)
    library().mlk_to_bfloat16(x.ctypes.data_as(as_floats), out.ctypes.data_as(as_halves), len(x))
    return out


CASES = {
    0x3F808000: 0x3F80,
    0x3F818000: 0x3F82,
    0x3F808001: 0x3F81,
    0x7F7FFFFF: 0x7F80,
    0x00010000: 1,
    0x00008000: 0,
    0x80018000: 0x8002,
}


@pytest.mark.parametrize("pattern", CASES, ids=hex)
def test_a_half_goes_to_the_even_neighbour(pattern: int) -> None:
    assert to_bfloat16(np.array([pattern], np.uint32).view(np.float32))[0] == CASES[pattern]


def test_bfloat16_is_rounded_as_torch_rounds() -> None:
    x = random_bits(10_000_000)
    found = torch.from_numpy(to_bfloat16(x)).view(torch.bfloat16)
    wanted = torch.from_numpy(x).bfloat16()

    assert torch.equal(found.isnan(), wanted.isnan())
    assert torch.equal(found.nan_to_num(0), wanted.nan_to_num(0))


def test_all_numbers_of_16_bits_are_read_as_torch_reads_them() -> None:
    every = np.arange(1 << 16, dtype=np.uint16)
    wide = torch.from_numpy(every).view(torch.bfloat16).float().numpy()
    out = np.empty(len(every), np.float32)
    library().mlk_from_float16(
        every.ctypes.data_as(ctypes.POINTER(ctypes.c_uint16)),
        out.ctypes.data_as(ctypes.POINTER(ctypes.c_float)),
        len(every),
    )

    is_nan = np.isnan(wide)
    assert np.array_equal(to_bfloat16(wide)[~is_nan], every[~is_nan])
    assert np.array_equal(out, torch.from_numpy(every).view(torch.float16).float().numpy(), equal_nan=True)


# Rotary tables --------------------------------------------------------------------------------------------------------


def test_angles_far_into_a_context_are_those_of_exact_arithmetic() -> None:
    config = ModelConfig(16, 1_000_000, 1, 1, 1, 16, 16, own_head_dim=8, rope=RopeConfig(1e6))
    ((cosine, sine),) = tables_of(config)
    frequencies = np.array(
        [1 / np.float32(1e6 ** float(np.float32(i) / np.float32(8))) for i in range(0, 8, 2)], np.float32
    )
    angle = (np.arange(config.context_length, dtype=np.float32)[:, None] * frequencies).astype(np.float64)

    assert round(float(cosine[15962, 0]), 4) == -0.908
    for found, wanted in ((cosine, np.cos(angle)), (sine, np.sin(angle))):
        off = found != wanted.astype(np.float32)
        assert off.mean() < 1e-6
        assert np.abs(found - wanted).max() < 2**-24


def test_logarithms_are_near_the_truth() -> None:
    x = np.concatenate(
        [np.random.default_rng(1).random(1 << 18), 1 - np.logspace(-16, -1, 5000), 2.0 ** -np.arange(54)]
    )
    found = np.empty_like(x)
    as_doubles = ctypes.POINTER(ctypes.c_double)
    library().mlk_logarithms(x.ctypes.data_as(as_doubles), found.ctypes.data_as(as_doubles), len(x))

    assert np.allclose(found, np.log(x), rtol=5e-16, atol=0)
