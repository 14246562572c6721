"""What the body of a request for a response asks for: OpenAI's newer interface, put into the terms of the older ones.

A response is an answer in a chat. Where a model has no chat template, one text without instructions is gone on with.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from minilab_gen.asked_model import AskedModel
from minilab_gen.errors import RequestError
from minilab_gen.openai.bodies import (
    CHAT_COMPLETIONS,
    COMPLETIONS,
    AskedRequest,
    Route,
    read_request,
    refuse_what_we_lack,
)
from minilab_gen.openai.response_items import Item, input_items, messages_of
from minilab_gen.openai.tool_choice import TOOL_FIELDS
from minilab_gen.openai.vllm_names import VLLM_FORMS
from minilab_gen.request import shown

_NAMED_OTHERWISE: Final = {
    "max_tokens": "max_output_tokens",
    "response_format": "text.format",
    "messages": "input",
    "prompt": "input",
    "function.parameters": "parameters",
}
"""Names in the older interfaces: names here."""

_NOT_HERE: Final = ("max_tokens", "max_completion_tokens", "response_format", "logprobs", "prompt_logprobs")
"""Settings of a chat for which there is another field here, or no place in the answer."""

_SETTINGS: Final = {name: ours for name, ours in CHAT_COMPLETIONS.settings.items() if name not in _NOT_HERE}

_NULL_ONLY: Final = (
    *("access_programs", "background_options", "context_management", "conversation", "image", "max_tool_calls"),
    *("moderation", "prompt", "prompt_cache_options", "prompt_cache_retention"),
)

RESPONSES: Final = Route(
    "/v1/responses",
    _SETTINGS,
    (
        *("input", "instructions", "previous_response_id", "max_output_tokens", "text", "background", "metadata"),
        *("include", "top_logprobs", "tools", *TOOL_FIELDS, "chat_template_kwargs", *VLLM_FORMS),
        *("reasoning", "user", "safety_identifier", "prompt_cache_key"),
    ),
    {
        "truncation": ("disabled",),
        "service_tier": ("auto", "default"),
        **dict.fromkeys(_NULL_ONLY, ()),
    },
    (),
)

LOGPROBS: Final = "message.output_text.logprobs"
"""What ``include`` may have."""

MOST_METADATA: Final = 16
LONGEST_METADATA_KEY: Final = 64
LONGEST_TEXT: Final = 512
"""Characters of a value of ``metadata``, as at OpenAI, and of whatever else is only given back."""

_TOOL_CHOICES: Final = ("auto", "none", "required")
_TOOL_FIELDS: Final = ("name", "description", "parameters", "strict")
_FORMAT_FIELDS: Final = ("name", "description", "schema", "strict")


@dataclass(frozen=True, slots=True)
class AskedResponse:
    """What a body asks for, checked."""

    asked: AskedRequest
    items: tuple[Item, ...]
    """The conversation, without instructions."""
    given_back: dict[str, Any]
    """Fields of the response that repeat those of the body, or say what held where it had none."""


def read_response(body: Mapping[str, Any], earlier: Sequence[Item], model: AskedModel) -> AskedResponse:
    """What a body asks for, behind the earlier items of its conversation. Raises RequestError."""
    refuse_what_we_lack(RESPONSES, body)
    given = {name: value for name, value in body.items() if value is not None}
    _check_reasoning(given.get("reasoning"))
    instructions, tools = _text(given, "instructions"), _tools(given.get("tools", []))
    choice, is_parallel = _tool_choice(given.get("tool_choice", "auto")), _parallel(given)
    items = (*earlier, *input_items(given.get("input"), earlier))
    passed = {name: given[name] for name in (*_SETTINGS, *VLLM_FORMS, "chat_template_kwargs") if name in given}
    if "max_output_tokens" in given:
        passed["max_tokens"] = given["max_output_tokens"]
    answer_format = _format(given.get("text", {}))
    if answer_format["type"] != "text":
        passed["response_format"] = _as_response_format(answer_format)
    wants, count = _logprobs(given)
    is_plain = instructions is None and not (earlier or tools) and isinstance(given.get("input"), str)
    is_plain = is_plain and choice in ("auto", "none")
    try:
        if model.card.chat is None and is_plain:
            listed = {"logprobs": count} if wants else {}
            asked = read_request(COMPLETIONS, {**passed, **listed, "prompt": given["input"]}, model)
        else:
            _check_chats(model)
            listed = {"logprobs": True, "top_logprobs": count} if wants else {}
            said = [{"role": "system", "content": instructions}] if instructions is not None else []
            passed |= {"tool_choice": choice, "parallel_tool_calls": is_parallel}
            passed |= {"tools": [_tool_of_chat(tool) for tool in tools]} if tools else {}
            messages = [*said, *messages_of(items)]
            asked = read_request(CHAT_COMPLETIONS, {**passed, **listed, "messages": messages}, model)
    except RequestError as error:
        raise _in_these_words(error) from error
    settings = asked.request.settings
    given_back = {
        "instructions": instructions,
        "max_output_tokens": given.get("max_output_tokens"),
        "metadata": _metadata(given.get("metadata", {})),
        "temperature": settings.temperature,
        "text": {"format": answer_format},
        "tools": tools,
        "tool_choice": given.get("tool_choice", "auto"),
        "parallel_tool_calls": is_parallel,
        "top_logprobs": count,
        "top_p": 1.0 if settings.top_p is None else settings.top_p,
        **{name: _text(given, name, LONGEST_TEXT) for name in ("user", "safety_identifier", "prompt_cache_key")},
    }
    return AskedResponse(asked, items, given_back)


def _check_chats(model: AskedModel) -> None:
    if model.card.chat is None:
        raise RequestError(
            f"the model {model.card.name} has no chat template: input must be one text, without instructions, tools "
            "and previous_response_id"
        )


def _in_these_words(refusal: RequestError) -> RequestError:
    names = "|".join(map(re.escape, _NAMED_OTHERWISE))
    return RequestError(re.sub(rf"\b({names})\b", lambda found: _NAMED_OTHERWISE[found[0]], str(refusal)))


def _text(given: Mapping[str, Any], name: str, longest: int | None = None) -> str | None:
    text = given.get(name)
    if text is not None and not isinstance(text, str):
        raise RequestError(f"{name} must be a text, got {shown(text)}")
    if text is not None and longest is not None and len(text) > longest:
        raise RequestError(f"{name} must have at most {longest} characters, got {len(text)}")
    return text


def _metadata(given: object) -> dict[str, str]:
    if not isinstance(given, dict) or len(given) > MOST_METADATA:
        raise RequestError(f"metadata must be an object of at most {MOST_METADATA} texts, got {shown(given)}")
    for key, value in given.items():
        if len(key) > LONGEST_METADATA_KEY or not isinstance(value, str) or len(value) > LONGEST_TEXT:
            rule = f"keys of at most {LONGEST_METADATA_KEY} characters, and texts of at most {LONGEST_TEXT}"
            raise RequestError(f"metadata must have {rule}, got {shown(key)}: {shown(value)}")
    return given


def _check_reasoning(given: object) -> None:
    is_off = isinstance(given, dict) and all(value in (None, "none") for value in given.values())
    if given is not None and not is_off:
        raise RequestError(f"reasoning is not offered here and must be null, got {shown(given)}")


def _logprobs(given: Mapping[str, Any]) -> tuple[bool, int]:
    """Whether logprobs are wanted, and how many of the most probable tokens with each."""
    include, count = given.get("include", []), given.get("top_logprobs", 0)
    if not isinstance(include, list) or any(name != LOGPROBS for name in include):
        raise RequestError(f"include must be a list, of nothing but {LOGPROBS}, got {shown(include)}")
    if not include and count != 0:
        raise RequestError(f"top_logprobs goes with include [{LOGPROBS}], got {shown(count)} without it")
    if not include:
        return False, 0
    if type(count) is not int:
        raise RequestError(f"top_logprobs must be a whole number, got {shown(count)}")
    return True, count


def _format(text: object) -> dict[str, Any]:
    """The format in the field ``text``."""
    if not isinstance(text, dict) or not text.keys() <= {"format", "verbosity"}:
        raise RequestError(f"text must be an object with a format, got {shown(text)}")
    if text.get("verbosity") not in (None, "medium"):
        raise RequestError(f"text.verbosity is not offered here and must be medium, got {shown(text['verbosity'])}")
    given = text.get("format")
    if given is None:
        return {"type": "text"}
    if not isinstance(given, dict):
        raise RequestError(f"text.format must be an object with a type, got {shown(given)}")
    kind = given.get("type")
    if kind not in ("text", "json_object", "json_schema"):
        raise RequestError(f"text.format must have a type of text, json_object or json_schema, got {shown(kind)}")
    if unknown := given.keys() - {"type", *(_FORMAT_FIELDS if kind == "json_schema" else ())}:
        raise RequestError(f"text.format of type {kind} has no field {shown(min(unknown))}")
    if kind == "json_schema" and not (isinstance(given.get("name"), str) and isinstance(given.get("schema"), dict)):
        raise RequestError("text.format of type json_schema must have a name and a schema, an object")
    _check_types("text.format", given)
    return given


def _check_types(what: str, given: Mapping[str, Any]) -> None:
    for name, kind in (("description", str), ("strict", bool)):
        if not isinstance(given.get(name), kind | None):
            rule = "a text" if kind is str else "true or false"
            raise RequestError(f"{what} must have {rule} as {name}, got {shown(given[name])}")


def _as_response_format(given: Mapping[str, Any]) -> dict[str, Any]:
    kind = given["type"]
    named = {name: given[name] for name in _FORMAT_FIELDS if given.get(name) is not None}
    return {"type": kind, "json_schema": named} if kind == "json_schema" else {"type": kind}


def _tools(given: object) -> list[dict[str, Any]]:
    if not isinstance(given, list):
        raise RequestError(f"tools must be a list of functions, got {shown(given)}")
    for tool in given:
        if not isinstance(tool, dict) or tool.get("type") != "function":
            kind = tool.get("type") if isinstance(tool, dict) else tool
            raise RequestError(f"tools must be of type function, others are not offered here, got {shown(kind)}")
        if unknown := tool.keys() - {"type", *_TOOL_FIELDS}:
            raise RequestError(f"tools may have {', '.join(_TOOL_FIELDS)}, got {shown(min(unknown))}")
        if not (isinstance(tool.get("name"), str) and tool["name"]) or not isinstance(
            tool.get("parameters"), dict | None
        ):
            raise RequestError(f"tools must have a name, and parameters that are an object, got {shown(tool)}")
        _check_types("tools", tool)
    return given


def _tool_choice(given: object) -> object:
    """The choice as chats have it."""
    if given in _TOOL_CHOICES:
        return given
    name = given.get("name") if isinstance(given, dict) and given.get("type") == "function" else None
    if not (isinstance(name, str) and name) or given != {"type": "function", "name": name}:
        rule = f"tool_choice must be {', '.join(_TOOL_CHOICES)} or " + '{"type": "function", "name": "..."}'
        raise RequestError(f"{rule}, got {shown(given)}")
    return {"type": "function", "function": {"name": name}}


def _parallel(given: Mapping[str, Any]) -> bool:
    is_parallel = given.get("parallel_tool_calls", True)
    if not isinstance(is_parallel, bool):
        raise RequestError(f"parallel_tool_calls must be true or false, got {shown(is_parallel)}")
    return is_parallel


def _tool_of_chat(tool: Mapping[str, Any]) -> dict[str, Any]:
    """A tool as chats have it, for the template."""
    return {"type": "function", "function": {name: tool[name] for name in _TOOL_FIELDS if tool.get(name) is not None}}
