"""What running sequences cost: memory as they need it, under one budget, with the bits that they would get alone."""

from __future__ import annotations

import resource
import sys
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from support.small_models import EIGHT_TO_ONE, random_model, threads
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

from minilab_gen.engine.lazy_memory import LazyMemory
from minilab_gen.engine.step_batch import shared_length
from minilab_gen.errors import RequestError
from minilab_gen.models.decoder import MiniLabModel

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Two threads on products this small only wait for each other."""
    with threads(1):
        yield


@pytest.fixture(scope="module")
def long_model() -> MiniLabModel:
    """A model whose sequences can differ much in length."""
    return random_model(replace(EIGHT_TO_ONE, context_length=2048)).freeze()


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
    for name, request in random_requests(16, seed=3).items():
        watched.add(name, request)

    while watched.engine.has_work:
        watched.step()
        read = sum(sequence.read for sequence in watched.engine._pool.residents)
        assert read <= 50


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
def test_memory_comes_with_what_is_written_and_goes_when_it_is_cleared() -> None:
    before = resident_bytes()
    memory = LazyMemory((64, 1_000_000_000), CPU)  # 256 GB of addresses

    memory.tensor[5, 1000:10_001_000] = 1.0
    written = resident_bytes()
    memory.clear(memory.tensor[5, 1000:10_001_000])

    assert 39_000_000 < written - before < 60_000_000
    assert resident_bytes() - before < 15_000_000
    assert not memory.tensor[5, :10_002_000].any()


@pytest.mark.parametrize(("start", "end"), [(0, 1), (3, 1024), (1023, 1025), (1, 5000), (1024, 4096), (7, 7)])
def test_clearing_clears_its_piece_and_nothing_else(start: int, end: int) -> None:
    memory = LazyMemory((6000,), CPU)
    memory.tensor.fill_(1.0)

    memory.clear(memory.tensor[start:end])

    expected = torch.ones(6000)
    expected[start:end] = 0.0
    assert torch.equal(memory.tensor, expected)


def test_slots_of_a_long_context_cost_what_is_used() -> None:
    config = replace(EIGHT_TO_ONE, context_length=1_000_000, d_model=512)
    before = resident_bytes()
    watched = Watched(random_model(config).freeze(), max_batch=64)  # 64 GB of addresses
    watched.add("a", request_of(3, 8))

    watched.run()

    assert resident_bytes() - before < 1_000_000_000  # tables of a million positions, and no keys to speak of


# Sequences of different lengths


def test_long_and_short_sequences_side_by_side_equal_alone(long_model: MiniLabModel) -> None:
    lengths = [1900, 3, 900, 60, 4, 230, 7]
    requests = {str(length): request_of(length, 12, HOT) for length in lengths}
    watched = Watched(long_model, max_batch=7, prefill_tokens=700)
    for name, request in requests.items():
        watched.add(name, request)

    watched.run()

    assert_equal_alone(watched, requests, long_model)


@pytest.mark.parametrize(
    ("lengths", "shared"),
    [
        ([], 0),
        ([64], 64),
        ([64, 64, 128], 128),  # one more call costs more than a few positions
        ([64] * 15 + [2048], 64),
        ([2048] * 15 + [64], 2048),
    ],
)
def test_most_sequences_attend_together(lengths: list[int], shared: int) -> None:
    assert shared_length(lengths) == shared
