"""From logits to tokens: what every setting keeps and drops, and that batched sampling draws the same tokens."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from support.small_models import PROPERTY, stub, threads
from torch import Tensor

from minilab_gen.engine.sampler import _probabilities, choose
from minilab_gen.generate import generate
from minilab_gen.request import GREEDY, SamplingSettings
from minilab_gen.sampling import NonFiniteLogitsError, Sampler, next_token_probabilities

TINY_TEMPERATURES = [1e-4, 1e-5, 1e-37, 1e-38, 1e-40, 5e-324]
ROUNDING = 1e-5
"""How far a float32 sum of a few dozen probabilities may be from the true one."""


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Two threads on rows this short only wait for each other."""
    with threads(1):
        yield


def kept(logits: list[float], settings: SamplingSettings) -> set[int]:
    """The ids that may be drawn."""
    return set(next_token_probabilities(torch.tensor(logits), settings).nonzero().flatten().tolist())


def drawn(logits: list[float], settings: SamplingSettings, times: int = 400) -> set[int]:
    """The ids that one generator does draw; at 400 times a quarter is missed once in 10^50."""
    sampler = Sampler(settings, len(logits))
    return {sampler.choose(torch.tensor(logits)) for _ in range(times)}


def tokens_of(logits: list[float], settings: SamplingSettings, length: int = 8) -> list[int]:
    return [step.token_id for step in generate(stub(logits), [0], length, settings)]


# Temperature


@pytest.mark.parametrize("temperature", TINY_TEMPERATURES)
def test_a_tiny_temperature_is_greedy(temperature: float) -> None:
    settings = SamplingSettings(temperature=temperature)

    assert tokens_of([1, 2, 3, 4], settings) == [3] * 8


@pytest.mark.parametrize("exponent", range(-9, -1))
def test_no_temperature_between_small_and_tiny_makes_a_hole(exponent: int) -> None:
    settings = SamplingSettings(temperature=10.0**exponent)

    assert tokens_of([0, 10], settings) == [1] * 8


@pytest.mark.parametrize("temperature", [0, *TINY_TEMPERATURES])
def test_a_tiny_temperature_puts_all_probability_on_the_best(temperature: float) -> None:
    probabilities = next_token_probabilities(torch.tensor([1.0, 4.0, 2.0]), SamplingSettings(temperature=temperature))

    assert probabilities.tolist() == [0, 1, 0]


def test_greedy_takes_the_lowest_of_equals() -> None:
    assert tokens_of([1, 5, 5, 2], GREEDY) == [1] * 8


def test_temperature_divides_the_logits() -> None:
    logits = torch.tensor([3.0, 1.0, 0.5])

    probabilities = next_token_probabilities(logits, SamplingSettings(temperature=2.0))

    assert torch.allclose(probabilities, torch.softmax(logits / 2, 0))


@pytest.mark.parametrize("temperature", [1e38, 1e39, 1e308])
def test_a_huge_temperature_makes_finite_logits_equal_and_keeps_impossible_ones_out(temperature: float) -> None:
    logits = torch.tensor([1.0, -math.inf, 3.0, 2.0])

    probabilities = next_token_probabilities(logits, SamplingSettings(temperature=temperature))

    assert probabilities.tolist() == pytest.approx([1 / 3, 0, 1 / 3, 1 / 3])


# Top-k


@pytest.mark.parametrize("top_k", [4, 5, 1_000_000])
def test_a_top_k_of_the_vocabulary_or_more_drops_nothing(top_k: int) -> None:
    logits = torch.tensor([1.0, 2.0, 3.0, 4.0])

    filtered = next_token_probabilities(logits, SamplingSettings(temperature=1.0, top_k=top_k))

    assert torch.equal(filtered, next_token_probabilities(logits, SamplingSettings(temperature=1.0)))
    assert drawn([1, 2, 3, 4], SamplingSettings(temperature=2.0, top_k=top_k)) == {0, 1, 2, 3}


def test_top_k_keeps_those_as_probable_as_the_kth() -> None:
    settings = SamplingSettings(temperature=1.0, top_k=3)

    assert kept([1, 2, 2, 2, 3], settings) == {1, 2, 3, 4}
    assert drawn([1, 2, 2, 2, 3], settings) == {1, 2, 3, 4}


def test_top_k_of_one_is_greedy_where_one_is_best() -> None:
    assert drawn([1, 5, 4, 2], SamplingSettings(temperature=5.0, top_k=1)) == {1}


def test_top_k_of_one_keeps_a_tie_at_the_top() -> None:
    assert kept([5, 1, 5], SamplingSettings(temperature=1.0, top_k=1)) == {0, 2}


# Top-p


def test_a_tiny_top_p_is_greedy() -> None:
    assert tokens_of([1, 2, 3, 4], SamplingSettings(temperature=1.0, top_p=1e-9)) == [3] * 8


def test_a_top_p_below_every_float32_still_keeps_the_best() -> None:
    assert kept([1, 2, 3, 4], SamplingSettings(temperature=1.0, top_p=1e-300)) == {3}


@pytest.mark.parametrize(("top_p", "ids"), [(0.25, {0}), (0.5, {0, 1}), (0.75, {0, 1, 2})])
def test_a_mass_of_exactly_top_p_keeps_no_token_more(top_p: float, ids: set[int]) -> None:
    settings = SamplingSettings(temperature=1.0, top_p=top_p)

    assert kept([0, 0, 0, 0], settings) == ids
    assert drawn([0, 0, 0, 0], settings) == ids


def test_the_token_that_crosses_top_p_stays() -> None:
    logits = [math.log(p) for p in (0.50, 0.35, 0.10, 0.05)]
    settings = SamplingSettings(temperature=1.0, top_p=0.9)

    assert kept(logits, settings) == {0, 1, 2}
    assert drawn(logits, settings) == {0, 1, 2}


@pytest.mark.parametrize("vocab_size", [4, 50257])
def test_a_top_p_of_one_drops_nothing(vocab_size: int) -> None:
    logits = [0.0] * vocab_size

    assert len(kept(logits, SamplingSettings(temperature=1.0, top_p=1.0))) == vocab_size


def test_a_top_p_of_one_draws_every_id() -> None:
    assert drawn([0, 0, 0, 0], SamplingSettings(temperature=1.0, top_p=1.0)) == {0, 1, 2, 3}


# The order of the filters


def test_a_low_temperature_narrows_the_nucleus() -> None:
    assert kept([3, 2, 1], SamplingSettings(temperature=0.5, top_p=0.8)) == {0}


def test_a_high_temperature_widens_the_nucleus() -> None:
    assert kept([2, 1, 0], SamplingSettings(temperature=2.0, top_p=0.6)) == {0, 1}


def test_top_p_is_a_share_of_what_top_k_left() -> None:
    assert kept([2, 1, 0], SamplingSettings(temperature=1.0, top_k=2, top_p=0.7)) == {0}


# The draw


def test_thousands_of_draws_never_leave_the_kept_set() -> None:
    logits = torch.randn(100, generator=torch.Generator().manual_seed(0))
    settings = [SamplingSettings(temperature=1.0, top_k=2, seed=seed) for seed in range(200)]
    samplers = [Sampler(s, 100) for s in settings]
    rows = logits.expand(200, -1)

    ids = {token for _ in range(100) for token in choose(rows, samplers)}

    assert ids == set(logits.topk(2).indices.tolist())


def test_the_draw_is_multinomial_with_a_cpu_generator_of_that_seed() -> None:
    logits, settings = torch.tensor([1.0, 2.0, 1.5, 0.0]), SamplingSettings(temperature=1.0, seed=7)
    sampler, generator = Sampler(settings, 4), torch.Generator().manual_seed(7)
    probabilities = next_token_probabilities(logits, settings)

    ours = [sampler.choose(logits) for _ in range(50)]

    assert ours == [int(torch.multinomial(probabilities, 1, generator=generator)) for _ in range(50)]


@pytest.mark.parametrize("vocab_size", [3, 64, 1000])
def test_skipped_tokens_leave_the_generator_where_chosen_ones_would(vocab_size: int) -> None:
    logits = torch.randn(vocab_size, generator=torch.Generator().manual_seed(0))
    settings = SamplingSettings(temperature=2.0, seed=3)
    whole, resumed = Sampler(settings, vocab_size), Sampler(settings, vocab_size)

    tokens = [whole.choose(logits) for _ in range(12)]
    resumed.skip(5)

    assert [resumed.choose(logits) for _ in range(7)] == tokens[5:]


# Logits that are no numbers


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("settings", [GREEDY, SamplingSettings(temperature=1.0)], ids=["greedy", "sampled"])
def test_logits_that_are_not_finite_have_no_next_token(bad: float, settings: SamplingSettings) -> None:
    sampler = Sampler(settings, 3)

    with pytest.raises(NonFiniteLogitsError, match="non-finite logits"):
        sampler.choose(torch.tensor([1.0, bad, 3.0]))


@pytest.mark.parametrize("settings", [GREEDY, SamplingSettings(temperature=1.0)], ids=["greedy", "sampled"])
def test_a_row_that_is_not_finite_fails_alone(settings: SamplingSettings) -> None:
    healthy = torch.tensor([1.0, 5.0, 3.0])
    rows = torch.stack([healthy, torch.tensor([1.0, math.nan, 3.0]), healthy, torch.full((3,), -math.inf)])
    alone = Sampler(settings, 3).choose(healthy)

    tokens = choose(rows, [Sampler(settings, 3) for _ in rows])

    assert tokens == [alone, None, alone, None]


def test_minus_infinity_is_an_impossible_token_and_no_error() -> None:
    assert drawn([0.0, -math.inf, 0.0], SamplingSettings(temperature=1.0)) == {0, 2}


def test_generation_stops_where_logits_are_not_finite_and_keeps_what_it_had() -> None:
    model = stub([0, 1, 0], [0, 0, 1], [1, 0, 0], [0, math.nan, 0])
    steps = generate(model, [0], 10)

    tokens = [next(steps).token_id for _ in range(3)]

    assert tokens == [1, 2, 0]
    with pytest.raises(NonFiniteLogitsError):
        next(steps)


# Rules that hold for all logits and settings

finite_logits = st.floats(-100, 100, width=32) | st.sampled_from([0.0, 1.0, 2.0])
rows_of_logits = st.lists(finite_logits | st.just(-math.inf), min_size=1, max_size=40).filter(
    lambda row: max(row) > -math.inf
)
any_settings = st.builds(
    SamplingSettings,
    temperature=st.sampled_from([0.0, 5e-324, 1e-30, 1e-3, 1e300]) | st.floats(0.01, 10),
    top_k=st.none() | st.integers(1, 50),
    top_p=st.none() | st.floats(0, 1, exclude_min=True),
    seed=st.integers(0, 2**32 - 1),
)


@PROPERTY
@given(rows_of_logits, any_settings)
@example([0.0, -math.inf], SamplingSettings(temperature=1e300))
def test_probabilities_sum_to_one_and_one_is_above_zero(logits: list[float], settings: SamplingSettings) -> None:
    probabilities = next_token_probabilities(torch.tensor(logits), settings)

    assert bool((probabilities >= 0).all())  # false for NaN
    assert float(probabilities.sum()) == pytest.approx(1, abs=ROUNDING)
    assert bool((probabilities > 0).any())


@PROPERTY
@given(rows_of_logits, any_settings)
def test_what_is_kept_obeys_the_rules(logits: list[float], settings: SamplingSettings) -> None:
    if settings.is_greedy:
        assert kept(logits, settings) == {logits.index(max(logits))}
        return
    gaps = torch.tensor(logits) - max(logits)
    plain = torch.softmax(gaps / settings.divisor, 0).tolist()
    kth = sorted(plain, reverse=True)[min(settings.top_k or len(plain), len(plain)) - 1]
    candidates = [token for token, p in enumerate(plain) if p >= kth and p > 0]

    ids = kept(logits, settings)

    if settings.top_p is None or settings.top_p == 1:
        assert ids == set(candidates)
        return
    falling = sorted(candidates, key=lambda token: (-plain[token], token))
    assert ids == set(falling[: len(ids)])
    share = settings.top_p * sum(plain[token] for token in candidates)
    before_last = sum(plain[token] for token in falling[: len(ids) - 1])
    assert len(ids) == 1 or before_last < share + ROUNDING
    assert before_last + plain[falling[len(ids) - 1]] >= share - ROUNDING


@PROPERTY
@given(rows_of_logits, any_settings)
def test_what_is_kept_keeps_its_proportions(logits: list[float], settings: SamplingSettings) -> None:
    plain = next_token_probabilities(torch.tensor(logits), SamplingSettings(temperature=settings.temperature))

    filtered = next_token_probabilities(torch.tensor(logits), settings)

    ids = filtered > 0
    assert torch.allclose(filtered[ids], plain[ids] / plain[ids].sum(), atol=ROUNDING)


# Batched sampling


def mixed_settings(random_: random.Random, rows: int) -> list[SamplingSettings]:
    return [
        SamplingSettings(
            temperature=random_.choice([0.0, 1e-40, 1e-37, 1e-3, 0.3, 0.8, 1.0, 1.5, 1e300]),
            top_k=random_.choice([None, None, 1, 2, 5, 20, 10**6]),
            top_p=random_.choice([None, None, 1e-9, 0.25, 0.5, 0.9, 0.999, 1.0]),
            seed=random_.randrange(2**32),
        )
        for _ in range(rows)
    ]


def mixed_logits(generator: torch.Generator, rows: int, vocab_size: int) -> Tensor:
    """Rows of smooth logits, of logits with many ties, and of logits with impossible tokens."""
    logits = 3 * torch.randn(rows, vocab_size, generator=generator)
    logits[1::3] = logits[1::3].round()
    logits[2::3, ::2] = -math.inf
    return logits


def assert_batched_sampling_equals_the_reference(seed: int, rows: int, vocab_size: int, steps: int) -> None:
    settings = mixed_settings(random.Random(seed), rows)
    generator = torch.Generator().manual_seed(seed)
    batched, alone = ([Sampler(s, vocab_size) for s in settings] for _ in range(2))
    for _ in range(steps):
        logits = mixed_logits(generator, rows, vocab_size)
        together = choose(logits, batched)
        assert together == [sampler.choose(row) for sampler, row in zip(alone, logits, strict=True)]


@PROPERTY
@given(seed=st.integers(0, 2**32 - 1), rows=st.integers(1, 20), vocab_size=st.integers(2, 80))
def test_a_batch_of_mixed_settings_draws_what_each_row_draws_alone(seed: int, rows: int, vocab_size: int) -> None:
    assert_batched_sampling_equals_the_reference(seed, rows, vocab_size, steps=3)


@pytest.mark.parametrize("number", [1, 2])
def test_a_large_vocabulary_draws_the_same_in_a_batch(number: int) -> None:
    with threads(number):
        assert_batched_sampling_equals_the_reference(seed=0, rows=12, vocab_size=50257, steps=2)


@pytest.mark.parametrize("number", [1, 2])
def test_probabilities_of_a_large_vocabulary_are_the_same_bits_in_a_batch(number: int) -> None:
    settings = [s for s in mixed_settings(random.Random(1), 16) if not s.is_greedy]
    logits = mixed_logits(torch.Generator().manual_seed(1), len(settings), 50257)

    with threads(number):
        together = _probabilities(logits, [Sampler(s, 50257) for s in settings])

        alone = [next_token_probabilities(row, s) for row, s in zip(logits, settings, strict=True)]
        assert torch.equal(together, torch.stack(alone))


def test_samplers_of_one_seed_draw_the_same_beside_each_other() -> None:
    settings = SamplingSettings(temperature=1.0, seed=1)
    samplers = [Sampler(settings, 64) for _ in range(2)]
    logits = torch.randn(64, generator=torch.Generator().manual_seed(0)).expand(2, -1)

    pairs = [choose(logits, samplers) for _ in range(20)]

    assert all(first == second for first, second in pairs)
    assert len({first for first, _ in pairs}) > 1


def test_a_greedy_row_stays_greedy_beside_a_sampled_one() -> None:
    logits = torch.randn(64, generator=torch.Generator().manual_seed(0)).expand(2, -1)
    hot = SamplingSettings(temperature=1.5, seed=9)

    pairs = [choose(logits, samplers) for samplers in [[Sampler(GREEDY, 64), Sampler(hot, 64)]] for _ in range(20)]

    assert {greedy for greedy, _ in pairs} == {int(logits[0].argmax())}
    assert len({sampled for _, sampled in pairs}) > 1


@pytest.mark.parametrize("spread", [0.01, 3.0], ids=["flat", "steep"])
@pytest.mark.parametrize(
    "settings",
    [
        SamplingSettings(0.8, seed=3),
        SamplingSettings(0.8, top_k=50, seed=3),
        SamplingSettings(1.0, top_p=0.9, seed=3),
        SamplingSettings(1.3, top_k=5000, top_p=0.95, seed=3),
    ],
    ids=["all", "top-k", "top-p", "both"],
)
def test_tokens_of_a_large_vocabulary_are_those_of_the_reference(settings: SamplingSettings, spread: float) -> None:
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(4, 49_152, generator=generator) * spread
    alone, batched = ([Sampler(replace(settings, seed=seed), 49_152) for seed in range(4)] for _ in range(2))

    for _ in range(5):
        expected = [sampler.choose(row) for sampler, row in zip(alone, logits, strict=True)]
        assert choose(logits, batched) == expected


@pytest.mark.parametrize(
    ("seed", "first"),
    [
        *((39313, 53), (10575, 6), (17338, 48), (36257, 10)),  # 1 - u is some 2e-5: wrong by a ten-thousandth
        *((645760, 22), (55323, 25), (287721, 0), (597320, 37)),  # some 2e-7: wrong by up to a hundredth
        (228316, 41),  # 2e-8: u is 1 in float32, and its token could never be chosen
    ],
)
def test_a_draw_that_float32_cannot_decide_is_that_of_the_reference(seed: int, first: int) -> None:
    """Two tokens whose scores nearly agree, one of them by a random number just below 1."""
    settings, other = SamplingSettings(temperature=1.0, seed=seed), (first + 1) % 64
    uniform = torch.empty(64, dtype=torch.float64)
    Sampler(settings, 64).fill_uniform(uniform)
    noise = [-math.log1p(-float(uniform[token])) for token in (first, other)]
    chosen = set()
    for shift in [sign * 2.0**exponent for sign in (-1, 1) for exponent in range(-17, -3)]:
        logits = torch.full((64,), -math.inf)
        logits[[first, other]] = torch.tensor(noise).log() + torch.tensor([shift, 0.0])

        expected = Sampler(settings, 64).choose(logits)

        assert choose(logits[None], [Sampler(settings, 64)]) == [expected]
        chosen.add(expected)
    assert chosen == {first, other}
