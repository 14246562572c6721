"""Conversations: who said what, and the template that makes a prompt of it. It must know neither torch nor Redis.

A template comes with a checkpoint and is a small program in Jinja; :mod:`minilab_gen.text.chat_template` runs it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minilab_gen.errors import CheckpointError, RequestError
from minilab_gen.request import check_text, shown
from minilab_gen.text.tokenizer_config import TOKEN_ROLES, token_text, tokenizer_settings

if TYPE_CHECKING:
    from minilab_gen.text.tokenizer import Tokenizer  # its library takes a while to load, and a conversation needs none

ROLES = ("system", "user", "assistant")

MAX_MESSAGES = 10_000
"""Messages of one conversation, far more than fit any context; it bounds what is looked at before."""

MAX_TEMPLATE_CHARACTERS = 200_000
"""Characters of a template: ten times the longest that models come with. It travels on the model card."""

_LIST_OF_OBJECTS = re.compile(r"\s*\[\s*\{")

_PROBE = "0123456789"
"""An answer that no template changes: what follows it shows how an answer ends."""


@dataclass(frozen=True, slots=True)
class Message:
    """What one side said."""

    role: str
    content: str

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            raise RequestError(f"the role of a message must be one of {', '.join(ROLES)}, got {shown(self.role)}")
        if not isinstance(self.content, str):
            raise RequestError(f"the content of a message must be text, got {type(self.content).__name__}")
        check_text(self.content)


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages in their order; the model is to answer the last."""

    messages: tuple[Message, ...]

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
        if self.messages[0].role == "system":
            raise RequestError("a conversation must have one system message, got another one beside it")
        return Conversation((Message("system", system), *self.messages))

    @classmethod
    def from_text(cls, text: str) -> Conversation:
        """The same of what a user typed: a text that begins with ``[{`` must be messages in JSON."""
        if not _LIST_OF_OBJECTS.match(text):
            return cls.of(text)
        check_text(text)
        try:
            content = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise RequestError(f"messages must be JSON: {error}") from error
        return cls.of(content)


@dataclass(frozen=True, slots=True)
class ChatFormat:
    """How a model wants a conversation written: its template, and the special tokens that this may name."""

    template: str
    tokens: Mapping[str, str] = field(default_factory=dict)
    """Such as ``bos_token``: ``<s>``."""

    def prompt(self, conversation: Conversation, tokenizer: Tokenizer) -> list[int]:
        """The ids of a conversation that the model is to go on with. Raises RequestError if the template refuses it."""
        text = self.render(conversation, add_generation_prompt=True)
        check_text(text)
        return tokenizer.encode(text, bare=True)  # the template has written what stands before a text

    def stop_ids(self, tokenizer: Tokenizer) -> list[int]:
        """The ids that end an answer: what the template puts after one, and the tokenizer's end token."""
        ids = [self._id_after_an_answer(tokenizer), tokenizer.token_id(self.tokens.get("eos_token", ""))]
        return [token_id for token_id in ids if token_id is not None]

    def render(self, conversation: Conversation, *, add_generation_prompt: bool) -> str:
        """The text that the template makes, as transformers' ``apply_chat_template`` would."""
        from minilab_gen.text.chat_template import render  # Jinja takes a while to import, and few commands chat

        messages = [{"role": message.role, "content": message.content} for message in conversation.messages]
        return render(self.template, {**self.tokens, "messages": messages}, add_generation_prompt)

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
    if not isinstance(template, str) or len(template) > MAX_TEMPLATE_CHARACTERS:
        raise CheckpointError(f"{folder}: a chat template must be text of at most {MAX_TEMPLATE_CHARACTERS} characters")
    tokens = {name: token_text(config.get(name)) for name in TOKEN_ROLES}
    return ChatFormat(template, {name: text for name, text in tokens.items() if text is not None})


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
    if set(said) != {"role", "content"}:
        raise RequestError(f"message {index} must have role and content and nothing else, got {shown(list(said))}")
    return Message(said["role"], said["content"])
