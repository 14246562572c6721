"""A model that is asked, as far as whoever asks knows it: its card and its tokenizer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import redis

from minilab_gen.api import chat_prompt, prompt_ids
from minilab_gen.errors import RequestError
from minilab_gen.model_settings import request_fields
from minilab_gen.protocol.cards import ModelCard, read_card, read_tokenizer
from minilab_gen.request import shown
from minilab_gen.text.chat import Conversation
from minilab_gen.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class AskedModel:
    """Its card and its tokenizer, read once."""

    card: ModelCard
    tokenizer: Tokenizer

    @classmethod
    def read(cls, connection: redis.Redis, name: str) -> AskedModel:
        """Raises UnknownModelError."""
        card = read_card(connection, name)
        return cls(card, read_tokenizer(connection, card))

    def ids_of(self, name: str, text: object) -> tuple[int, ...]:
        """The ids of a text that stands in a field of this name. Raises RequestError."""
        if not isinstance(text, str):
            raise RequestError(f"{name} must be a text, got {shown(text)}")
        return tuple(prompt_ids(text, self.tokenizer))

    def chat(self, said: Conversation) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The ids of what was said to the model, and the ids that end its answer. Raises RequestError."""
        ids, ends = chat_prompt(said, self.card, self.tokenizer)
        return tuple(ids), tuple(ends)

    def request_fields(self, given: Mapping[str, object]) -> dict[str, object]:
        """Settings as fields of a request for this model. Raises RequestError."""
        return request_fields(given, lambda: self.tokenizer)

    def chat_as_written(self, said: Conversation, stop_ids: object, ignore_eos: object) -> dict[str, object]:
        """What makes a chat the same whenever and wherever its template is run: what was said, and to which tokenizer.

        In place of the fields of a request that come of it.
        """
        messages = [(message.role, message.content, *filter(None, [message.more])) for message in said.messages]
        written: dict[str, object] = {"prompt": messages, "stop_ids": stop_ids, "tokenizer": self.card.tokenizer}
        extras = {"tools": said.tools, "chat_template_kwargs": said.template_kwargs, "ignore_eos": ignore_eos}
        return written | {name: given for name, given in extras.items() if given}
