"""The engine with all sampling settings: what a sequence gets alone, in any batch and after any interruption."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from support.random_settings import random_settings
from support.watched_engine import (
    HOT,
    ReferenceAnswer,
    Watched,
    alone,
    assert_equal,
    assert_equal_alone,
    model_of,
    request_of,
    run_all,
)

from minilab_gen.request import GenerationRequest, SamplingSettings


def requests(count: int, seed: int) -> dict[str, GenerationRequest]:
    """Random requests with random combinations of all settings."""
    pick = random.Random(seed)
    made = {}
    for number in range(count):
        prompt = tuple(pick.randrange(60) for _ in range(pick.choice([1, 2, 3, 7, 16, 24])))
        stop_ids = tuple(pick.sample(range(8), pick.choice([0, 1, 4])))
        made[f"job-{number}"] = GenerationRequest(
            prompt, pick.choice([4, 9, 1000]), random_settings(pick, 60), stop_ids
        )
    return made


@pytest.mark.parametrize("max_batch", [1, 7])
@pytest.mark.parametrize("seed", range(3))
def test_random_combinations_of_all_settings_are_exact_in_any_batch(max_batch: int, seed: int) -> None:
    asked = requests(40, seed)
    watched = Watched(max_batch=max_batch, prefill_tokens=16, kv_tokens=max_batch * 32 - 5 * (max_batch > 1))

    run_all(watched, asked, seed)

    assert_equal_alone(watched, asked, model_of())


@pytest.mark.parametrize("seed", range(3))
def test_random_combinations_of_all_settings_go_on_exactly_after_a_takeover(seed: int) -> None:
    pick, asked = random.Random(seed), requests(40, seed)
    whole = {name: alone(request) for name, request in asked.items()}
    answered = {name: pick.randrange(len(answer.tokens) + 1) for name, answer in whole.items()}
    watched = Watched(max_batch=7)

    for name, request in asked.items():
        watched.add(name, request, whole[name].tokens[: answered[name]])
    watched.run()

    for name, answer in whole.items():
        first = answered[name]
        assert_equal(watched, name, ReferenceAnswer(answer.tokens[first:], answer.logits[first:]))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_sequence_that_is_left_no_token_ends_alone(temperature: float) -> None:
    doomed = SamplingSettings(temperature, allowed_token_ids=(5,), bad_words_ids=((5, 5, 5),), seed=1)
    watched = Watched()
    watched.add("a", request_of(3, 10, doomed))
    watched.add("b", request_of(4, 10, HOT))

    watched.run()

    assert watched.tokens["a"] == [5, 5]
    assert (watched.ends["a"], watched.errors["a"]) == ("error", "the settings leave no token that may be chosen")
    assert_equal(watched, "b", alone(request_of(4, 10, HOT)))


def test_a_penalty_counts_no_tokens_of_a_neighbour() -> None:
    penalized = replace(HOT, repetition_penalty=1.5, frequency_penalty=0.5)
    asked = {"a": request_of(3, 12, penalized), "long": request_of(20, 12, penalized), "plain": request_of(9, 12, HOT)}

    watched = run_all(Watched(), asked)

    assert_equal_alone(watched, asked, model_of())
    assert watched.tokens["a"] != alone(request_of(3, 12, HOT)).tokens
