"""What running sequences cost: memory as they need it, under one budget, with the bits that they would get alone."""

from __future__ import annotations

import resource
import sys
from dataclasses import replace

import pytest
from support.small_models import EIGHT_TO_ONE, kernel_model
from support.watched_engine import (
    HOT,
    Watched,
    alone,
    assert_equal,
    assert_equal_alone,
    model_of,
    random_requests,
    request_of,
    run_all,
)

from minilab_gen.errors import RequestError
from minilab_gen.models.kernel_model import KernelModel


@pytest.fixture(scope="module")
def long_model() -> KernelModel:
    """A model whose sequences can differ much in length."""
    return kernel_model(replace(EIGHT_TO_ONE, context_length=2048))


# The budget


@pytest.mark.parametrize("kv_tokens", [32, 40, 70])
def test_a_small_budget_changes_no_bit(kv_tokens: int) -> None:
    requests = random_requests(16, seed=kv_tokens)

    watched = run_all(Watched(max_batch=7, kv_tokens=kv_tokens), requests)

    assert_equal_alone(watched, requests, model_of())


def test_the_last_to_come_waits_again_when_the_others_outgrow_the_budget() -> None:
    watched = Watched(max_batch=2, kv_tokens=48)
    first, last = (watched.add(name, request_of(3, 29, HOT)) for name in ("first", "last"))

    watched.step(23)

    assert (first.slot, first.tokens) == (0, 23)
    assert (last.slot, last.read) == (None, 0)
    watched.run()
    assert len(watched.tokens["last"]) == 29
    assert_equal(watched, "last", alone(request_of(3, 29, HOT)))


def test_who_was_sent_back_is_the_first_to_come_in_again() -> None:
    watched = Watched(max_batch=3, kv_tokens=48)
    for name in ("a", "b", "c"):
        watched.add(name, request_of(2, 30, HOT))

    watched.run()

    assert list(watched.ends) == ["a", "b", "c"]


def test_the_budget_is_never_exceeded() -> None:
    watched = Watched(max_batch=7, kv_tokens=50)
    sequences = [watched.add(name, request) for name, request in random_requests(16, seed=3).items()]

    while watched.engine.has_work:
        watched.step()
        assert sum(sequence.read for sequence in sequences if sequence.slot is not None) <= 50


def test_what_can_never_fit_the_budget_is_refused_with_the_numbers() -> None:
    watched = Watched(kv_tokens=20)

    with pytest.raises(RequestError, match=r"fit the 20 tokens .* got 15 and up to 6 new ones"):
        watched.add("a", request_of(15, 6))

    watched.add("b", request_of(15, 5))
    assert watched.run().ends["b"] == "length"


# Memory


def resident_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:  # noqa: PTH123 - a file of the kernel
        return int(file.read().split()[1]) * resource.getpagesize()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux gives back pages at once")
def test_the_memory_of_a_sequence_goes_with_it() -> None:
    model = kernel_model(replace(EIGHT_TO_ONE, context_length=1024, n_kv_head=8, n_layer=8))
    watched = Watched(model, max_batch=64, prefill_tokens=8000)
    watched.add("warm-up", request_of(3, 2))
    watched.run()
    before = resident_bytes()
    for number in range(8):
        watched.add(str(number), request_of(1000, 20))

    watched.step(2)
    held = resident_bytes()
    watched.run()

    keys_and_values = 8 * 1000 * model.bytes_of_a_token
    assert held - before > 0.9 * keys_and_values
    assert resident_bytes() - before < 0.5 * keys_and_values


def test_slots_of_a_long_context_cost_what_is_used() -> None:
    config = replace(EIGHT_TO_ONE, context_length=1_000_000, d_model=512)
    before = resident_bytes()
    watched = Watched(kernel_model(config), max_batch=64)  # 64 GB of addresses
    watched.add("a", request_of(3, 8))

    watched.run()

    assert resident_bytes() - before < 1_000_000_000  # tables of a million positions, and no keys to speak of


# Sequences of different lengths


def test_long_and_short_sequences_side_by_side_equal_alone(long_model: KernelModel) -> None:
    lengths = [1900, 3, 900, 60, 4, 230, 7]
    requests = {str(length): request_of(length, 12, HOT) for length in lengths}
    watched = Watched(long_model, max_batch=7, prefill_tokens=700)
    for name, request in requests.items():
        watched.add(name, request)

    watched.run()

    assert_equal_alone(watched, requests, long_model)
