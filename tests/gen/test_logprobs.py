"""Logprobs of answers and of prompts: what they mean, how they are asked for and spelled, and what the engine gives."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.small_models import EIGHT_TO_ONE, PROPERTY, kernel_model

from minilab_gen.engine import Chosen, Ended, Engine, Sequence
from minilab_gen.errors import RequestError
from minilab_gen.generate import generate, logprobs
from minilab_gen.logprobs import (
    MAX_OF_PROMPT,
    PromptLogprobs,
    TokenLogprobs,
    prompt_from_text,
    prompt_to_json,
    prompt_to_text,
)
from minilab_gen.models.kernel_model import KernelModel
from minilab_gen.request import GenerationRequest, ModelLimits, SamplingSettings
from minilab_gen.sampling import NonFiniteLogitsError

MODEL = kernel_model()
PROMPT = tuple(random.Random(1).randrange(64) for _ in range(20))
HOT = SamplingSettings(temperature=1.5, seed=3)
DECIMALS = st.floats(-9999, 0, width=32).map(lambda number: float(f"{number:.9g}"))
LISTED = st.builds(TokenLogprobs, DECIMALS, st.lists(st.tuples(st.integers(0, 200_000), DECIMALS)).map(tuple))


# What they mean


@pytest.mark.parametrize("temperature", [0.0, 0.5, 1.0, 2.0])
def test_logprobs_are_of_the_models_own_distribution_at_any_temperature(temperature: float) -> None:
    logits = torch.tensor([2.0, 1.0, 0.0])
    (step,) = generate_from(logits, SamplingSettings(temperature, top_k=1))

    listed = logprobs(logits, step, 3)

    assert step == 0
    assert listed.logprob == pytest.approx(-0.4076, abs=1e-4)
    assert [token for token, _ in listed.top] == [0, 1, 2]
    assert [logprob for _, logprob in listed.top] == pytest.approx([-0.4076, -1.4076, -2.4076], abs=1e-4)


def generate_from(logits: torch.Tensor, settings: SamplingSettings) -> list[int]:
    from minilab_gen.sampling import Sampler

    return [Sampler(settings, len(logits)).choose(logits)]


def test_a_token_that_is_not_among_the_most_probable_is_there_all_the_same() -> None:
    listed = logprobs(torch.tensor([2.0, 1.0, 0.0]), 2, 1)

    assert listed.logprob == pytest.approx(-2.4076, abs=1e-4)
    assert [token for token, _ in listed.top] == [0]


def test_what_has_no_logprobs_is_refused() -> None:
    with pytest.raises(NonFiniteLogitsError, match="non-finite logits"):
        logprobs(torch.tensor([0.0, math.nan]), 0)
    with pytest.raises(ValueError, match=r"count must be 0 to 20, got 21"):
        logprobs(torch.zeros(3), 0, 21)
    with pytest.raises(ValueError, match=r"token_id must be 0 to 2, got 3"):
        logprobs(torch.zeros(3), 3)


# How they are spelled


@PROPERTY
@given(listed=st.lists(st.none() | LISTED))
def test_what_is_written_is_read_again_and_is_strict_json(listed: list[TokenLogprobs | None]) -> None:
    for one in filter(None, listed):
        assert TokenLogprobs.from_text(one.to_text()) == one
        assert TokenLogprobs.from_json(json.loads(json.dumps(one.to_json(), allow_nan=False))) == one
    assert prompt_from_text(prompt_to_text(listed)) == tuple(listed)


@pytest.mark.parametrize(
    "text", ["", "null", "3", "[]", "[null]", "[0,1]", "[0,[1]]", "[NaN]", "[0,[1,-Infinity]]", "{}"]
)
def test_damaged_logprobs_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        TokenLogprobs.from_text(text)
    with pytest.raises(ValueError, match=r".+"):
        prompt_from_text("null" if text == "" else f"[{text}" if text == "null" else f"[{text}]")


def test_what_results_show_names_its_parts() -> None:
    one = TokenLogprobs(-1.5, ((7, -0.25), (3, -1.5)))

    assert one.to_text() == "[-1.5,[7,-0.25],[3,-1.5]]"
    shown = {"logprob": -1.5, "top_logprobs": [[7, -0.25], [3, -1.5]]}
    assert prompt_to_json([None, one]) == [None, shown]


# How they are asked for


@pytest.mark.parametrize("name", ["logprobs", "prompt_logprobs"])
@pytest.mark.parametrize(
    ("value", "rule"),
    [
        (-1, "must be at least 0, got -1"),
        (21, "must be at most 20, got 21"),
        (True, "must be an integer, got True"),
        (1.0, "must be an integer, got 1.0"),
        ("3", "must be an integer, got '3'"),
    ],
)
def test_a_count_out_of_range_is_refused(name: str, value: object, rule: str) -> None:
    with pytest.raises(RequestError, match=f"{name} {rule}"):
        GenerationRequest.from_payload({"prompt": [1], name: value})


def test_no_token_may_be_asked_only_where_a_prompt_is_scored() -> None:
    assert GenerationRequest((1,), 0, prompt_logprobs=0).max_new_tokens == 0
    with pytest.raises(RequestError, match="max_new_tokens must be at least 1, got 0"):
        GenerationRequest((1,), 0)
    with pytest.raises(RequestError, match="max_new_tokens must be at least 1, got 0"):
        GenerationRequest((1,), 0, logprobs=3)


def test_only_a_scored_prompt_may_fill_the_context() -> None:
    limits = ModelLimits(64, 8)
    GenerationRequest((1,) * 8, 0, prompt_logprobs=0).check_fits(limits)
    with pytest.raises(RequestError, match="prompt must hold 1 to 8 ids, got 9"):
        GenerationRequest((1,) * 9, 0, prompt_logprobs=0).check_fits(limits)
    with pytest.raises(RequestError, match="prompt must hold 1 to 7 ids, got 8"):
        GenerationRequest((1,) * 8, 1, prompt_logprobs=0).check_fits(limits)


def test_a_prompt_whose_logprobs_would_be_too_many_to_keep_is_refused() -> None:
    most = MAX_OF_PROMPT // 21
    GenerationRequest((1,) * most, prompt_logprobs=20)
    with pytest.raises(RequestError, match=rf"at most {MAX_OF_PROMPT} logprobs, got {most + 1} ids with 21 each"):
        GenerationRequest((1,) * (most + 1), prompt_logprobs=20)
    GenerationRequest((1,) * MAX_OF_PROMPT, prompt_logprobs=0)


def test_a_payload_names_logprobs_only_where_they_are_asked_for() -> None:
    assert GenerationRequest((1,)).to_payload().keys() & {"logprobs", "prompt_logprobs"} == set()
    asked = GenerationRequest((1,), logprobs=0, prompt_logprobs=2)
    assert GenerationRequest.from_payload(asked.to_payload()) == asked


# What the engine gives


def answered(
    request: GenerationRequest,
    *,
    model: KernelModel = MODEL,
    neighbours: int = 0,
    answered: tuple[int, ...] = (),
    **options: Any,
) -> tuple[Sequence, list[Chosen], Ended]:
    """What an engine makes of a request, among others."""
    engine = Engine(model, 1 + neighbours, **options)
    sequence = Sequence("x", request, answered)
    for number in range(neighbours):
        engine.add(Sequence(f"n{number}", GenerationRequest(PROMPT[number:], 10, HOT, logprobs=number % 2 or None)))
    engine.add(sequence)
    outcomes = []
    while engine.has_work:
        outcomes += [outcome for outcome in engine.step() if outcome.sequence is sequence]
    engine.check_idle()
    *chosen, end = outcomes
    assert isinstance(end, Ended)
    return sequence, [one for one in chosen if isinstance(one, Chosen)], end


def reference_scores(prompt: tuple[int, ...], count: int) -> PromptLogprobs:
    logits, _ = MODEL(torch.tensor([prompt]))
    return (None, *(logprobs(logits[0, at], prompt[at + 1], count) for at in range(len(prompt) - 1)))


@pytest.mark.parametrize("settings", [SamplingSettings(), HOT])
@pytest.mark.parametrize("neighbours", [0, 6])
def test_tokens_have_the_logprobs_of_the_reference_and_are_the_same_without(
    settings: SamplingSettings, neighbours: int
) -> None:
    steps = list(generate(MODEL, PROMPT, 12, settings))

    _, chosen, _ = answered(GenerationRequest(PROMPT, 12, settings, logprobs=3), neighbours=neighbours)

    assert [one.token_id for one in chosen] == [step.token_id for step in steps]
    assert [one.logprobs for one in chosen] == [logprobs(step.logits, step.token_id, 3) for step in steps]


@pytest.mark.parametrize("temperature", [0.0, 1.2])
def test_settings_that_edit_logits_change_tokens_and_no_logprob_of_the_model(temperature: float) -> None:
    allowed = (5, 9, 11)
    settings = SamplingSettings(temperature, seed=4, presence_penalty=2.0, repetition_penalty=1.7)
    settings = replace(settings, logit_bias={5: 3.0}, allowed_token_ids=allowed)
    steps = list(generate(MODEL, PROMPT, 12, settings))

    _, chosen, _ = answered(GenerationRequest(PROMPT, 12, settings, logprobs=20), neighbours=3)

    assert [one.token_id for one in chosen] == [step.token_id for step in steps]
    ids = list(PROMPT)
    for one in chosen:
        logits, _ = MODEL(torch.tensor([ids]))
        assert one.logprobs == logprobs(logits[0, -1], one.token_id, 20)
        ids.append(one.token_id)
    assert {one.token_id for one in chosen} <= set(allowed)


@pytest.mark.parametrize("prefill_tokens", [1, 3, 7, 64])
@pytest.mark.parametrize("neighbours", [0, 6])
def test_a_prompt_has_the_logprobs_of_the_reference_in_whatever_chunks_it_is_read(
    prefill_tokens: int, neighbours: int
) -> None:
    request = GenerationRequest(PROMPT, 4, prompt_logprobs=2)

    sequence, chosen, _ = answered(request, neighbours=neighbours, prefill_tokens=prefill_tokens)

    assert sequence.prompt_logprobs == reference_scores(PROMPT, 2)
    assert [one.token_id for one in chosen] == [step.token_id for step in generate(MODEL, PROMPT, 4)]
    assert [one.logprobs for one in chosen] == [None] * 4


@pytest.mark.parametrize("prefill_tokens", [1, 5, 64])
def test_a_prompt_is_scored_without_a_token(prefill_tokens: int) -> None:
    whole = (*PROMPT, *PROMPT)[: EIGHT_TO_ONE.context_length]
    for prompt in (PROMPT[:1], PROMPT[:2], PROMPT, whole):
        request = GenerationRequest(prompt, 0, prompt_logprobs=1)

        sequence, chosen, end = answered(request, neighbours=2, prefill_tokens=prefill_tokens)

        assert (chosen, end.reason) == ([], "length")
        assert sequence.prompt_logprobs == reference_scores(prompt, 1)


def test_a_sequence_that_is_preempted_within_its_prompt_has_each_logprob_once() -> None:
    long = (*PROMPT, *PROMPT[:8])
    engine = Engine(MODEL, 4, kv_tokens=109, prefill_tokens=1)
    for number in range(3):
        engine.add(Sequence(str(number), GenerationRequest(PROMPT[number : number + 2], 28, HOT)))
    sequence = Sequence("x", GenerationRequest(long, 4, HOT, prompt_logprobs=1))
    engine.add(sequence)
    preempted = False
    while engine.has_work:
        engine.step()
        preempted = preempted or (sequence.slot is None and 0 < len(sequence.scores) < len(long) - 1)

    assert preempted
    assert sequence.prompt_logprobs == reference_scores(long, 1)


@pytest.mark.parametrize("so_far", [1, 5, 12])
def test_a_sequence_that_goes_on_after_an_interruption_scores_its_prompt_again_and_no_earlier_token(
    so_far: int,
) -> None:
    request = GenerationRequest(PROMPT, 12, HOT, logprobs=1, prompt_logprobs=1)
    _, whole, _ = answered(request)

    sequence, rest, end = answered(request, answered=tuple(one.token_id for one in whole[:so_far]))

    assert sequence.prompt_logprobs == reference_scores(PROMPT, 1)
    assert [(one.number, one.token_id, one.logprobs) for one in rest] == [
        (one.number, one.token_id, one.logprobs) for one in whole[so_far:]
    ]
    assert end.reason == "length"


def test_a_prompt_within_which_logits_are_not_finite_ends_that_sequence_alone() -> None:
    model = kernel_model()
    embedding = torch.randn(64, 64)
    embedding[9] = math.nan  # any sequence that holds this id
    model.set("embedding", embedding)
    sick = GenerationRequest((1, 2, 9, 3, 4), 0, prompt_logprobs=1)
    engine = Engine(model, 2)
    engine.add(Sequence("sick", sick))
    engine.add(Sequence("well", replace(sick, prompt=(1, 2, 3))))

    ends: dict[str, tuple[str, str | None]] = {}
    while engine.has_work:
        ends |= {one.sequence.name: (one.reason, one.error) for one in engine.step() if isinstance(one, Ended)}

    assert ends == {"sick": ("error", "non-finite logits"), "well": ("length", None)}
    engine.check_idle()


def test_a_large_vocabulary_is_judged_a_few_rows_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minilab_gen.engine.engine._JUDGED_LOGITS", 64 * 4)
    monkeypatch.setattr("minilab_gen.engine.engine._LEAST_JUDGED", 2)
    engine = Engine(MODEL, 2)
    scored = Sequence("scored", GenerationRequest(PROMPT, 0, prompt_logprobs=0))
    plain = Sequence("plain", GenerationRequest(PROMPT, 1))
    engine.add(plain)
    engine.add(scored)

    engine.step()

    assert (plain.tokens, scored.read, len(scored.scores)) == (1, 4, 4)
