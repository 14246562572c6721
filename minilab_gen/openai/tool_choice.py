"""What ``tool_choice`` asks for: how calls are read in the answers, and the form that makes one certain.

An answer that must be a call goes on within one: the prompt ends with the beginning of a call as the model writes it,
and the form of the answer is the rest, up to its last bracket.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from minilab_gen.errors import RequestError
from minilab_gen.field_checks import shown
from minilab_gen.request import FORM_FIELDS
from minilab_gen.schema_rules import check_schema
from minilab_gen.text.call_formats import CallFormat, call_format_of
from minilab_gen.text.call_reader import CallReading
from minilab_gen.text.chat import ChatFormat, Conversation

TOOL_FIELDS: Final = ("tool_choice", "parallel_tool_calls")

_CHOICES: Final = ("auto", "none", "required")


@dataclass(frozen=True, slots=True)
class ToolPlan:
    """What a request does about calls of tools."""

    conversation: Conversation
    """The one that was asked, with the beginning of the answer where that is given."""
    reading: CallReading | None = None
    """None where calls stay text."""
    form: Mapping[str, object] = field(default_factory=dict)
    """The field of the request that makes the rest of the answer a call."""


def plan_of(given: Mapping[str, Any], said: Conversation, chat: ChatFormat | None) -> ToolPlan:
    """What the fields of a body ask for. Raises RequestError for what cannot be kept.

    ``chat`` is the model's, None where it has none.
    """
    choice, is_single = _choice_of(given), _is_single(given)
    if choice in ("auto", "none"):
        known = None if chat is None or not said.tools or choice == "none" else call_format_of(chat.template)
        _check_strict(said.tools)
        return ToolPlan(said, None if known is None else CallReading(known, _names_of(said.tools), None, is_single))
    if not said.tools:
        raise RequestError(f"tool_choice must be auto or none without tools, got {shown(choice)}")
    if asked := next((name for name in FORM_FIELDS if given.get(name) is not None), None):
        raise RequestError(f"tool_choice must be auto or none beside {asked}, got {shown(choice)}")
    known = None if chat is None else call_format_of(chat.template)
    if known is None:
        rule = "tool_choice must be auto or none for this model, whose chat template shows no way to call that is known"
        raise RequestError(f"{rule}, got {shown(choice)}")
    return _forced_plan(choice, said, known)


def _forced_plan(choice: object, said: Conversation, known: CallFormat) -> ToolPlan:
    _check_strict(said.tools)
    schemas = [(_name(index, tool), _arguments_schema(index, tool)) for index, tool in enumerate(said.tools)]
    name = "" if choice == "required" else _named(choice)
    if name:
        schemas = [(each, schema) for each, schema in schemas if each == name]
        if not schemas:
            raise RequestError(f"tool_choice must name a function of tools, got {shown(name)}")
        del schemas[1:]
    begun, schema = known.begun, _any_call(known, schemas)
    if len(schemas) == 1:  # then the prompt may give its name, too
        ((name, schema),) = schemas
        begun += f'{{"name": {json.dumps(name, ensure_ascii=False)}, "{known.arguments}":'
    return ToolPlan(
        replace(said, begun=begun),
        CallReading(known, _names_of(said.tools), name, is_single=True),
        {"response_format": {"type": "json_schema", "json_schema": {"schema": schema}}},
    )


def _any_call(known: CallFormat, schemas: Sequence[tuple[str, dict[str, Any]]]) -> dict[str, Any]:
    """The schema of a call of one of these functions, with name and arguments in this order."""
    calls = []
    for index, (name, schema) in enumerate(schemas):
        moved = _moved(schema, f"#/anyOf/{index}/properties/{known.arguments}")
        calls.append(
            {
                "type": "object",
                "properties": {"name": {"const": name}, known.arguments: moved},
                "required": ["name", known.arguments],
                "additionalProperties": False,
            }
        )
    return {"anyOf": calls}


def _moved(schema: Any, place: str) -> Any:
    """A schema whose references into itself point to the place where it is put."""
    if isinstance(schema, list):
        return [_moved(each, place) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        name: place + value[1:]
        if name == "$ref" and isinstance(value, str)
        else value
        if name in ("const", "enum", "default", "examples")
        else _moved(value, place)
        for name, value in schema.items()
    }


def _arguments_schema(index: int, tool: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of a function's arguments, which are an object. Raises RequestError for one that cannot be kept."""
    where = f"tools[{index}].function.parameters"
    schema = _function(index, tool).get("parameters")
    if schema is None:
        return {"type": "object", "additionalProperties": False}
    if not isinstance(schema, Mapping):
        raise RequestError(f"{where} must be a schema, got {shown(schema)}")
    schema = {**schema, "type": schema.get("type", "object")}
    if schema["type"] != "object":
        raise RequestError(f"{where} must be of type object, got {shown(schema['type'])}")
    try:
        check_schema(schema)
    except RequestError as error:
        raise RequestError(f"{where}: {error}") from error
    return schema


def _function(index: int, tool: Mapping[str, Any]) -> Mapping[str, Any]:
    function = tool.get("function")
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str) or not function["name"]:
        raise RequestError(f"tools[{index}] must have a function with a name, got {shown(tool)}")
    return function


def _name(index: int, tool: Mapping[str, Any]) -> str:
    name: str = _function(index, tool)["name"]
    return name


def _names_of(tools: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """The names of the functions, in whichever of the two usual ways a tool is described."""
    functions = [tool["function"] if isinstance(tool.get("function"), Mapping) else tool for tool in tools]
    return tuple(dict.fromkeys(name for each in functions if isinstance(name := each.get("name"), str)))


def _named(choice: object) -> str:
    assert isinstance(choice, Mapping), "checked by _choice_of"
    name: str = choice["function"]["name"]
    return name


def _choice_of(given: Mapping[str, Any]) -> object:
    choice = given.get("tool_choice")
    if choice is None:
        return "auto"
    if choice in _CHOICES:
        return choice
    function = choice.get("function") if isinstance(choice, Mapping) and choice.get("type") == "function" else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str) or not function["name"]:
        names = ", ".join(_CHOICES)
        example = '{"type": "function", "function": {"name": "..."}}'
        raise RequestError(f"tool_choice must be {names} or {example}, got {shown(choice)}")
    return choice


def _is_single(given: Mapping[str, Any]) -> bool:
    parallel = given.get("parallel_tool_calls")
    if parallel is not None and not isinstance(parallel, bool):
        raise RequestError(f"parallel_tool_calls must be true or false, got {shown(parallel)}")
    return parallel is False


def _check_strict(tools: Sequence[Mapping[str, Any]]) -> None:
    for index, tool in enumerate(tools):
        function = tool.get("function")
        strict = function.get("strict") if isinstance(function, Mapping) else None
        if strict is not None and not isinstance(strict, bool):
            raise RequestError(f"tools[{index}].function.strict must be true or false, got {shown(strict)}")
