"""Stop texts of a request: how many, how long, how they are written."""

from __future__ import annotations

from typing import Any

import pytest
from support.refusals import refusal

from minilab_gen.request import (
    GenerationRequest,
    ModelLimits,
)

LIMITS = ModelLimits(vocab_size=10, context_length=32)


def test_stop_texts_are_written_only_where_there_are_some() -> None:
    """Workers of an earlier release refuse a field that they do not know."""
    assert GenerationRequest((1,)).to_payload().keys().isdisjoint({"stop", "include_stop"})
    stopping = GenerationRequest((1,), stop=("a", "\n"), include_stop=True)

    assert stopping.to_payload() | {"stop": ["a", "\n"], "include_stop": True} == stopping.to_payload()
    assert GenerationRequest.from_payload(stopping.to_payload()) == stopping


def test_one_stop_text_needs_no_list() -> None:
    assert GenerationRequest.from_payload({"prompt": [1], "stop": "ab"}).stop == ("ab",)


@pytest.mark.parametrize("stop", [(), ("a",) * 16, ("é" * 256,)])
def test_as_many_and_as_long_stop_texts_as_the_rule_says_are_accepted(stop: tuple[str, ...]) -> None:
    assert GenerationRequest((1,), stop=stop).stop == stop


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("stop", "", "stop must hold texts of 1 to 256 characters, got '' at position 0"),
        ("stop", ["a", 5], "stop must hold texts of 1 to 256 characters, got 5 at position 1"),
        ("stop", ["a", None], "stop must hold texts of 1 to 256 characters, got None at position 1"),
        ("stop", ["a"] * 17, "stop must hold at most 16 texts, got 17"),
        ("stop", ["\udcff"], "stop must hold texts of whole characters, got '\\udcff' at position 0"),
        ("stop", {"a": 1}, "stop must be a text or a list of texts, got {'a': 1}"),
        ("stop", b"a", "stop must be a text or a list of texts, got b'a'"),
        ("stop", 5, "stop must be a text or a list of texts, got 5"),
        ("include_stop", 1, "include_stop must be true or false, got 1"),
        ("include_stop", "yes", "include_stop must be true or false, got 'yes'"),
    ],
)
def test_a_bad_stop_text_is_refused_with_the_rule_and_what_came(field: str, value: Any, message: str) -> None:
    assert refusal(GenerationRequest, (1,), **{field: value}) == message


def test_a_stop_text_that_is_too_long_is_quoted_in_short() -> None:
    message = refusal(GenerationRequest, (1,), stop="a" * 257)

    assert message.startswith("stop must hold texts of 1 to 256 characters, got 'aaa")
    assert len(message) < 180
