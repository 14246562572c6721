"""Many sequences at a time, each with the bits that it would get alone, whatever is beside it or was before."""

from __future__ import annotations

import pytest
import torch
from support.small_models import SHAPES, random_model
from support.watched_engine import (
    HOT,
    ReferenceAnswer,
    Watched,
    alone,
    assert_equal,
    assert_equal_alone,
    model_of,
    random_requests,
    request_of,
    run_all,
)

from minilab_gen.kernels.decoder import WeightType
from minilab_gen.models.kernel_model import KernelModel
from minilab_gen.request import GREEDY, GenerationRequest, SamplingSettings

# Batched equals alone


@pytest.mark.parametrize("prefill_tokens", [1, 7, 20, 256])
@pytest.mark.parametrize("max_batch", [1, 7, 64])
def test_batched_equals_alone(max_batch: int, prefill_tokens: int) -> None:
    requests = random_requests(16, seed=max_batch + prefill_tokens)

    watched = run_all(Watched(max_batch=max_batch, prefill_tokens=prefill_tokens), requests)

    assert_equal_alone(watched, requests, model_of())


@pytest.mark.parametrize(("max_batch", "prefill_tokens"), [(1, 256), (7, 7), (64, 20)])
def test_batched_on_two_threads_equals_alone_on_one(max_batch: int, prefill_tokens: int) -> None:
    requests = random_requests(5, seed=max_batch + prefill_tokens)

    watched = run_all(Watched(max_batch=max_batch, prefill_tokens=prefill_tokens, threads=2), requests)

    assert_equal_alone(watched, requests, model_of())


@pytest.mark.parametrize(("max_batch", "prefill_tokens"), [(7, 7), (64, 256)])
@pytest.mark.parametrize("shape", SHAPES)
def test_batched_equals_alone_for_every_shape(shape: str, max_batch: int, prefill_tokens: int) -> None:
    model, requests = model_of(shape), random_requests(10, seed=1)

    watched = run_all(Watched(model, max_batch, prefill_tokens=prefill_tokens), requests)

    assert_equal_alone(watched, requests, model)


@pytest.mark.parametrize("max_batch", [1, 7, 32])
@pytest.mark.parametrize("weights", ["bfloat16", "int8"])
@pytest.mark.parametrize("shape", SHAPES)
def test_batched_equals_alone_with_every_type_of_weight(shape: str, weights: WeightType, max_batch: int) -> None:
    model = model_of(shape, weights)
    requests = random_requests(16, seed=max_batch)

    watched = run_all(Watched(model, max_batch, prefill_tokens=20), requests)

    assert_equal_alone(watched, requests, model)


def test_prompts_of_different_lengths_read_in_one_step_equal_alone() -> None:
    requests = {str(length): request_of(length) for length in (2, 7, 31)}
    watched = Watched()
    for name, request in requests.items():
        watched.add(name, request)

    watched.run()

    assert_equal_alone(watched, requests, model_of())
    assert watched.ends == {"2": "length", "7": "length", "31": "context"}


def test_a_sequence_that_joins_later_equals_full_recomputation() -> None:
    watched = Watched()
    watched.add("first", request_of(3, 20, HOT))
    watched.step(5)
    late = request_of(9, 12, HOT)
    watched.add("late", late)

    watched.run()

    assert_equal(watched, "late", alone(late, use_cache=False))


def test_sequences_of_different_ends_beside_each_other_equal_alone() -> None:
    requests = {str(number): request_of(3 + number, length) for number, length in enumerate([2, 5, 9, 9])}
    watched = Watched()
    for name, request in requests.items():
        watched.add(name, request)

    watched.run()

    assert [len(tokens) for tokens in watched.tokens.values()] == [2, 5, 9, 9]
    assert_equal_alone(watched, requests, model_of())


def test_each_sequence_of_a_batch_keeps_its_own_settings() -> None:
    requests = {
        "greedy": request_of(3, 9),
        "top-k": request_of(3, 9, SamplingSettings(temperature=1.0, top_k=2)),
        "top-p": request_of(3, 9, SamplingSettings(temperature=1.0, top_p=0.5)),
        "hot": request_of(3, 9, SamplingSettings(temperature=1.5, seed=9)),
        "short": request_of(3, 1),
    }
    watched = Watched(max_batch=5)
    for name, request in requests.items():
        watched.add(name, request)

    watched.run()

    assert_equal_alone(watched, requests, model_of())
    assert watched.tokens["hot"] != watched.tokens["greedy"]
    assert watched.tokens["short"] == watched.tokens["greedy"][:1]


@pytest.mark.parametrize("prefill_tokens", [1, 7, 20])
def test_nothing_is_chosen_before_a_prompt_is_read_to_its_end(prefill_tokens: int) -> None:
    watched = Watched(prefill_tokens=prefill_tokens)
    watched.add("a", request_of(20, 3))
    chunks = -(-20 // prefill_tokens)

    watched.step(chunks - 1)

    assert watched.tokens["a"] == []
    watched.step()
    assert watched.tokens["a"] == alone(request_of(20, 1)).tokens


# Neighbours change nothing


@pytest.mark.parametrize("settings", [GREEDY, SamplingSettings(temperature=1.0, seed=7), HOT], ids=str)
def test_a_seeded_sequence_does_not_care_what_its_neighbour_draws(settings: SamplingSettings) -> None:
    watched = Watched()
    watched.add("a", request_of(3, 12, HOT))
    watched.add("b", request_of(5, 12, settings))

    watched.run()

    assert_equal(watched, "a", alone(request_of(3, 12, HOT)))


@pytest.mark.parametrize("before", [0, 1, 3])
def test_the_order_of_arrival_changes_nothing(before: int) -> None:
    watched = Watched()
    for number in range(before):
        watched.add(f"before-{number}", request_of(4 + number, 12, HOT))
    watched.add("a", request_of(3, 12, HOT))
    for number in range(3 - before):
        watched.add(f"after-{number}", request_of(8 + number, 12, HOT))

    watched.run()

    assert_equal(watched, "a", alone(request_of(3, 12, HOT)))


def test_two_sequences_of_one_seed_draw_the_same_tokens() -> None:
    watched = Watched()
    watched.add("a", request_of(3, 12, HOT))
    watched.step(2)
    watched.add("b", request_of(3, 12, HOT))

    watched.run()

    assert watched.tokens["a"] == watched.tokens["b"] == alone(request_of(3, 12, HOT)).tokens


@pytest.mark.parametrize("at", [1, 2, 6])
@pytest.mark.parametrize("what", ["joins", "is cancelled", "fails"])
def test_a_neighbour_that_comes_goes_or_fails_changes_nothing(what: str, at: int) -> None:
    watched = Watched(prefill_tokens=16)
    watched.add("neighbour", request_of(20, 10, HOT))
    watched.add("a", request_of(3, 12, HOT))
    watched.add("b", request_of(18, 12, HOT))
    if what == "fails":
        watched.poison["neighbour"] = at
    watched.step(at)
    if what == "joins":
        watched.add("another", request_of(25, 5))
    elif what == "is cancelled":
        watched.engine.end("neighbour", "cancelled")

    watched.run()

    assert_equal(watched, "a", alone(request_of(3, 12, HOT)))
    assert_equal(watched, "b", alone(request_of(18, 12, HOT)))


# Slots are used again


def test_a_slot_that_a_long_sequence_left_serves_a_short_one_as_if_new() -> None:
    watched = Watched(max_batch=1)
    watched.add("long", request_of(20, 12))
    watched.add("short", request_of(3, 8, HOT))

    watched.run()

    assert_equal(watched, "short", alone(request_of(3, 8, HOT)))


def poisoned_model() -> KernelModel:
    """A model in which the id 63 makes keys, values and logits NaN."""
    model = random_model()
    with torch.no_grad():
        model.embedding.weight[63] = torch.nan
        model.head.weight[63] = 0
    return KernelModel.of(model)


@pytest.mark.parametrize("max_batch", [1, 3])
def test_a_slot_that_held_nan_serves_the_next_as_if_new(max_batch: int) -> None:
    model = poisoned_model()
    watched = Watched(model, max_batch, prefill_tokens=16)
    bad = GenerationRequest((*range(20), 63, *range(5)), 8)
    good = {f"good-{number}": request_of(3 + number, 8) for number in range(6)}
    watched.add("bad-first", bad)
    for name, request in good.items():
        watched.add(name, request)
        watched.add(f"bad-beside-{name}", bad)

    watched.run()

    assert_equal_alone(watched, good, model)
    assert {end for name, end in watched.ends.items() if name.startswith("bad")} == {"error"}
    assert {end for name, end in watched.ends.items() if name.startswith("good")} == {"length"}


def test_logits_that_are_no_numbers_end_their_sequence_after_its_last_good_token() -> None:
    watched = Watched()
    watched.add("a", request_of(3, 10, HOT))
    watched.add("b", request_of(4, 10, HOT))
    watched.poison["a"] = 4

    watched.run()

    assert watched.tokens["a"] == alone(request_of(3, 10, HOT)).tokens[:3]
    assert (watched.ends["a"], watched.errors["a"]) == ("error", "non-finite logits")
    assert_equal(watched, "b", alone(request_of(4, 10, HOT)))


# Resuming


@pytest.mark.parametrize("settings", [GREEDY, HOT], ids=["greedy", "sampled"])
@pytest.mark.parametrize("answered", [0, 1, 5, 11])
def test_a_resumed_sequence_goes_on_exactly(answered: int, settings: SamplingSettings) -> None:
    request = request_of(3, 12, settings)
    whole = alone(request)
    watched = Watched(prefill_tokens=4)
    watched.add("neighbour", request_of(9, 12, HOT))

    watched.add("a", request, whole.tokens[:answered])
    watched.run()

    assert_equal(watched, "a", ReferenceAnswer(whole.tokens[answered:], whole.logits[answered:]))
    assert watched.ends["a"] == "length"


@pytest.mark.parametrize("reason", ["stop", "length", "context"])
def test_a_resumed_sequence_that_was_over_ends_without_another_token(reason: str) -> None:
    request = request_of(27, 3 if reason == "length" else 100)
    tokens = alone(request).tokens
    if reason == "stop":
        tokens = tokens[:1]
        request = request_of(27, 100, stop_ids=(tokens[0],))
    watched = Watched()

    watched.add("a", request, tokens)
    watched.run()

    assert (watched.tokens["a"], watched.ends["a"]) == ([], reason)
