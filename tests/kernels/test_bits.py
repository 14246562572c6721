"""A logit's bits depend on the model and the tokens before it, and on nothing else."""

from __future__ import annotations

from functools import cache
from typing import get_args

import pytest
import torch

from kernels import reference
from kernels.driving import (
    KINDS,
    Piece,
    chunked,
    decoder_of,
    differences,
    one_by_one,
    read,
    same_bits,
    sequences,
    tables_of,
    tensors_of,
    together,
)
from minilab_gen.kernels.decoder import WEIGHT_TYPES, WeightType
from minilab_gen.models.config import ModelConfig
from minilab_gen.models.rope_config import RopeConfig

OF_EVERY_PART = ("window", "gemma-3", "granite", "olmo-2", "gpt-2", "gpt-neox")
"""Kinds that have among them all that a layer can be made of."""
CHUNKS = [[20], [7, 13], [1, 2, 3, 4, 5], [16], [13, 1]]


@cache
def by_the_rules(kind: str, weights: WeightType) -> tuple[list[int], reference.Floats]:
    """Some ids, and their logits by the rules, once for all back ends: (ids, vocab)."""
    config = KINDS[kind]
    (ids,) = sequences(config, [19])
    return ids, reference.logits_of(config, tensors_of(config), weights, ids, tables_of(config))


@pytest.mark.parametrize("weights", get_args(WeightType))
@pytest.mark.parametrize("kind", KINDS)
def test_every_back_end_gives_the_bits_that_the_rules_give(each_backend: str, kind: str, weights: WeightType) -> None:
    ids, wanted = by_the_rules(kind, weights)

    found = chunked(decoder_of(KINDS[kind], weights), [ids], [19])

    assert [at for at in range(19) if not same_bits(found[0, at], torch.from_numpy(wanted[at]))] == []


@pytest.mark.parametrize("weights", get_args(WeightType))
@pytest.mark.parametrize("kind", ["odd", "llama"])
@pytest.mark.parametrize("threads", [1, 2, 3, 4])
def test_neighbours_and_threads_change_no_bit(kind: str, weights: WeightType, threads: int) -> None:
    config = KINDS[kind]
    prompts = sequences(config, [9] * 33)
    alone = one_by_one(decoder_of(config, weights), prompts)
    decoder = decoder_of(config, weights, slots=33, threads=threads)

    for rows in range(1, 34):
        expected = {key: logits for key, logits in alone.items() if key[0] < rows}
        assert differences(expected, together(decoder, prompts[:rows])) == []


@pytest.mark.parametrize("kind", OF_EVERY_PART)
@pytest.mark.parametrize("threads", [1, 3])
def test_neighbours_change_no_bit_whatever_a_layer_is_made_of(kind: str, threads: int) -> None:
    config = KINDS[kind]
    prompts = sequences(config, [22] * 33)
    alone = one_by_one(decoder_of(config), prompts)
    decoder = decoder_of(config, slots=33, threads=threads)

    for rows in (1, 2, 7, 33):
        expected = {key: logits for key, logits in alone.items() if key[0] < rows}
        assert differences(expected, together(decoder, prompts[:rows])) == []


@pytest.mark.parametrize("weights", get_args(WeightType))
@pytest.mark.parametrize("chunks", CHUNKS, ids=str)
def test_a_prompt_may_be_read_in_any_chunks_in_any_slot(weights: WeightType, chunks: list[int]) -> None:
    for kind in ("odd", "window"):
        prompts = sequences(KINDS[kind], [40, 33])
        alone = one_by_one(decoder_of(KINDS[kind], weights), prompts)

        for threads, slot in ((1, 0), (2, 5), (4, 7)):
            decoder = decoder_of(KINDS[kind], weights, threads=threads)
            assert differences(alone, chunked(decoder, prompts, chunks, slot)) == []


@pytest.mark.parametrize("kind", ["odd", *OF_EVERY_PART])
@pytest.mark.parametrize("threads", [1, 2, 4])
def test_prompts_that_span_bundles_beside_decoding_rows_change_no_bit(threads: int, kind: str) -> None:
    config = KINDS[kind]
    prompts = sequences(config, [60, 64, 9, 31])
    alone = one_by_one(decoder_of(config), prompts)
    steps = [
        [Piece(2, 0, 8, 3), Piece(0, 0, 55, 1), Piece(3, 0, 30, 6)],
        [Piece(3, 30, 31, 6), Piece(1, 0, 64, 0), Piece(0, 55, 60, 1), Piece(2, 8, 9, 3)],
    ]

    assert differences(alone, read(decoder_of(config, threads=threads), prompts, steps)) == []


def test_what_a_slot_held_before_changes_no_bit() -> None:
    config = KINDS["llama"]
    old, new = sequences(config, [64, 20])
    fresh = chunked(decoder_of(config), [new], [20])
    used = decoder_of(config)
    chunked(used, [old], [64])

    assert differences(fresh, chunked(used, [new], [7, 13])) == []


def test_fewer_threads_than_were_made_change_no_bit() -> None:
    prompts = sequences(KINDS["odd"], [30])
    decoder = decoder_of(KINDS["odd"], threads=4)
    everyone = chunked(decoder, prompts, [30])

    assert decoder.use_threads(1) == 1
    assert differences(everyone, chunked(decoder, prompts, [30])) == []


def test_logits_of_some_rows_are_those_of_all() -> None:
    config = KINDS["odd"]
    (ids,) = sequences(config, [40])
    everything = chunked(decoder_of(config), [ids], [40])
    out = torch.empty(2, config.vocab_size)

    tokens = decoder_of(config, threads=2).run(ids, [1] * 40, range(40), [3, 39], logits=out.data_ptr())

    assert same_bits(out[0], everything[0, 3])
    assert same_bits(out[1], everything[0, 39])
    assert tokens == out.argmax(1).tolist()


def test_a_long_context_is_attended_alike_by_one_thread_and_by_many() -> None:
    config = ModelConfig(32, 2048, 1, 4, 1, 16, 16, rope=RopeConfig(1e6))
    prompts = sequences(config, [1500])
    one, many = decoder_of(config, threads=1), decoder_of(config, threads=4)
    chunks = [1400, 1, 1, 1]

    assert differences(chunked(one, prompts, chunks), chunked(many, prompts, chunks)) == []


def test_all_weight_types_are_tried() -> None:
    assert get_args(WeightType) == WEIGHT_TYPES
