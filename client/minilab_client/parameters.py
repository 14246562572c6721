"""What users type, read strictly: nothing that Python would accept and a person did not mean.

Python takes ``1_000``, full-width digits, ``nan`` and ``inf`` for numbers, and so does click.
"""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import click

from minilab_gen.errors import RequestError
from minilab_gen.protocol.keys import LONGEST_TIME, check_job_id, check_model_name, without_owner
from minilab_gen.request import check_n, shown

MAX_WHOLE = 2**63 - 1
"""The largest whole number taken: what Redis counts with, and a bound on the digits that Python is asked to read."""

_AGO = re.compile(r"([0-9]{1,5})([smhd])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}

_WHOLE = re.compile(r"-?[0-9]{1,19}")
_ID = re.compile(r"0|[1-9][0-9]{0,18}")
_DECIMAL = re.compile(r"-?([0-9]{1,40}(\.[0-9]{0,400})?|\.[0-9]{1,400})([eE][+-]?[0-9]{1,4})?")


def whole_number(text: str) -> int:
    """An integer in ASCII digits."""
    if not _WHOLE.fullmatch(text) or abs(int(text)) > MAX_WHOLE:
        raise click.BadParameter(f"must be a whole number of at most {MAX_WHOLE} in ASCII digits, got {shown(text)}")
    return int(text)


def whole_number_from_1(text: str) -> int:
    """An integer that counts something."""
    number = whole_number(text)
    if number < 1:
        raise click.BadParameter(f"must be at least 1, got {number}")
    return number


def number_of_answers(text: str) -> int:
    """How many answers one request is to have."""
    number = whole_number(text)
    try:
        return check_n(number)
    except RequestError as error:
        raise click.BadParameter(str(error).removeprefix("n ")) from error


def token_number(text: str) -> int:
    """How many tokens a reader has already seen."""
    if not text.isascii() or not text.isdigit() or len(text) > len(str(MAX_WHOLE)) or int(text) > MAX_WHOLE:
        raise click.BadParameter(f"must be a token number from 0 to {MAX_WHOLE} in ASCII digits, got {shown(text)}")
    return int(text)


def decimal_number(text: str) -> float:
    """A decimal number in ASCII digits; whether it is in range is for the request to say."""
    if not _DECIMAL.fullmatch(text):
        raise click.BadParameter(f"must be a decimal number in ASCII digits, got {shown(text)}")
    return float(text)


def seconds(text: str) -> float:
    """A time to wait."""
    number = decimal_number(text)
    if not 0 <= number <= LONGEST_TIME:
        raise click.BadParameter(f"must be from 0 to {LONGEST_TIME} seconds, got {text}")
    return number


def token_ids(text: str) -> tuple[int, ...]:
    """Token ids with commas between them."""
    parts = text.split(",")
    for index, part in enumerate(parts):
        if not _WHOLE.fullmatch(part) or part.startswith("-"):
            raise click.BadParameter(
                f"must be ids in ASCII digits with commas between them, got {shown(part)} at position {index}"
            )
    return tuple(map(int, parts))


def logit_bias(text: str) -> dict[int, float]:
    """Biases of ids, as JSON or as one ``ID=BIAS``; whether they are in range is for the request to say."""
    if text.lstrip().startswith("{"):
        pairs = _pairs(text)
    else:
        token, equals, bias = text.partition("=")
        if not equals:
            raise click.BadParameter(f"must be ID=BIAS or JSON, got {shown(text)}")
        pairs = [(token, bias)]
    biases: dict[int, float] = {}
    for token, bias in pairs:
        if not _ID.fullmatch(token):
            raise click.BadParameter(f"must be ID=BIAS or JSON, each ID in plain digits, got {shown(token)}")
        if int(token) in biases:
            raise click.BadParameter(f"must name each id once, got {token} twice")
        biases[int(token)] = bias if isinstance(bias, int | float) else decimal_number(bias)
    return biases


def _pairs(text: str) -> list[tuple[str, Any]]:
    """The fields of a JSON object of numbers, also those that come twice."""
    try:
        pairs = json.loads(text, object_pairs_hook=list)
    except (ValueError, RecursionError) as error:
        raise click.BadParameter(f"must be JSON, got {shown(text)}: {error}") from error
    for token, bias in pairs:
        if isinstance(bias, bool) or not isinstance(bias, int | float):
            raise click.BadParameter(f"must have numbers as biases, got {bias!r} for {token}")
    return list(pairs)


def moment(text: str) -> datetime:
    """A time: so long ago, as ``90s``, ``15m``, ``2h`` or ``1d``, or a date and time, which is local without a zone."""
    if ago := _AGO.fullmatch(text):
        return datetime.now(UTC) - timedelta(seconds=int(ago[1]) * _SECONDS[ago[2]])
    try:
        if text.isascii():
            return datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError):
        pass
    raise click.BadParameter(f"must be like 90s, 15m, 2h, 1d or 2026-11-29T14:00, got {text!r}")


def model_name(text: str) -> str:
    """A model name that may become part of a key, also as the Hub has it, with an owner."""
    try:
        return check_model_name(without_owner(text))
    except RequestError as error:
        raise click.BadParameter(str(error)) from error


def json_value(text: str) -> Any:
    """Any value, as JSON spells it."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise click.BadParameter(f"must be JSON, got {shown(text)}: {error}") from error


def job_id(text: str) -> str:
    """A job id that may become part of a key."""
    try:
        return check_job_id(text)
    except RequestError as error:
        raise click.BadParameter(str(error)) from error
