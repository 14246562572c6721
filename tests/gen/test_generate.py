"""The reference loop: that it is the one the design describes, where it stops, what it refuses, what a cache saves."""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Generator, Sequence
from typing import Any, cast

import pytest
import torch
from support.small_models import EIGHT_TO_ONE, SHAPES, Stub, kernel_model, naming, random_model, stub

from minilab_gen.generate import Model, Step, generate
from minilab_gen.models.config import ModelConfig
from minilab_gen.models.kernel_model import KernelModel
from minilab_gen.models.kv_cache import KVCache
from minilab_gen.request import GREEDY, SamplingSettings

END = 0
"""The stop id of the tests that need one."""


@pytest.fixture(scope="module")
def model() -> KernelModel:
    return kernel_model()


def tokens_of(steps: Sequence[Step] | Any) -> list[int]:
    return [step.token_id for step in steps]


# The design, section 3, written down once more without any of our modules


def plain_probabilities(
    logits: torch.Tensor, temperature: float, top_k: int | None, top_p: float | None
) -> torch.Tensor:
    probabilities = torch.softmax(logits / temperature, 0)
    if top_k is not None:
        kth = sorted(probabilities.tolist(), reverse=True)[min(top_k, len(probabilities)) - 1]
        probabilities[probabilities < kth] = 0
    if top_p is not None:
        limit, total = top_p * float(probabilities.sum()), 0.0
        for token in probabilities.argsort(descending=True, stable=True).tolist():
            before, total = total, total + float(probabilities[token])
            if before >= limit:
                probabilities[token] = 0
    return probabilities / probabilities.sum()


def plain_tokens(
    model: Model, prompt: list[int], max_new_tokens: int, settings: dict[str, Any], stop_id: int
) -> list[int]:
    generator = torch.Generator().manual_seed(settings["seed"])
    ids = list(prompt)
    while len(ids) - len(prompt) < max_new_tokens and len(ids) < model.config.context_length:
        logits = model(torch.tensor([ids]))[0][0, -1]
        if settings["temperature"] == 0:
            ids.append(int(logits.argmax()))
        else:
            probabilities = plain_probabilities(logits, settings["temperature"], settings["top_k"], settings["top_p"])
            ids.append(int(torch.multinomial(probabilities, 1, generator=generator)))
        if ids[-1] == stop_id:
            break
    return ids[len(prompt) :]


def test_tokens_are_those_of_a_plain_transcription_of_the_design(model: Model) -> None:
    pick = random.Random(0)
    for _ in range(200):
        prompt = [pick.randrange(64) for _ in range(pick.choice([1, 2, 5, 12, 28, 31]))]
        settings: dict[str, Any] = {
            "temperature": pick.choice([0.0, 0.5, 0.8, 1.0, 1.5]),
            "top_k": pick.choice([None, None, 1, 3, 20, 500]),
            "top_p": pick.choice([None, None, 0.3, 0.9, 1.0]),
            "seed": pick.randrange(2**32),
        }
        length, stop_id = pick.randrange(1, 5), pick.randrange(64)

        tokens = tokens_of(generate(model, prompt, length, SamplingSettings(**settings), stop_id))

        assert tokens == plain_tokens(model, prompt, length, settings, stop_id), (prompt, settings)


# The cache


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("shape", SHAPES)
def test_cached_logits_are_those_computed_afresh(shape: str, number: int) -> None:
    model = kernel_model(SHAPES[shape], threads=number)
    settings = SamplingSettings(temperature=1.0, seed=3)
    prompt, length = [3, 1] * 6, 10  # past the first block of keys

    cached, afresh = (list(generate(model, prompt, length, settings, use_cache=use)) for use in (True, False))

    assert tokens_of(cached) == tokens_of(afresh)
    assert all(torch.equal(one.logits, other.logits) for one, other in zip(cached, afresh, strict=True))


def test_one_thread_and_two_give_the_same_logits() -> None:
    runs = [list(generate(kernel_model(threads=number), list(range(20)), 8)) for number in (1, 2)]

    assert all(torch.equal(one.logits, two.logits) for one, two in zip(*runs, strict=True))


def test_a_prompt_read_in_chunks_gives_the_logits_of_one_pass(model: Model) -> None:
    ids = torch.tensor([[index * 5 % 64 for index in range(32)]])
    whole, _ = model(ids)

    for size in (1, 7, 20):
        cache = KVCache(model.config.n_layer)
        chunks = [model(chunk, cache=cache)[0] for chunk in ids.split(size, dim=1)]
        assert torch.equal(torch.cat(chunks, dim=1), whole)


@pytest.mark.parametrize(("use_cache", "projections"), [(True, 508), (False, 32_508)])
def test_the_cache_saves_32_000_projections_in_the_context_of_the_base_model(use_cache: bool, projections: int) -> None:
    config = ModelConfig(vocab_size=8, context_length=128, n_layer=4, n_head=1, d_model=8, d_hidden=8)
    cache = KVCache(config.n_layer)

    steps = list(generate(kernel_model(config), [1, 2], 126, use_cache=use_cache, cache=cache))

    assert len(steps) == 126
    assert cache.projected == projections


def test_a_used_cache_is_refused(model: Model) -> None:
    cache = KVCache(model.config.n_layer)
    list(generate(model, [1, 2], 1, cache=cache))

    with pytest.raises(ValueError, match="cache must be empty, got one that holds 2 tokens"):
        generate(model, [1, 2], 1, cache=cache)


# Seeds


@pytest.mark.parametrize("seed", [0, 2**32 - 1])
def test_the_same_settings_give_the_same_tokens_and_another_seed_gives_others(model: Model, seed: int) -> None:
    settings = SamplingSettings(temperature=1.0, seed=seed)

    first, second = (tokens_of(generate(model, [5], 16, settings)) for _ in range(2))

    assert first == second
    assert first != tokens_of(generate(model, [5], 16, SamplingSettings(temperature=1.0, seed=1)))


def test_a_run_started_inside_another_of_the_same_seed_gives_the_same_tokens(model: Model) -> None:
    settings = SamplingSettings(temperature=1.0, seed=1)
    alone = tokens_of(generate(model, [5], 12, settings))
    first = generate(model, [5], 12, settings)
    begun = [next(first).token_id, next(first).token_id]

    second = tokens_of(generate(model, [5], 12, settings))

    assert second == alone
    assert begun + tokens_of(first) == alone


def test_the_global_generator_is_neither_read_nor_moved(model: Model) -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()

    list(generate(model, [5], 4, SamplingSettings(temperature=1.0)))

    assert torch.equal(torch.get_rng_state(), before)


# Where it stops


@pytest.mark.parametrize("length", [1, 2, 15, 16, 17])
def test_exactly_as_many_tokens_come_as_were_asked_for(length: int) -> None:
    assert tokens_of(generate(naming(8, 5), [1], length)) == [5] * length


@pytest.mark.parametrize(("prompt_length", "asked"), [(5, 1000), (5, 10**12), (31, 5)])
def test_a_full_context_ends_the_answer(prompt_length: int, asked: int) -> None:
    model = naming(8, 5, context_length=32)

    assert len(list(generate(model, [1] * prompt_length, asked))) == 32 - prompt_length


def test_nothing_shifts_when_the_context_fills() -> None:
    model = naming(8, 5, context_length=8)

    list(generate(model, [1, 2, 3], 1000, use_cache=False))

    assert cast(Stub, model).reads == [[1, 2, 3] + [5] * answered for answered in range(5)]


def test_the_stop_token_is_the_last_one_yielded() -> None:
    assert tokens_of(generate(naming(8, 5, 6, END, 7), [1], 10, stop_id=END)) == [5, 6, END]


def test_a_stop_token_that_comes_first_is_the_whole_answer() -> None:
    assert tokens_of(generate(naming(8, END), [1], 10, stop_id=END)) == [END]


def test_a_stop_token_in_the_prompt_stops_nothing() -> None:
    assert tokens_of(generate(naming(8, 5), [7, END, 7], 4, stop_id=END)) == [5] * 4


@pytest.mark.parametrize("make", [tuple, list, set, frozenset])
@pytest.mark.parametrize("last", [END, 6])
def test_any_of_several_stop_ids_ends_the_answer(make: Callable[[list[int]], set[int]], last: int) -> None:
    assert tokens_of(generate(naming(8, 5, last, 5), [1], 10, stop_id=make([END, 6]))) == [5, last]


def test_no_stop_ids_stop_nothing() -> None:
    assert len(list(generate(naming(8, END), [1], 4, stop_id=()))) == 4


# What is refused, at the call


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ([], "prompt must hold at least 1 id, got none"),
        ([1] * 32, "prompt must hold 1 to 31 ids, got 32"),
        ([1] * 33, "prompt must hold 1 to 31 ids, got 33"),
        ([1, 10], "prompt ids must be 0 to 9, got 10 at position 1"),
        ([-1], "prompt must hold integers of at least 0, got -1 at position 0"),
        ([5279552648203111001], "prompt ids must be 0 to 9, got 5279552648203111001 at position 0"),
        ([2**63], f"prompt ids must be 0 to 9, got {2**63} at position 0"),
        ([True], "prompt must hold integers of at least 0, got True at position 0"),
        ([1.0], "prompt must hold integers of at least 0, got 1.0 at position 0"),
        (["3"], "prompt must hold integers of at least 0, got '3' at position 0"),
    ],
)
def test_a_bad_prompt_is_refused_at_the_call(prompt: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        generate(stub([0.0] * 10), prompt, 1)


@pytest.mark.parametrize("stop_id", [10, 15, -1, True, [3, 10], ["3"]])
def test_a_stop_id_outside_the_vocabulary_is_refused_at_the_call(stop_id: Any) -> None:
    with pytest.raises(ValueError, match="stop_ids must"):
        generate(stub([0.0] * 10), [1], 1, stop_id=stop_id)


@pytest.mark.parametrize("length", [0, -160, 1.5, True, "3"])
def test_a_bad_number_of_tokens_is_refused_at_the_call(length: Any) -> None:
    with pytest.raises(ValueError, match="max_new_tokens must be"):
        generate(stub([0.0] * 10), [1], length)


def test_the_largest_id_of_the_vocabulary_is_a_prompt() -> None:
    assert tokens_of(generate(naming(10, 9), [9], 2, stop_id=9)) == [9]


@pytest.mark.parametrize("shape", [(3,), (1, 3)])
def test_a_tensor_of_ids_is_a_prompt(model: Model, shape: tuple[int, ...]) -> None:
    prompt = torch.tensor([4, 5, 6]).view(shape)

    assert tokens_of(generate(model, prompt, 5)) == tokens_of(generate(model, [4, 5, 6], 5))


# A generator like any other


def test_nothing_is_computed_before_the_first_token_is_asked_for() -> None:
    model = naming(8, 5)

    steps = generate(model, [1], 3)

    assert inspect.isgenerator(steps)
    assert cast(Stub, model).reads == []


def test_a_generator_closed_early_computes_no_more(model: Model) -> None:
    cache = KVCache(model.config.n_layer)
    steps = cast(Generator[Step, None, None], generate(model, [1, 2], 10, GREEDY, cache=cache))
    next(steps)
    next(steps)

    steps.close()

    assert list(steps) == []
    assert cache.length == 3  # the prompt and the one answer that was read again


def test_gradients_are_off_inside_and_as_they_were_between_tokens() -> None:
    steps = generate(random_model(EIGHT_TO_ONE), [1, 2], 3)  # not frozen: its weights want gradients

    for step in steps:
        assert not step.logits.requires_grad
        assert torch.is_grad_enabled()
