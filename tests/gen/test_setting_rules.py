"""The later sampling settings: what is refused and how, what a payload holds, and what depends on the model."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from support.random_settings import random_settings
from support.refusals import refusal

from minilab_gen.model_settings import bad_word_ids, check_settings, own_ends, request_fields
from minilab_gen.request import (
    GIVEN_FIELDS,
    GREEDY,
    GenerationRequest,
    ModelLimits,
    SamplingSettings,
    given_settings,
)
from minilab_gen.text.tokenizer import Tokenizer, get_tokenizer


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("min_p", -0.1, "min_p must be from 0 to 1, got -0.1"),
        ("min_p", 1.1, "min_p must be from 0 to 1, got 1.1"),
        ("min_p", math.nan, "min_p must be a finite number, got nan"),
        ("min_p", True, "min_p must be a number, got True"),
        ("min_p", None, "min_p must be a number, got None"),
        ("repetition_penalty", 0, "repetition_penalty must be above 0, got 0.0"),
        ("repetition_penalty", -1, "repetition_penalty must be above 0, got -1.0"),
        ("repetition_penalty", math.inf, "repetition_penalty must be a finite number, got inf"),
        ("presence_penalty", 2.1, "presence_penalty must be from -2 to 2, got 2.1"),
        ("presence_penalty", -2.1, "presence_penalty must be from -2 to 2, got -2.1"),
        ("frequency_penalty", 3, "frequency_penalty must be from -2 to 2, got 3.0"),
        ("frequency_penalty", "1", "frequency_penalty must be a number, got '1'"),
        ("logit_bias", {-1: 1}, "logit_bias must have ids in plain digits as keys, got -1"),
        ("logit_bias", {True: 1}, "logit_bias must have ids in plain digits as keys, got True"),
        ("logit_bias", {1.0: 1}, "logit_bias must have ids in plain digits as keys, got 1.0"),
        *(
            ("logit_bias", {key: 1}, f"logit_bias must have ids in plain digits as keys, got {key!r}")
            for key in (" 1", "1 ", "+1", "-1", "1_0", "１", "01", "", "a", "1" * 17)
        ),
        ("logit_bias", {"1": -101}, "the logit_bias of 1 must be from -100 to 100, got -101.0"),
        ("logit_bias", {"1": 100.5}, "the logit_bias of 1 must be from -100 to 100, got 100.5"),
        ("logit_bias", {"1": 1e400}, "the logit_bias of 1 must be a finite number, got inf"),
        ("logit_bias", {"1": math.nan}, "the logit_bias of 1 must be a finite number, got nan"),
        ("logit_bias", {"1": True}, "the logit_bias of 1 must be a number, got True"),
        ("logit_bias", {"1": "5"}, "the logit_bias of 1 must be a number, got '5'"),
        ("logit_bias", {"1": None}, "the logit_bias of 1 must be a number, got None"),
        ("logit_bias", {1: 2, "1": 3}, "logit_bias must name each id once, got one as a number and as a text"),
        ("logit_bias", [[1, 2]], "logit_bias must be an object of id: bias, got list"),
        ("logit_bias", dict.fromkeys(range(1025), 1), "logit_bias must hold at most 1024 ids, got 1025"),
        ("min_tokens", -1, "min_tokens must be at least 0, got -1"),
        ("min_tokens", 1.0, "min_tokens must be an integer, got 1.0"),
        ("min_tokens", True, "min_tokens must be an integer, got True"),
        ("allowed_token_ids", (), "allowed_token_ids must hold at least 1 id, got none"),
        ("allowed_token_ids", "12", "allowed_token_ids must be a list of ids, got str"),
        ("allowed_token_ids", (1, -1), "allowed_token_ids must hold integers of at least 0, got -1 at position 1"),
        ("allowed_token_ids", range(131_073), "allowed_token_ids must hold at most 131072 ids, got 131073"),
        ("bad_words_ids", (1,), "bad_words_ids must be a list of ids, got int"),
        ("bad_words_ids", ((),), "bad_words_ids must hold lists of at least 1 id, got an empty one"),
        ("bad_words_ids", ((1, True),), "bad_words_ids must hold integers of at least 0, got True at position 1"),
        ("bad_words_ids", (range(65),), "bad_words_ids must hold at most 64 ids, got 65"),
        ("bad_words_ids", ((1,),) * 1025, "bad_words_ids must hold at most 1024 lists of ids, got 1025"),
        ("bad_words_ids", "12", "bad_words_ids must be a list of lists of ids, got str"),
    ],
)
def test_a_bad_setting_is_refused_with_the_rule_and_what_came(field: str, value: Any, message: str) -> None:
    assert refusal(SamplingSettings, **{field: value}) == message


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("min_p", value) for value in (0, 1)),
        *(("repetition_penalty", value) for value in (1e-300, 1e300)),
        *((name, value) for name in ("presence_penalty", "frequency_penalty") for value in (-2, 2)),
        ("logit_bias", {0: -100.0, 5: 100.0}),
        ("logit_bias", dict.fromkeys(range(1024), 1)),
        ("min_tokens", 2**63 - 1),
        ("allowed_token_ids", (7,)),
        ("bad_words_ids", (tuple(range(64)),) * 1024),
    ],
)
def test_a_value_at_the_edge_of_its_range_is_accepted(field: str, value: Any) -> None:
    assert getattr(SamplingSettings(**{field: value}), field) == value


def test_null_is_the_default_where_it_is_no_number() -> None:
    off: dict[str, Any] = {"logit_bias": None, "allowed_token_ids": None, "bad_words_ids": None}

    assert SamplingSettings(**off) == SamplingSettings(logit_bias={}, bad_words_ids=()) == GREEDY


@pytest.mark.parametrize("name", GIVEN_FIELDS)
def test_none_leaves_any_setting_out(name: str) -> None:
    assert given_settings({"top_p": 0.5, name: None}) == ({} if name == "top_p" else {"top_p": 0.5})


def test_keys_of_a_bias_are_the_same_as_numbers_and_as_texts_in_any_order() -> None:
    numbers, texts = SamplingSettings(logit_bias={7: 1, 3: -2}), SamplingSettings(logit_bias={"3": -2.0, "7": 1.0})  # type: ignore[dict-item]

    assert numbers == texts
    assert hash(numbers) == hash(texts)
    assert replace(numbers, seed=1).logit_bias == {3: -2.0, 7: 1.0}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"logit_bias": {3: 1, 10: 1}}, "logit_bias ids must be below 10, got 10 at position 1"),
        ({"allowed_token_ids": (10,)}, "allowed_token_ids must be below 10, got 10 at position 0"),
        ({"bad_words_ids": ((1,), (2, 11))}, "bad_words_ids must be below 10, got 11 at position 1"),
    ],
)
def test_an_id_that_the_model_has_not_is_refused(settings: dict[str, Any], message: str) -> None:
    request = GenerationRequest((1,), settings=SamplingSettings(**settings))

    assert refusal(request.check_fits, ModelLimits(10, 32)) == message


def test_min_tokens_cannot_be_more_than_may_follow() -> None:
    settings = SamplingSettings(min_tokens=9)

    assert refusal(GenerationRequest, (1,), 8, settings) == "min_tokens must be at most max_new_tokens, 8, got 9"
    assert GenerationRequest((1,), 9, settings).cut_to(4) == GenerationRequest((1,), 4, SamplingSettings(min_tokens=4))


def test_a_payload_holds_a_later_setting_only_where_it_is_not_at_its_default() -> None:
    first = {"prompt", "max_new_tokens", "temperature", "top_k", "top_p", "seed", "stop_ids"}

    assert GenerationRequest((1,)).to_payload().keys() == first
    assert GenerationRequest((1,), settings=SamplingSettings(min_p=0.1)).to_payload().keys() == {*first, "min_p"}


def test_strict_json_carries_all_settings_unchanged() -> None:
    for seed in range(100):
        request = GenerationRequest((1,), 9, random_settings(random.Random(seed), 60))

        text = json.dumps(request.to_payload(), allow_nan=False)

        assert GenerationRequest.from_payload(json.loads(text)) == request


def test_only_settings_that_change_logits_make_a_greedy_job_cost_more() -> None:
    assert not GREEDY.edits_logits
    assert not SamplingSettings(1.0, 5, 0.9, min_p=0.5).edits_logits
    for changed in ({"repetition_penalty": 1.1}, {"presence_penalty": 1}, {"min_tokens": 1}, {"logit_bias": {1: 0}}):
        assert SamplingSettings(**changed).edits_logits


# What a card and a tokenizer resolve


def no_tokenizer() -> Tokenizer:
    raise AssertionError("nobody needs a tokenizer")


def checked(given: Mapping[str, object]) -> GenerationRequest:
    return check_settings(given, 64)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"ignore_eos": 1}, "ignore_eos must be true or false, got 1"),
        ({"ignore_eos": "yes"}, "ignore_eos must be true or false, got 'yes'"),
        ({"bad_words": "word"}, "bad_words must be a list of texts, got str"),
        ({"bad_words": [5]}, "bad_words must hold texts of 1 to 1000 whole characters, got 5"),
        ({"bad_words": [" "]}, "bad_words must hold texts of 1 to 1000 whole characters, got ' '"),
        ({"bad_words": ["\ud800"]}, "bad_words must hold texts of 1 to 1000 whole characters, got '\\ud800'"),
        ({"bad_words": ["a"] * 513}, "bad_words must hold at most 512 texts, got 513"),
        ({"min_tokens": 65}, "min_tokens must be at most max_new_tokens, 64, got 65"),
        ({"min_p": 2}, "min_p must be from 0 to 1, got 2.0"),
    ],
)
def test_a_bad_setting_is_refused_before_the_model_is_known(given: dict[str, object], message: str) -> None:
    assert refusal(checked, given) == message


def test_ignoring_the_models_own_ends_leaves_those_of_the_request() -> None:
    assert own_ends({}, (0, 2)) == own_ends({"ignore_eos": None}, (0, 2)) == own_ends({"ignore_eos": False}, (0, 2))
    assert own_ends({"ignore_eos": True}, (0, 2)) == ()
    assert request_fields({"ignore_eos": True, "stop_ids": (5,), "min_p": 0.5}, no_tokenizer) == {
        "stop_ids": (5,),
        "min_p": 0.5,
    }


def test_a_bad_word_is_avoided_at_the_start_and_after_a_space() -> None:
    tokenizer = get_tokenizer()
    bare, spaced = (tuple(tokenizer.encode(text)) for text in ("Fogg", " Fogg"))
    assert (len(bare), len(spaced)) == (2, 1)

    assert bad_word_ids("Fogg", tokenizer) == bad_word_ids(" Fogg", tokenizer) == [bare, spaced]
    fields = request_fields({"bad_words": ["Fogg", "Fogg"], "bad_words_ids": [[5]]}, lambda: tokenizer)
    assert fields == {"bad_words_ids": ([5], bare, spaced)}


def test_a_bad_word_of_too_many_tokens_is_refused() -> None:
    message = refusal(bad_word_ids, "xq" * 100, get_tokenizer())

    assert message.startswith("bad_words must hold texts of at most 64 tokens, got 'xqxq")
