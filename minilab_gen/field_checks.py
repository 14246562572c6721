"""The checks that fields of a request share. Each raises RequestError with the rule and what came."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sized
from itertools import islice
from reprlib import Repr
from typing import Final

from minilab_gen.errors import RequestError

_LONGEST_QUOTE: Final = 80
"""Characters of a value that a refusal quotes: a line on a terminal, and no megabyte in a stream's last entry."""

_QUOTED: Final = Repr()
_QUOTED.maxstring = _QUOTED.maxlong = _QUOTED.maxother = _LONGEST_QUOTE


def shown(value: object) -> str:
    """A value as a refusal quotes it: short, whatever it is."""
    try:
        text = _QUOTED.repr(value)
    except ValueError:  # Python writes no integer of more than 4300 digits
        return f"an immense {type(value).__name__}"
    return text if len(text) <= _LONGEST_QUOTE else f"{text[:_LONGEST_QUOTE]}..."


def is_whole(text: str) -> bool:
    """Whether UTF-8 can hold a text: JSON can also spell halves of characters."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


def elements(name: str, given: object, *, at_most: int, what: str) -> tuple[object, ...]:
    """The elements of a list; ``what`` names them."""
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
        raise RequestError(f"{name} must be a list of {what}, got {type(given).__name__}")
    kept = tuple(islice(given, at_most + 1))  # what is no list may have no end
    if len(kept) > at_most:
        came = len(given) if isinstance(given, Sized) else "more"
        raise RequestError(f"{name} must hold at most {at_most} {what}, got {came}")
    return kept


def ids(name: str, given: object, *, at_most: int) -> tuple[int, ...]:
    """Token ids, whatever the model's vocabulary."""
    kept = []
    for index, token in enumerate(elements(name, given, at_most=at_most, what="ids")):
        if type(token) is not int or token < 0:
            raise RequestError(f"{name} must hold integers of at least 0, got {shown(token)} at position {index}")
        kept.append(token)
    return tuple(kept)


def ids_below(name: str, given: Iterable[int], vocab_size: int) -> None:
    """Raise RequestError for an id that a model has not."""
    for index, token in enumerate(given):
        if token >= vocab_size:
            raise RequestError(f"{name} must be below {vocab_size}, got {shown(token)} at position {index}")


def integer(name: str, value: object, *, at_least: int, at_most: int | None = None) -> None:
    """Raise RequestError unless this is a whole number in its range."""
    if type(value) is not int:  # a bool is an int to isinstance
        raise RequestError(f"{name} must be an integer, got {shown(value)}")
    if value < at_least:
        raise RequestError(f"{name} must be at least {at_least}, got {shown(value)}")
    if at_most is not None and value > at_most:
        raise RequestError(f"{name} must be at most {at_most}, got {shown(value)}")


def number(name: str, value: object) -> float:
    """A finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise RequestError(f"{name} must be a number, got {shown(value)}")
    try:
        read = float(value)
    except OverflowError:
        read = math.inf
    if not math.isfinite(read):
        raise RequestError(f"{name} must be a finite number, got {shown(value)}")
    return read


def number_within(name: str, value: object, least: float, most: float) -> float:
    """A number from ``least`` to ``most``, both included."""
    read = number(name, value)
    if not least <= read <= most:
        raise RequestError(f"{name} must be from {least:g} to {most:g}, got {read}")
    return read
