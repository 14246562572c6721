"""From logits to tokens: what every setting keeps and drops. Of the draw itself: tests/kernels/test_draws.py."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from support.small_models import PROPERTY, stub

from minilab_gen.generate import generate
from minilab_gen.request import GREEDY, SamplingSettings
from minilab_gen.sampling import NonFiniteLogitsError, Sampler, next_token_probabilities

TINY_TEMPERATURES = [1e-4, 1e-5, 1e-37, 1e-38, 1e-40, 5e-324]
ROUNDING = 1e-5
"""How far a float32 sum of a few dozen probabilities may be from the true one."""


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

    ids = {sampler.choose(logits) for _ in range(100) for sampler in samplers}

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
    resumed.begin(answered=tokens[:5])

    assert [resumed.choose(logits) for _ in range(7)] == tokens[5:]


# Logits that are no numbers


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("settings", [GREEDY, SamplingSettings(temperature=1.0)], ids=["greedy", "sampled"])
def test_logits_that_are_not_finite_have_no_next_token(bad: float, settings: SamplingSettings) -> None:
    sampler = Sampler(settings, 3)

    with pytest.raises(NonFiniteLogitsError, match="non-finite logits"):
        sampler.choose(torch.tensor([1.0, bad, 3.0]))


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
