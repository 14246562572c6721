"""What may be asked: each bad value is refused with the rule and what came, and JSON carries a request unchanged."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.refusals import refusal
from support.small_models import PROPERTY

from minilab_gen.errors import MiniLabError, RequestError
from minilab_gen.request import (
    DEFAULT_MAX_NEW_TOKENS,
    GIVEN_FIELDS,
    GREEDY,
    MAX_SEED,
    MAX_STOP_IDS,
    SETTING_FIELDS,
    GenerationRequest,
    ModelLimits,
    RequestSettings,
    SamplingSettings,
)

LIMITS = ModelLimits(vocab_size=10, context_length=32)


# Sampling settings


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("temperature", math.nan, "temperature must be a finite number, got nan"),
        ("temperature", math.inf, "temperature must be a finite number, got inf"),
        ("temperature", -math.inf, "temperature must be a finite number, got -inf"),
        ("temperature", -1, "temperature must be 0 or more, got -1.0"),
        ("temperature", -1e-9, "temperature must be 0 or more, got -1e-09"),
        ("temperature", True, "temperature must be a number, got True"),
        ("temperature", "1", "temperature must be a number, got '1'"),
        ("temperature", None, "temperature must be a number, got None"),
        ("temperature", [1], "temperature must be a number, got [1]"),
        ("top_k", 0, "top_k must be at least 1, got 0"),
        ("top_k", -1, "top_k must be at least 1, got -1"),
        ("top_k", -5, "top_k must be at least 1, got -5"),
        ("top_k", 2.0, "top_k must be an integer, got 2.0"),
        ("top_k", math.nan, "top_k must be an integer, got nan"),
        ("top_k", True, "top_k must be an integer, got True"),
        ("top_k", "3", "top_k must be an integer, got '3'"),
        ("top_p", 0, "top_p must be above 0 and at most 1, got 0.0"),
        ("top_p", -0.5, "top_p must be above 0 and at most 1, got -0.5"),
        ("top_p", 1.01, "top_p must be above 0 and at most 1, got 1.01"),
        ("top_p", math.nan, "top_p must be a finite number, got nan"),
        ("top_p", -math.inf, "top_p must be a finite number, got -inf"),
        ("top_p", True, "top_p must be a number, got True"),
        ("top_p", "0.9", "top_p must be a number, got '0.9'"),
        ("seed", -1, "seed must be at least 0, got -1"),
        ("seed", 2**32, f"seed must be at most {2**32 - 1}, got {2**32}"),
        ("seed", 2**63, f"seed must be at most {2**32 - 1}, got {2**63}"),
        ("seed", 2**64, f"seed must be at most {2**32 - 1}, got {2**64}"),
        ("seed", 1.5, "seed must be an integer, got 1.5"),
        ("seed", True, "seed must be an integer, got True"),
        ("seed", "1", "seed must be an integer, got '1'"),
        ("seed", None, "seed must be an integer, got None"),
    ],
)
def test_a_bad_setting_is_refused_with_the_rule_and_what_came(field: str, value: Any, message: str) -> None:
    assert refusal(SamplingSettings, **{field: value}) == message


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", 0),
        ("temperature", 5e-324),
        ("temperature", 1e308),
        ("top_k", 1),
        ("top_k", 1_000_000),
        ("top_p", 1e-9),
        ("top_p", 1),
        ("seed", 0),
        ("seed", MAX_SEED),
    ],
)
def test_a_value_at_the_edge_of_its_range_is_accepted(field: str, value: Any) -> None:
    assert getattr(SamplingSettings(**{field: value}), field) == value


def test_the_default_is_greedy() -> None:
    assert SamplingSettings() == GREEDY
    assert GREEDY.is_greedy
    assert not SamplingSettings(temperature=0.01).is_greedy


def test_settings_that_mean_the_same_are_equal() -> None:
    assert SamplingSettings(temperature=1, top_p=1) == SamplingSettings(temperature=1.0, top_p=1.0)


# Requests


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("prompt", (), "prompt must hold at least 1 id, got none"),
        ("prompt", (1, -1), "prompt must hold integers of at least 0, got -1 at position 1"),
        ("prompt", (True,), "prompt must hold integers of at least 0, got True at position 0"),
        ("prompt", (1.0,), "prompt must hold integers of at least 0, got 1.0 at position 0"),
        ("prompt", ("3",), "prompt must hold integers of at least 0, got '3' at position 0"),
        ("prompt", (None,), "prompt must hold integers of at least 0, got None at position 0"),
        ("prompt", "123", "prompt must be a list of ids, got str"),
        ("prompt", b"123", "prompt must be a list of ids, got bytes"),
        ("prompt", {1: 2}, "prompt must be a list of ids, got dict"),
        ("prompt", None, "prompt must be a list of ids, got NoneType"),
        ("prompt", 5, "prompt must be a list of ids, got int"),
        ("max_new_tokens", 0, "max_new_tokens must be at least 1, got 0"),
        ("max_new_tokens", -160, "max_new_tokens must be at least 1, got -160"),
        ("max_new_tokens", 1.5, "max_new_tokens must be an integer, got 1.5"),
        ("max_new_tokens", math.nan, "max_new_tokens must be an integer, got nan"),
        ("max_new_tokens", True, "max_new_tokens must be an integer, got True"),
        ("max_new_tokens", None, "max_new_tokens must be an integer, got None"),
        ("stop_ids", (-1,), "stop_ids must hold integers of at least 0, got -1 at position 0"),
        ("stop_ids", (1, 2.0), "stop_ids must hold integers of at least 0, got 2.0 at position 1"),
        ("stop_ids", 3, "stop_ids must be a list of ids, got int"),
        ("stop_ids", range(MAX_STOP_IDS + 1), "stop_ids must hold at most 16 ids, got 17"),
        ("settings", {"temperature": 1}, "settings must be SamplingSettings, got dict"),
    ],
)
def test_a_bad_request_is_refused_with_the_rule_and_what_came(field: str, value: Any, message: str) -> None:
    assert refusal(GenerationRequest, **{"prompt": (1,), field: value}) == message


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("prompt", (10,), "prompt ids must be 0 to 9, got 10 at position 0"),
        ("prompt", (1, 2, 5279552648203111001), "prompt ids must be 0 to 9, got 5279552648203111001 at position 2"),
        ("prompt", (1,) * 32, "prompt must hold 1 to 31 ids, got 32"),
        ("prompt", (1,) * 33, "prompt must hold 1 to 31 ids, got 33"),
        ("stop_ids", (10,), "stop_ids must be below 10, got 10 at position 0"),
        ("stop_ids", (3, 15), "stop_ids must be below 10, got 15 at position 1"),
    ],
)
def test_what_a_model_cannot_run_is_refused_with_its_limits(field: str, value: Any, message: str) -> None:
    request = GenerationRequest(**{"prompt": (1,), field: value})

    assert refusal(request.check_fits, LIMITS) == message


@pytest.mark.parametrize(("length", "new"), [(20, 1), (10, 11), (15, 10**12)])
def test_what_a_worker_can_never_hold_is_refused_with_the_numbers(length: int, new: int) -> None:
    request = GenerationRequest((9,) * length, max_new_tokens=new)

    message = refusal(request.check_fits, ModelLimits(10, 32, kv_tokens=20))

    came = f"got {length} and up to {min(new, 32 - length)} new ones"
    assert message == f"prompt and answer must fit the 20 tokens that a worker can hold (--kv-tokens), {came}"


def test_a_request_that_a_worker_can_just_hold_fits() -> None:
    GenerationRequest((9,) * 10, max_new_tokens=10).check_fits(ModelLimits(10, 32, kv_tokens=20))


def test_the_longest_prompt_and_the_largest_ids_fit() -> None:
    GenerationRequest((9,) * 31, stop_ids=(9,)).check_fits(LIMITS)


def test_an_answer_is_as_long_as_was_asked_or_as_the_context_leaves() -> None:
    assert GenerationRequest((1,) * 5, max_new_tokens=3).longest_answer(32) == 3
    assert GenerationRequest((1,) * 5, max_new_tokens=10**12).longest_answer(32) == 27


def test_ids_may_come_in_any_sequence_and_are_kept_as_a_tuple() -> None:
    made = GenerationRequest([3, 1], stop_ids=[2])  # type: ignore[arg-type]

    assert made == GenerationRequest((3, 1), stop_ids=(2,))
    assert hash(made) == hash(GenerationRequest((3, 1), stop_ids=(2,)))


def test_a_request_cannot_change() -> None:
    request = GenerationRequest((1,))

    with pytest.raises(dataclasses.FrozenInstanceError):
        request.max_new_tokens = 0  # type: ignore[misc]


def test_a_refusal_is_a_value_error_and_one_of_ours() -> None:
    assert issubclass(RequestError, ValueError)
    assert issubclass(RequestError, MiniLabError)


# Payloads

token_ids = st.lists(st.integers(0, 2**40), max_size=MAX_STOP_IDS)
requests = st.builds(
    GenerationRequest,
    prompt=token_ids.filter(bool),
    max_new_tokens=st.integers(1, 10**12),
    settings=st.builds(
        SamplingSettings,
        temperature=st.floats(0, allow_nan=False, allow_infinity=False),
        top_k=st.none() | st.integers(1, 10**6),
        top_p=st.none() | st.floats(0, 1, exclude_min=True),
        seed=st.integers(0, MAX_SEED),
    ),
    stop_ids=token_ids,
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda children: st.lists(children, max_size=4) | st.dictionaries(st.text(max_size=5), children, max_size=4),
    max_leaves=8,
)
payload_fields = st.sampled_from(["prompt", *SETTING_FIELDS])
almost_payloads = st.builds(
    lambda good, bad: good.to_payload() | bad, requests, st.dictionaries(payload_fields, json_values, max_size=2)
)


@PROPERTY
@given(requests)
def test_strict_json_carries_a_request_unchanged(request_: GenerationRequest) -> None:
    text = json.dumps(request_.to_payload(), allow_nan=False)

    assert GenerationRequest.from_payload(json.loads(text)) == request_


def test_a_payload_may_leave_out_all_but_the_prompt() -> None:
    request = GenerationRequest.from_payload({"prompt": [1]})

    assert request == GenerationRequest((1,), DEFAULT_MAX_NEW_TOKENS, GREEDY, ())


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        ([1, 2], "a request must be an object, got list"),
        (None, "a request must be an object, got NoneType"),
        ("{}", "a request must be an object, got str"),
        ({}, "a request must have a prompt, got none"),
        ({"prompt": [1], "topk": 3}, "a request has no field 'topk'"),
        ({"prompt": [1], "settings": {}}, "a request has no field 'settings'"),
        ({"prompt": [1], "b": 1, 3: 1, "a": 1}, "a request has no field 'a', 'b', 3"),
        ({"prompt": [1], "stop_ids": None}, "stop_ids must be a list of ids, got NoneType"),
        ({"prompt": [1], "temperature": None}, "temperature must be a number, got None"),
    ],
)
def test_a_bad_payload_is_refused_with_the_rule_and_what_came(payload: Any, message: str) -> None:
    assert refusal(GenerationRequest.from_payload, payload) == message


@PROPERTY
@given(json_values | almost_payloads)
def test_whatever_json_comes_it_is_a_request_or_a_refusal(payload: Any) -> None:
    try:
        request = GenerationRequest.from_payload(payload)
    except RequestError:
        return

    assert GenerationRequest.from_payload(request.to_payload()) == request


def test_every_field_of_a_payload_is_a_keyword_argument_that_editors_complete() -> None:
    assert RequestSettings.__annotations__.keys() == set(GIVEN_FIELDS)
    assert GenerationRequest((1,)).to_payload().keys() <= {"prompt", *SETTING_FIELDS}


def test_a_seed_is_set_only_where_tokens_are_drawn() -> None:
    sampled = GenerationRequest((1,), settings=SamplingSettings(temperature=1.0, top_k=3))

    assert sampled.with_seed(7).settings == SamplingSettings(temperature=1.0, top_k=3, seed=7)
    assert GenerationRequest((1,)).with_seed(7).settings.seed == 0
