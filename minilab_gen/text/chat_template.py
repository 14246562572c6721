"""Chat templates, run as transformers runs them.

A template is a program that came with a model. Jinja's sandbox keeps it from Python and the machine, not from computing
for long; the text that it makes is bounded.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from minilab_gen.errors import RequestError
from minilab_gen.request import MAX_PROMPT_CHARACTERS


def render(template: str, variables: Mapping[str, Any], add_generation_prompt: bool) -> str:
    """The text that a template makes of its variables. Raises RequestError when it refuses them or fails."""
    now = datetime.now().astimezone()  # once, so that a prompt made at midnight has one date
    known = {
        "tools": None,
        "documents": None,
        "add_generation_prompt": add_generation_prompt,
        "strftime_now": now.strftime,
    }
    try:
        return "".join(_bounded(_compiled(template).generate({**known, **variables})))
    except RequestError:
        raise
    except jinja2.TemplateError as error:  # also what a template raises about the messages
        raise RequestError(f"the model's chat template refuses: {error.message or type(error).__name__}") from error
    except Exception as error:  # a template may fail in any way that an expression of Python can
        raise RequestError(f"the model's chat template fails: {type(error).__name__}: {error}") from error


def _bounded(parts: Iterable[str]) -> Iterator[str]:
    length = 0
    for part in parts:
        length += len(part)
        if length > MAX_PROMPT_CHARACTERS:
            raise RequestError(f"the chat template must make at most {MAX_PROMPT_CHARACTERS} characters, got more")
        yield part


class _Generation(Extension):
    """The block ``{% generation %}``, which marks an answer for training; here its content is just written."""

    tags = {"generation"}  # noqa: RUF012 - Jinja's own way

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


@lru_cache(maxsize=8)  # many conversations with one model are the rule
def _compiled(template: str) -> jinja2.Template:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _refuse
    return environment.from_string(template)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON without the escapes for HTML that Jinja's own filter makes."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _refuse(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)
