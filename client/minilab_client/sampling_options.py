"""Options that say how tokens are chosen and where an answer ends."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import click

from minilab_client import parameters
from minilab_gen.request import MAX_STOP_IDS, SETTING_FIELDS

_Option = Callable[[Callable[..., Any]], Callable[..., Any]]


def sampling_options(most: str) -> _Option:
    """An option for each setting of a request, named as its field; ``most`` is the default of ``--max-new-tokens``.

    The command gets those that were given as one mapping, ``sampling``, part of a payload for
    :meth:`GenerationRequest.from_payload`.
    """
    options = (
        click.option(
            "--max-new-tokens",
            type=parameters.whole_number,
            metavar="N",
            envvar="MINILAB_MAX_NEW_TOKENS",
            show_envvar=True,
            help=f"Maximum number of new tokens; the model's context may allow fewer. Default: {most}.",
        ),
        click.option(
            "--temperature",
            type=parameters.decimal_number,
            metavar="T",
            envvar="MINILAB_TEMPERATURE",
            show_envvar=True,
            help="Sampling temperature. Default: 0, which always takes the most probable token.",
        ),
        click.option(
            "--top-k",
            type=parameters.whole_number,
            metavar="K",
            envvar="MINILAB_TOP_K",
            show_envvar=True,
            help="Sample only from the K most probable tokens (ties stay). Default: all.",
        ),
        click.option(
            "--top-p",
            type=parameters.decimal_number,
            metavar="P",
            envvar="MINILAB_TOP_P",
            show_envvar=True,
            help="Sample only from the most probable tokens whose probabilities add up to P. Default: all.",
        ),
        click.option(
            "--seed",
            type=parameters.whole_number,
            metavar="N",
            envvar="MINILAB_SEED",
            show_envvar=True,
            help="Random seed; the same seed gives the same text. Default: drawn and reported.",
        ),
        click.option(
            "--stop-id",
            "stop_ids",
            type=parameters.whole_number,
            multiple=True,
            metavar="ID",
            help=f"A token that ends the text; up to {MAX_STOP_IDS} times. Default: the model's own.",
        ),
    )

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(command)
        def collecting(*args: Any, **arguments: Any) -> Any:
            values = {name: arguments.pop(name) for name in SETTING_FIELDS if name in arguments}
            given = {name: value for name, value in values.items() if value not in (None, ())}
            return command(*args, sampling=given, **arguments)

        decorated: Callable[..., Any] = collecting
        for option in reversed(options):
            decorated = option(decorated)
        return decorated

    return decorate
