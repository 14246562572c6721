"""A conversation as it grows: what was said, and how much of it the model still sees."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import chain

from minilab_gen.api import chat_prompt
from minilab_gen.asked_model import AskedModel
from minilab_gen.errors import RequestError
from minilab_gen.text.chat import Conversation, Message

_ANSWER_SHARE = 4
"""The part of a context, one in so many, that is kept free for an answer: older turns give way to it."""


@dataclass(frozen=True, slots=True)
class Question:
    """What a model is asked next."""

    prompt: tuple[int, ...]
    stop_ids: tuple[int, ...]
    max_new_tokens: int
    """Tokens that may follow."""
    forgotten: int
    """Turns, the oldest ones, that had to be dropped for it."""


class Dialogue:
    """The turns so far, each what the user said and what the model answered."""

    def __init__(self, system: str | None = None, template_kwargs: object = None) -> None:
        """``template_kwargs`` are variables of the model's template. Raises RequestError for what can be none."""
        self._blank = Conversation((Message("user", ""),)).with_extras(template_kwargs=template_kwargs)
        self._system = () if system is None else (Message("system", system),)
        self._turns: list[tuple[Message, Message]] = []

    def ask(self, said: str, model: AskedModel, max_new_tokens: int) -> Question:
        """The prompt for what the user says now. Raises RequestError where even that alone is too long."""
        capacity = min(model.card.context_length, model.card.kv_tokens or model.card.context_length)
        wanted = min(max_new_tokens, capacity // _ANSWER_SHARE)
        forgotten = 0
        prompt, stop_ids = self._prompt(said, model, forgotten)
        while len(prompt) + wanted > capacity and forgotten < len(self._turns):
            forgotten += 1
            prompt, stop_ids = self._prompt(said, model, forgotten)
        if len(prompt) >= capacity:
            system = " with --system" if self._system else ""
            raise RequestError(
                f"what you say{system} must leave room in the model's {capacity} tokens, got {len(prompt)}; say less"
            )
        del self._turns[:forgotten]
        return Question(prompt, stop_ids, min(max_new_tokens, capacity - len(prompt)), forgotten)

    def keep(self, said: str, answer: str) -> None:
        """Remember a turn."""
        self._turns.append((Message("user", said), Message("assistant", answer)))

    def _prompt(self, said: str, model: AskedModel, forgotten: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        turns = chain.from_iterable(self._turns[forgotten:])
        conversation = replace(self._blank, messages=(*self._system, *turns, Message("user", said)))
        ids, ends = chat_prompt(conversation, model.card, model.tokenizer)
        return tuple(ids), tuple(ends)
