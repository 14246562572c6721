"""Options that say how jobs are put into a queue, for each command that submits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from minilab_client import parameters
from minilab_client.completion import complete_models
from minilab_gen.protocol import keys
from minilab_gen.protocol.keys import Priority
from minilab_gen.request import MAX_ANSWERS

_Option = Callable[[Callable[..., Any]], Callable[..., Any]]

model_option: _Option = click.option(
    "--model",
    type=parameters.model_name,
    shell_complete=complete_models,
    default=keys.DEFAULT_MODEL,
    metavar="NAME",
    show_default=True,
    envvar="MINILAB_MODEL",
    show_envvar=True,
    help="The model to ask; `minilab-client models` lists them.",
)

n_option: _Option = click.option(
    "--n",
    type=parameters.number_of_answers,
    default="1",
    metavar="N",
    help=f"Answers to give, up to {MAX_ANSWERS}, each a job of its own with the next seed. Default: 1.",
)

template_kwargs_option: _Option = click.option(
    "--chat-template-kwargs",
    "template_kwargs",
    type=parameters.json_value,
    metavar="JSON",
    help="Variables of the model's chat template, such as '{\"enable_thinking\": false}'.",
)

timeout_option: _Option = click.option(
    "--timeout",
    type=parameters.whole_number,
    default=str(keys.DEFAULT_TIMEOUT),
    metavar="SECONDS",
    envvar="MINILAB_TIMEOUT",
    show_envvar=True,
    help=f"Maximum seconds of running. Default: {keys.DEFAULT_TIMEOUT}.",
)


def wait_option(what_for: str, *, flag_value: str | None = None) -> _Option:
    """``--wait SECONDS``; with a ``flag_value`` the number may be left out."""
    may_be_bare: dict[str, Any] = {} if flag_value is None else {"is_flag": False, "flag_value": flag_value}
    return click.option(
        "--wait",
        type=parameters.seconds,
        metavar="SECONDS",
        help=f"{what_for}; the exit code is 124 where it has not ended by then.",
        **may_be_bare,
    )


def priority_option(default: Priority) -> _Option:
    """``--priority``, with the default of a command."""
    return click.option(
        "--priority",
        type=click.Choice(keys.PRIORITIES),
        default=default,
        show_default=True,
        envvar="MINILAB_PRIORITY",
        show_envvar=True,
        help="Jobs of a higher priority are taken first.",
    )


def max_queued_option(what_happens: str) -> _Option:
    """``--max-queued``, with what a command does at that many."""
    return click.option(
        "--max-queued",
        type=parameters.whole_number_from_1,
        metavar="N",
        envvar="MINILAB_MAX_QUEUED",
        show_envvar=True,
        help=what_happens,
    )
