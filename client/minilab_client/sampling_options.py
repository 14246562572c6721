"""Options that say how tokens are chosen and where an answer ends."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import click

from minilab_client import parameters
from minilab_client.given_text import read_prompt
from minilab_gen.logprobs import MOST_LISTED
from minilab_gen.request import GIVEN_FIELDS, MAX_STOP_IDS, MAX_STOP_TEXTS

_Command = Callable[..., Any]
_Option = Callable[[_Command], _Command]


def _setting(name: str, read: Callable[[str], object], metavar: str, what: str) -> _Option:
    """An option that the environment may give as well, under its own name."""
    variable = f"MINILAB_{name.upper().replace('-', '_')}"
    return click.option(f"--{name}", type=read, metavar=metavar, envvar=variable, show_envvar=True, help=what)


def _merged(_context: click.Context, _parameter: click.Parameter, given: tuple[dict[int, float], ...]) -> object:
    """The biases of all uses of the option."""
    merged: dict[int, float] = {}
    for biases in given:
        for token, bias in biases.items():
            if token in merged:
                raise click.BadParameter(f"must name each id once, got {token} twice")
            merged[token] = bias
    return merged


_MORE_OPTIONS = (
    _setting(
        "min-p",
        parameters.decimal_number,
        "P",
        "Sample only from tokens at least P times as probable as the most probable one. Default: 0, all.",
    ),
    _setting(
        "repetition-penalty",
        parameters.decimal_number,
        "R",
        "Divide the positive logits of tokens in prompt or answer by R, multiply the others. Default: 1.",
    ),
    _setting(
        "presence-penalty",
        parameters.decimal_number,
        "P",
        "Subtract P, from -2 to 2, from the logits of tokens in the answer. Default: 0.",
    ),
    _setting(
        "frequency-penalty",
        parameters.decimal_number,
        "P",
        "The same for each time that a token is there. Default: 0.",
    ),
    click.option(
        "--logit-bias",
        type=parameters.logit_bias,
        multiple=True,
        callback=_merged,
        metavar="ID=BIAS",
        help="""Add BIAS, from -100 to 100, to the logit of a token; may be repeated. Or JSON: '{"12": -5, "7": 3}'.""",
    ),
    _setting(
        "min-tokens",
        parameters.whole_number,
        "N",
        "Choose no stop token before N tokens. Default: 0.",
    ),
    click.option(
        "--ignore-eos",
        is_flag=True,
        help="Go on after the model's own stop tokens; those of --stop-id end the text all the same.",
    ),
    click.option(
        "--allowed-token-ids",
        type=parameters.token_ids,
        metavar="ID,ID,...",
        help="Choose only these tokens. Default: all.",
    ),
    click.option(
        "--bad-word",
        "bad_words",
        multiple=True,
        metavar="TEXT",
        help="Never write TEXT, as the tokenizer makes tokens of it; may be repeated.",
    ),
    click.option(
        "--bad-word-ids",
        "bad_words_ids",
        type=parameters.token_ids,
        multiple=True,
        metavar="ID,ID,...",
        help="The same for a sequence of tokens.",
    ),
)

_FILE = click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path)

_FORM_OPTIONS = (
    click.option(
        "--json-schema",
        type=_FILE,
        metavar="FILE",
        help="Answer in JSON of the schema in FILE, or - for standard input.",
    ),
    click.option("--json-object", is_flag=True, help="Answer in JSON, an object with any fields."),
    click.option("--regex", metavar="REGEX", help="Answer what REGEX matches as a whole."),
    click.option("--choice", multiple=True, metavar="TEXT", help="Answer one of the texts given; to be repeated."),
    click.option("--grammar", type=_FILE, metavar="FILE", help="Answer what the grammar in FILE derives (Lark)."),
)
"""What the answer must be; at most one of them."""


def _forms(arguments: dict[str, Any]) -> dict[str, object]:
    """The fields of a request that options of a form ask for."""
    schema, grammar = arguments.pop("json_schema", None), arguments.pop("grammar", None)
    forms: dict[str, object] = {}
    if schema is not None:
        forms["response_format"] = {"type": "json_schema", "json_schema": {"schema": _read_json(schema)}}
    if arguments.pop("json_object", False):
        if forms:
            raise click.UsageError("give either --json-schema or --json-object, not both")
        forms["response_format"] = {"type": "json_object"}
    if grammar is not None:
        forms["grammar"] = read_prompt(grammar)
    return forms


def _read_json(file: Path) -> object:
    try:
        return json.loads(read_prompt(file))
    except (ValueError, RecursionError) as error:
        raise click.UsageError(f"--json-schema {file} must be JSON: {error}") from error


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
    The command gets those that were given as one mapping, ``sampling``, with the names of :data:`GIVEN_FIELDS`.
    """
    limit = _setting(
        "max-new-tokens",
        parameters.whole_number,
        "N",
        f"Maximum number of new tokens; the model's context may allow fewer. Default: {most}.",
    )

    def decorate(command: _Command) -> _Command:
        decorated = _taking_one_mapping(command)
        for option in reversed((limit, *_OPTIONS, *_MORE_OPTIONS, *(_LOGPROBS if logprobs else ()), *_FORM_OPTIONS)):
            decorated = option(decorated)
        return decorated

    return decorate


def _taking_one_mapping(command: _Command) -> _Command:
    @wraps(command)
    def collecting(*args: Any, **arguments: Any) -> Any:
        forms = _forms(arguments)
        values = forms | {name: arguments.pop(name) for name in GIVEN_FIELDS if name in arguments}
        given = {name: value for name, value in values.items() if value or (value == 0 and value is not False)}
        if "include_stop" in given and "stop" not in given:
            raise click.UsageError("--include-stop goes with --stop")
        return command(*args, sampling=given, **arguments)

    return collecting
