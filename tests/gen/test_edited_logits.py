"""What bias, masks, penalties and min-p do to a choice: the kernels' and the chain in torch, on stub logits."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import Any

import pytest
import torch
from support.random_settings import random_settings
from support.small_models import stub
from torch import Tensor
from transformers import LogitsProcessorList
from transformers.generation import logits_process as theirs

from minilab_gen.generate import generate
from minilab_gen.request import GREEDY, SamplingSettings
from minilab_gen.sampling import NoTokenLeftError, Sampler, next_token_probabilities

VOCAB = 40


def tokens_of(
    logits: list[float], length: int = 5, *, prompt: tuple[int, ...] = (0,), stop_id: int | None = None, **settings: Any
) -> list[int]:
    """The answer of the reference loop to a model that always gives these logits."""
    return [step.token_id for step in generate(stub(logits), prompt, length, SamplingSettings(**settings), stop_id)]


def drawn(logits: list[float], times: int = 3000, **settings: Any) -> set[int]:
    """The ids that one generator draws."""
    sampler = Sampler(SamplingSettings(**{"temperature": 1.0, **settings}), len(logits))
    return {sampler.choose(torch.tensor(logits)) for _ in range(times)}


# Penalties


@pytest.mark.parametrize("prompt", [(0,), (0, 0, 0)], ids=["once", "three-times"])
@pytest.mark.parametrize(
    ("settings", "tokens"),
    [
        ({"presence_penalty": 1}, [0, 1, 0, 0, 0]),
        ({"frequency_penalty": 1}, [0, 1, 0, 1, 2]),
        ({"repetition_penalty": 2}, [1, 0, 0, 0, 0]),
        ({"presence_penalty": -1}, [0, 0, 0, 0, 0]),
        ({"frequency_penalty": -2}, [0, 0, 0, 0, 0]),
    ],
    ids=str,
)
def test_penalties_count_the_answer_and_only_repetition_the_prompt(
    settings: dict[str, Any], tokens: list[int], prompt: tuple[int, ...]
) -> None:
    assert tokens_of([2.0, 1.5, 0.2], prompt=prompt, **settings) == tokens


def test_a_negative_penalty_rewards_what_was_said() -> None:
    assert tokens_of([1.0, 1.1, 0.0], presence_penalty=-2, logit_bias={1: -0.2}) == [0] * 5
    assert tokens_of([1.0, 1.1, 0.0], 1, prompt=(0,), repetition_penalty=0.5) == [0]


def test_a_repetition_penalty_lowers_negative_logits_too() -> None:
    assert tokens_of([-1.0, -1.2], 1, prompt=(0,), repetition_penalty=2) == [1]


@pytest.mark.parametrize("penalty", [1e-300, 1e-45, 1e300])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_an_extreme_repetition_penalty_leaves_finite_logits(penalty: float, temperature: float) -> None:
    settings = SamplingSettings(temperature, repetition_penalty=penalty)
    logits = torch.tensor([30.0, -20.0, 1.0, -math.inf])

    wanted = next_token_probabilities(logits, settings, prompt=[0, 1, 3])

    sampler = Sampler(settings, 4)
    sampler.begin([0, 1, 3])
    assert wanted[sampler.choose(logits)] > 0.1
    assert float(wanted.sum()) == pytest.approx(1)
    assert wanted[3] == 0


# Bias


def test_a_bias_is_added_before_a_penalty_divides() -> None:
    assert tokens_of([1.0, 1.2], 1, repetition_penalty=2, logit_bias={0: 1}) == [1]


def test_a_bias_of_a_hundred_decides_between_usual_logits() -> None:
    assert tokens_of([30.0, -30.0], logit_bias={"1": 100}) == [1] * 5
    assert tokens_of([30.0, -30.0], logit_bias={"0": -100}) == [1] * 5


def test_a_bias_of_minus_a_hundred_is_a_number_and_no_ban() -> None:
    assert tokens_of([0.0, 500.0], logit_bias={1: -100}) == [1] * 5


# Masks


def test_only_allowed_ids_are_chosen() -> None:
    assert tokens_of([3.0, 2.0, 1.0], allowed_token_ids=(1, 2)) == [1] * 5
    assert drawn([3.0, 2.0, 1.0, 0.0], allowed_token_ids=(1, 3)) == {1, 3}


def test_a_bad_word_is_never_completed_not_even_one_that_the_prompt_began() -> None:
    assert tokens_of([3.0, 2.0, 1.0], bad_words_ids=((0,),)) == [1] * 5
    assert tokens_of([3.0, 2.0, 1.0], prompt=(2,), bad_words_ids=((0, 0),)) == [0, 1, 0, 1, 0]
    assert tokens_of([3.0, 2.0, 1.0], prompt=(2, 0), bad_words_ids=((2, 0, 0), (1, 0))) == [1, 1, 1, 1, 1]
    assert tokens_of([3.0, 2.0, 1.0], prompt=(0,), bad_words_ids=((0, 0, 0, 0),)) == [0, 0, 1, 0, 0]


def test_a_stop_id_cannot_be_chosen_before_min_tokens() -> None:
    assert tokens_of([3.0, 2.0, 1.0], stop_id=0, min_tokens=3) == [1, 1, 1, 0]
    assert tokens_of([3.0, 2.0, 1.0], stop_id=0) == [0]
    assert tokens_of([3.0, 2.0, 1.0], 3, stop_id=0, min_tokens=3) == [1, 1, 1]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_settings_that_leave_no_token_end_the_answer_and_say_why(temperature: float) -> None:
    settings = SamplingSettings(temperature, allowed_token_ids=(1,), bad_words_ids=((1, 1),))
    steps = generate(stub([3.0, 2.0, 1.0]), [0], 5, settings)

    assert next(steps).token_id == 1
    with pytest.raises(NoTokenLeftError, match="the settings leave no token that may be chosen"):
        next(steps)
    with pytest.raises(NoTokenLeftError):
        next_token_probabilities(torch.tensor([3.0, 2.0, 1.0]), settings, prompt=[0], answered=[1])


def test_impossible_tokens_stay_impossible_whatever_the_bias() -> None:
    logits = [0.0, -math.inf, 0.5]

    assert drawn(logits, 400, logit_bias={1: 100}, repetition_penalty=0.5, presence_penalty=-2) == {0, 2}
    for settings in ({"logit_bias": {1: 100}}, {"repetition_penalty": 0.5}, {"repetition_penalty": 2}):
        with pytest.raises(NoTokenLeftError):
            tokens_of([0.0, -math.inf], prompt=(1,), allowed_token_ids=(1,), **settings)
        with pytest.raises(NoTokenLeftError):
            tokens_of([0.0, 1.0], prompt=(1,), allowed_token_ids=(1,), bad_words_ids=((1,),), **settings)


def test_a_mask_holds_for_the_next_choices_until_it_is_taken_away() -> None:
    logits = torch.tensor([float(VOCAB - token) for token in range(VOCAB)])
    sampler = Sampler(SamplingSettings(allowed_token_ids=tuple(range(2, VOCAB))), VOCAB)

    chosen = [sampler.choose(logits)]
    for mask in ((33, 39, 5), (39,), (0, 7), None):
        sampler.mask(mask)
        chosen += [sampler.choose(logits), sampler.choose(logits)]

    assert chosen == [2, 5, 5, 39, 39, 7, 7, 2, 2]
    sampler.mask([0, 1])
    with pytest.raises(NoTokenLeftError):
        sampler.choose(logits)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_mask_alone_needs_no_other_setting(temperature: float) -> None:
    sampler = Sampler(SamplingSettings(temperature), VOCAB)
    sampler.mask([31, 32])

    assert {sampler.choose(torch.zeros(VOCAB)) for _ in range(200)} == ({31} if temperature == 0 else {31, 32})


# Min-p


@pytest.mark.parametrize(
    ("logits", "settings", "ids"),
    [
        ([2.0, 2.0, 1.0, 0.0], {"min_p": 0.3}, {0, 1, 2}),
        ([2.0, 2.0, 1.0, 0.0], {"min_p": 0.3, "temperature": 2.0}, {0, 1, 2, 3}),
        ([2.0, 2.0, 1.0, 0.0], {"min_p": 1}, {0, 1}),
        ([-1.0, -2.0, -9.0], {"min_p": 0.3}, {0, 1}),
        ([2.0, 2.0, 1.0, 0.0], {"min_p": 0}, {0, 1, 2, 3}),
        ([2.0, 2.0, 1.0, 0.0], {"min_p": 0.3, "top_k": 4, "top_p": 1.0}, {0, 1, 2}),
    ],
    ids=str,
)
def test_min_p_is_a_share_of_the_highest_probability(
    logits: list[float], settings: dict[str, Any], ids: set[int]
) -> None:
    assert drawn(logits, **settings) == ids


def test_min_p_follows_top_p_which_counts_what_min_p_would_drop() -> None:
    logits = [math.log(p) for p in (0.45, 0.25, 0.15, 0.15)]

    assert drawn(logits, min_p=0.5) == {0, 1}
    assert drawn(logits[:2], top_p=0.64) == {0}  # so min-p first, as in vLLM, would leave id 0 alone
    assert drawn(logits, min_p=0.5, top_p=0.64) == {0, 1}


# All of them


def test_the_models_own_logits_stay_as_they_are() -> None:
    settings = SamplingSettings(0.8, repetition_penalty=2, logit_bias={1: 5}, allowed_token_ids=(0, 1), min_p=0.1)
    logits = torch.tensor([2.0, 1.5, 0.2])

    steps = list(generate(stub(logits.tolist()), [0], 4, settings))
    next_token_probabilities(logits, settings, prompt=[0])

    assert logits.tolist() == torch.tensor([2.0, 1.5, 0.2]).tolist()
    assert all(torch.equal(step.logits, logits) for step in steps)


def test_settings_at_their_defaults_change_no_bit() -> None:
    logits = torch.randn(VOCAB, generator=torch.Generator().manual_seed(1))
    spelled = {"min_p": 0, "repetition_penalty": 1, "presence_penalty": 0, "logit_bias": {}, "min_tokens": 0}
    for plain in (GREEDY, SamplingSettings(0.9, 20, 0.9, 3)):
        same = SamplingSettings(plain.temperature, plain.top_k, plain.top_p, plain.seed, **spelled)  # type: ignore[arg-type]
        assert same == plain
        assert torch.equal(next_token_probabilities(logits, same), next_token_probabilities(logits, plain))


def of_transformers(logits: Tensor, settings: SamplingSettings, said: list[int], prompt_length: int) -> Tensor:
    """Scores (vocab,) by transformers' processors in the order of its ``generate``, for stop id 3."""
    chain = LogitsProcessorList()
    if settings.logit_bias:
        chain.append(
            theirs.SequenceBiasLogitsProcessor([[[token], bias] for token, bias in settings.logit_bias.items()])
        )
    if settings.repetition_penalty != 1:
        chain.append(theirs.RepetitionPenaltyLogitsProcessor(settings.repetition_penalty))
    if settings.bad_words_ids:
        chain.append(theirs.NoBadWordsLogitsProcessor([list(word) for word in settings.bad_words_ids]))
    if settings.min_tokens:
        chain.append(theirs.MinNewTokensLengthLogitsProcessor(prompt_length, settings.min_tokens, 3, device="cpu"))
    if settings.allowed_token_ids is not None:
        others = [token for token in range(VOCAB) if token not in settings.allowed_token_ids]
        chain.append(theirs.SuppressTokensLogitsProcessor(others))
    if settings.temperature:
        chain.append(theirs.TemperatureLogitsWarper(settings.temperature))
        if settings.top_k:
            chain.append(theirs.TopKLogitsWarper(settings.top_k))
        if settings.top_p:
            chain.append(theirs.TopPLogitsWarper(settings.top_p))
        if settings.min_p:
            chain.append(theirs.MinPLogitsWarper(settings.min_p))
    scores: Tensor = chain(torch.tensor([said]), logits[None].clone())[0]
    return scores


@pytest.mark.parametrize("seed", range(60))
def test_every_setting_agrees_with_transformers(seed: int) -> None:
    pick = random.Random(seed)
    settings = replace(random_settings(pick, VOCAB), presence_penalty=0, frequency_penalty=0)  # transformers lacks them
    logits = torch.randn(VOCAB, generator=torch.Generator().manual_seed(seed)) * 3
    prompt, answered = [[pick.randrange(VOCAB) for _ in range(length)] for length in (pick.randint(1, 9), 3)]
    scores = of_transformers(logits, settings, prompt + answered, len(prompt))

    found = next_token_probabilities(logits, settings, prompt=prompt, answered=answered, stop_ids=[3])

    if settings.is_greedy:
        assert found.argmax() == scores.argmax()
        sampler = Sampler(settings, VOCAB, [3])
        sampler.begin(prompt, answered)
        assert sampler.choose(logits) == scores.argmax()
    else:
        assert torch.allclose(found, torch.softmax(scores, 0), atol=1e-6, rtol=0)


def test_penalties_are_those_of_openais_formula() -> None:
    settings = SamplingSettings(1.0, presence_penalty=0.7, frequency_penalty=-0.3)
    logits, answered = torch.tensor([0.5, 1.0, -1.0, 2.0]), [1, 3, 3, 1, 1]
    counts = torch.tensor([0.0, 3.0, 0.0, 2.0])

    found = next_token_probabilities(logits, settings, prompt=[0, 0, 2], answered=answered)

    wanted = torch.softmax(logits - counts * -0.3 - (counts > 0).float() * 0.7, 0)
    assert torch.allclose(found, wanted, atol=1e-6, rtol=0)
