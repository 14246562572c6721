"""Options that say how tokens are chosen and where an answer ends."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import click

from minilab_client import parameters
from minilab_gen.logprobs import MOST_LISTED
from minilab_gen.request import MAX_STOP_IDS, MAX_STOP_TEXTS, SETTING_FIELDS

_Command = Callable[..., Any]
_Option = Callable[[_Command], _Command]


def _setting(name: str, read: Callable[[str], object], metavar: str, what: str) -> _Option:
    """An option that the environment may give as well, under its own name."""
    variable = f"MINILAB_{name.upper().replace('-', '_')}"
    return click.option(f"--{name}", type=read, metavar=metavar, envvar=variable, show_envvar=True, help=what)


_OPTIONS = (
    _setting(
        "temperature",
        parameters.decimal_number,
        "T",
        "Sampling temperature. Default: 0, which always takes the most probable token.",
    ),
    _setting(
        "top-k",
        parameters.whole_number,
        "K",
        "Sample only from the K most probable tokens (ties stay). Default: all.",
    ),
    _setting(
        "top-p",
        parameters.decimal_number,
        "P",
        "Sample only from the most probable tokens whose probabilities add up to P. Default: all.",
    ),
    _setting(
        "seed",
        parameters.whole_number,
        "N",
        "Random seed; the same seed gives the same text. Default: drawn and reported.",
    ),
    click.option(
        "--stop-id",
        "stop_ids",
        type=parameters.whole_number,
        multiple=True,
        metavar="ID",
        help=f"A token that ends the text; up to {MAX_STOP_IDS} times. Default: the model's own.",
    ),
    click.option(
        "--stop",
        "stop",
        multiple=True,
        metavar="TEXT",
        help=f"A text before which the answer ends, such as $'\\n'; up to {MAX_STOP_TEXTS} times. Default: none.",
    ),
    click.option("--include-stop", is_flag=True, default=None, help="Keep the --stop text that ended the answer."),
)


_LOGPROBS = (
    click.option(
        "--logprobs",
        type=parameters.whole_number,
        metavar="K",
        help=f"Give the logprob of each token, and the K most probable tokens, 0 to {MOST_LISTED}. Default: none.",
    ),
    click.option(
        "--prompt-logprobs",
        type=parameters.whole_number,
        metavar="K",
        help="The same for the tokens of the prompt. With --max-new-tokens 0 the prompt is scored, and nothing else.",
    ),
)


def sampling_options(most: str, *, logprobs: bool = False) -> _Option:
    """An option for each setting of a request, named as its field; ``most`` is the default of ``--max-new-tokens``.

    Those of ``logprobs`` are for commands whose output has some.
    The command gets those that were given as one mapping, ``sampling``, part of a payload for
    :meth:`GenerationRequest.from_payload`.
    """
    limit = _setting(
        "max-new-tokens",
        parameters.whole_number,
        "N",
        f"Maximum number of new tokens; the model's context may allow fewer. Default: {most}.",
    )

    def decorate(command: _Command) -> _Command:
        decorated = _taking_one_mapping(command)
        for option in reversed((limit, *_OPTIONS, *(_LOGPROBS if logprobs else ()))):
            decorated = option(decorated)
        return decorated

    return decorate


def _taking_one_mapping(command: _Command) -> _Command:
    @wraps(command)
    def collecting(*args: Any, **arguments: Any) -> Any:
        values = {name: arguments.pop(name) for name in SETTING_FIELDS if name in arguments}
        given = {name: value for name, value in values.items() if value not in (None, ())}
        return command(*args, sampling=given, **arguments)

    return collecting
