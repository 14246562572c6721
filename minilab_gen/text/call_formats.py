"""How models write calls of tools in their answers, told from their chat templates. A table, from vLLM's parsers.

A template that is in no row has calls that stay text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class CallFormat:
    """One way to write calls: a mark, then JSON, which is one call or a list of calls, then perhaps another mark."""

    name: str
    """As vLLM names its parser."""
    signs: tuple[str, ...]
    """What stands in the templates of such models."""
    openers: tuple[str, ...]
    """Marks before the JSON."""
    closers: tuple[str, ...]
    """Marks behind it, which may be left out."""
    begun: str
    """What stands before the first call, up to its ``{``."""
    arguments: str = "arguments"
    """The key that the model learned; both ``arguments`` and ``parameters`` are read."""
    is_bare: bool = False
    """Whether an answer that begins with ``{`` is a call, or several with semicolons between them."""
    other_signs: tuple[str, ...] = ()
    """What stands in templates that look alike and mean another format."""


CALL_FORMATS: Final = (
    CallFormat(
        "hermes",
        ("<tool_call>", "</tool_call>"),
        ("<tool_call>",),
        ("</tool_call>",),
        "<tool_call>\n",
        other_signs=("<function=", "<arg_key>"),
    ),
    CallFormat(
        "mistral",
        ("[TOOL_CALLS]",),
        ("[TOOL_CALLS]",),
        (),
        "[TOOL_CALLS] [",
        other_signs=("[ARGS]",),
    ),
    CallFormat(
        "granite",
        ("<|tool_call|>",),
        ("<|tool_call|>", "<tool_call>"),
        ("<|/tool_call|>",),
        "<|tool_call|>[",
    ),
    CallFormat("phi4_mini_json", ("functools[",), ("functools",), (), "functools["),
    CallFormat(
        "llama3_json",
        ('{"name": function name, "parameters": dictionary',),
        ("<|python_tag|>",),
        (),
        "",
        arguments="parameters",
        is_bare=True,
    ),
)

_BY_NAME: Final = {row.name: row for row in CALL_FORMATS}


def call_format_of(template: str) -> CallFormat | None:
    """The format that a chat template teaches; None where it is not known."""
    for row in CALL_FORMATS:
        if all(sign in template for sign in row.signs) and not any(sign in template for sign in row.other_signs):
            return row
    return None


def call_format_named(name: object) -> CallFormat | None:
    """The format of this name; None where there is none, as for one of a later release."""
    return _BY_NAME.get(name) if isinstance(name, str) else None
