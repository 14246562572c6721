"""Conversations: who said what, and the template that makes a prompt of it. It must know neither torch nor Redis.

A template comes with a checkpoint and is a small program in Jinja; :mod:`minilab_gen.text.chat_template` runs it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minilab_gen.errors import CheckpointError, RequestError
from minilab_gen.request import check_text, shown
from minilab_gen.text.tokenizer_config import TOKEN_ROLES, token_text, tokenizer_settings

if TYPE_CHECKING:
    from minilab_gen.text.tokenizer import Tokenizer  # its library takes a while to load, and a conversation needs none

ROLES = ("system", "developer", "user", "assistant", "tool")
"""A developer says what the system says, in newer clients' words; a tool says what a call of it gave."""

MAX_MESSAGES = 10_000
"""Messages of one conversation, far more than fit any context; it bounds what is looked at before."""

MAX_TEMPLATE_CHARACTERS = 200_000
"""Characters of a template: ten times the longest that models come with. It travels on the model card."""

MAX_TOOLS = 128
"""Tools that a conversation may offer, as many as OpenAI's interface takes."""

MAX_EXTRA_CHARACTERS = 200_000
"""Characters of the tools, and of the template's settings, each as JSON."""

EXTRAS = ("tools", "chat_template_kwargs")
"""What may be given beside the messages, by the names that vLLM's interface gave them."""

_OUR_VARIABLES = frozenset({"messages", "tools", "documents", "add_generation_prompt", "strftime_now"})
"""Of a template; what is set besides must have other names."""

_LIST_OF_OBJECTS = re.compile(r"\s*\[\s*\{")

_PROBE = "0123456789"
"""An answer that no template changes: what follows it shows how an answer ends."""


@dataclass(frozen=True, slots=True)
class Message:
    """What one side said."""

    role: str
    content: str
    more: Mapping[str, Any] = field(default_factory=dict)
    """``name``, ``tool_calls`` and ``tool_call_id`` where they are given, for templates that know them."""

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            raise RequestError(f"the role of a message must be one of {', '.join(ROLES)}, got {shown(self.role)}")
        if not isinstance(self.content, str):
            raise RequestError(f"the content of a message must be text, got {type(self.content).__name__}")
        check_text(self.content)

    def variables(self, *, knows_developers: bool) -> dict[str, Any]:
        """The message as a template sees it; to a template that does not know developers they are the system."""
        role = "system" if self.role == "developer" and not knows_developers else self.role
        return {"role": role, "content": self.content, **self.more}


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages in their order; the model is to answer the last."""

    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    """What the model may call, each as its template wants it described."""
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Variables of the template, such as ``enable_thinking``."""
    begun: str = ""
    """The beginning of the answer, which is part of the prompt then."""

    def __post_init__(self) -> None:
        if not 1 <= len(self.messages) <= MAX_MESSAGES:
            raise RequestError(f"a conversation must hold 1 to {MAX_MESSAGES} messages, got {len(self.messages)}")

    @classmethod
    def of(cls, content: object) -> Conversation:
        """The conversation of one text, which the user says, or of objects with ``role`` and ``content``.

        Raises RequestError.
        """
        if isinstance(content, str):
            return cls((Message("user", content),))
        if isinstance(content, bytes | Mapping) or not isinstance(content, Iterable):
            raise RequestError(f"a conversation must be a text or a list of messages, got {type(content).__name__}")
        return cls(tuple(_message(index, said) for index, said in enumerate(islice(content, MAX_MESSAGES + 1))))

    def told(self, system: str) -> Conversation:
        """The same with what the model is told before it. Raises RequestError where it begins with that already."""
        if self.messages[0].role in ("system", "developer"):
            raise RequestError("a conversation must have one system message, got another one beside it")
        return replace(self, messages=(Message("system", system), *self.messages))

    def with_extras(self, tools: object = None, template_kwargs: object = None) -> Conversation:
        """The same with tools and variables of the template, None for none. Raises RequestError."""
        return replace(self, tools=_tools(tools), template_kwargs=_template_kwargs(template_kwargs))

    @classmethod
    def from_text(cls, text: str) -> Conversation:
        """The same of what a user typed: a text that begins with ``[{`` must be messages in JSON."""
        if not _LIST_OF_OBJECTS.match(text):
            return cls.of(text)
        return cls.of(_parsed("messages", text))


@dataclass(frozen=True, slots=True)
class ChatFormat:
    """How a model wants a conversation written: its template, and the special tokens that this may name."""

    template: str
    tokens: Mapping[str, str] = field(default_factory=dict)
    """Such as ``bos_token``: ``<s>``."""

    def prompt(self, conversation: Conversation, tokenizer: Tokenizer) -> list[int]:
        """The ids of a conversation that the model is to go on with. Raises RequestError if the template refuses it."""
        text = self.render(conversation, add_generation_prompt=True) + conversation.begun
        check_text(text)
        return tokenizer.encode(text, bare=True)  # the template has written what stands before a text

    def stop_ids(self, tokenizer: Tokenizer) -> list[int]:
        """The ids that end an answer: what the template puts after one, and the tokenizer's end token."""
        ids = [self._id_after_an_answer(tokenizer), tokenizer.token_id(self.tokens.get("eos_token", ""))]
        return [token_id for token_id in ids if token_id is not None]

    def render(self, conversation: Conversation, *, add_generation_prompt: bool) -> str:
        """The text that the template makes, as transformers' ``apply_chat_template`` would."""
        from minilab_gen.text.chat_template import render  # Jinja takes a while to import, and few commands chat

        knows_developers = "developer" in self.template
        messages = [message.variables(knows_developers=knows_developers) for message in conversation.messages]
        given = {**self.tokens, **conversation.template_kwargs, "messages": messages}
        if conversation.tools:
            given["tools"] = list(conversation.tools)
        return render(self.template, given, add_generation_prompt)

    def _id_after_an_answer(self, tokenizer: Tokenizer) -> int | None:
        conversation = Conversation((Message("user", "?"), Message("assistant", _PROBE)))
        try:
            _, found, rest = self.render(conversation, add_generation_prompt=False).rpartition(_PROBE)
        except RequestError:  # a template may refuse to look back
            return None
        after = tokenizer.encode(rest, bare=True) if found else []
        return next((token_id for token_id in after if tokenizer.is_added(token_id)), None)


def read_chat_format(folder: Path) -> ChatFormat | None:
    """The format in a checkpoint folder; None where it has no template. Raises CheckpointError."""
    config = tokenizer_settings(folder)
    template = _template(folder, config.get("chat_template"))
    if template is None:
        return None
    tokens = {name: token_text(config.get(name)) for name in TOKEN_ROLES}
    return checked_format(folder, template, {name: text for name, text in tokens.items() if text is not None})


def checked_format(where: Path, template: Any, tokens: Mapping[str, str]) -> ChatFormat:
    """The format of a template and of the tokens that it may name. Raises CheckpointError for no template's size."""
    if not isinstance(template, str) or len(template) > MAX_TEMPLATE_CHARACTERS:
        raise CheckpointError(f"{where}: a chat template must be text of at most {MAX_TEMPLATE_CHARACTERS} characters")
    return ChatFormat(template, tokens)


def _template(folder: Path, configured: Any) -> Any:
    """A template of its own file, else the one in the tokenizer's config, else the default of several there."""
    file = folder / "chat_template.jinja"
    if file.exists():
        try:
            return file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise CheckpointError(f"{file} cannot be read: {error}") from error
    if not isinstance(configured, list):
        return configured
    named = {entry.get("name"): entry.get("template") for entry in configured if isinstance(entry, dict)}
    return named.get("default")


def _message(index: int, said: object) -> Message:
    if not isinstance(said, Mapping):
        raise RequestError(f"message {index} must be an object with role and content, got {type(said).__name__}")
    if said.get("tool_calls") is not None:
        said = {"content": None, **said}  # clients leave it out beside calls
    if not {"role", "content"} <= set(said) <= {"role", "content", *_MORE}:
        names = ", ".join(_MORE)
        raise RequestError(f"message {index} must have role and content, and may have {names}, got {shown(list(said))}")
    more = {name: _MORE[name](said[name]) for name in _MORE if said.get(name) is not None}
    content = said["content"]
    if content is None and "tool_calls" in more:
        content = ""
    return Message(said["role"], _joined(content) if isinstance(content, list) else content, more)


def _joined(parts: list[Any]) -> str:
    """The text of content parts; those of other types, images for instance, are refused."""
    for part in parts:
        if not isinstance(part, Mapping) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise RequestError(f'content parts must be {{"type": "text", "text": "..."}}, got {shown(part)}')
    return "\n".join(part["text"] for part in parts)


def _text_field(value: object) -> str:
    if not isinstance(value, str):
        raise RequestError(f"name and tool_call_id must be texts, got {shown(value)}")
    check_text(value)
    return value


def _tool_calls(value: object) -> list[dict[str, Any]]:
    """Calls as templates want them: their arguments an object, which OpenAI's clients send as JSON in a text."""
    if not isinstance(value, list) or not all(isinstance(call, Mapping) for call in value):
        raise RequestError(f"tool_calls must be a list of objects, got {shown(value)}")
    calls = []
    for call in value:
        function = call.get("function")
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise RequestError(f"a tool call must have a function with a name, got {shown(call)}")
        arguments = function.get("arguments", {})
        if isinstance(arguments, str):
            arguments = _parsed("the arguments of a tool call", arguments or "{}")
        if not isinstance(arguments, Mapping):
            raise RequestError(f"the arguments of a tool call must be an object, got {shown(arguments)}")
        calls.append({**call, "function": {**function, "arguments": dict(arguments)}})
    _check_size("tool_calls", calls)
    return calls


_MORE: Mapping[str, Callable[[object], Any]] = {
    "name": _text_field,
    "tool_calls": _tool_calls,
    "tool_call_id": _text_field,
}
"""Fields of a message that may be there, and how each is read."""


def _tools(given: object) -> tuple[Mapping[str, Any], ...]:
    if given is None:
        return ()
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
        raise RequestError(f"tools must be a list of objects, got {shown(given)}")
    tools = tuple(islice(given, MAX_TOOLS + 1))
    if len(tools) > MAX_TOOLS or not all(isinstance(tool, Mapping) for tool in tools):
        raise RequestError(f"tools must be a list of at most {MAX_TOOLS} objects, got {shown(given)}")
    _check_size("tools", tools)
    return tools


def _template_kwargs(given: object) -> Mapping[str, Any]:
    if given is None:
        return {}
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
        raise RequestError(f"chat_template_kwargs must be an object, got {shown(given)}")
    if taken := sorted(_OUR_VARIABLES & set(given)):
        raise RequestError(f"chat_template_kwargs must not set {taken[0]}, which the conversation sets")
    _check_size("chat_template_kwargs", given)
    return dict(given)


def _check_size(name: str, value: object) -> None:
    try:
        size = len(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise RequestError(f"{name} must be JSON, got {error}") from error
    if size > MAX_EXTRA_CHARACTERS:
        raise RequestError(f"{name} must have at most {MAX_EXTRA_CHARACTERS} characters as JSON, got {size}")


def _parsed(name: str, text: str) -> Any:
    check_text(text)
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"{name} must be JSON: {error}") from error
