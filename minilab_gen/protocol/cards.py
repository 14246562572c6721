"""Model cards: what a worker tells clients about its model. It must not know torch, so a card holds plain values.

The tokenizer travels beside the card under the hash of its text, so that a card is cheap to read.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from functools import cache
from typing import Any

import redis

from minilab_gen.errors import CardError, UnknownModelError
from minilab_gen.protocol import keys
from minilab_gen.request import ModelLimits
from minilab_gen.text.chat import ChatFormat
from minilab_gen.text.tokenizer import BASE_CHECKPOINT, Tokenizer, get_tokenizer


@dataclass(frozen=True, slots=True)
class ModelCard:
    """A model as its workers announce it."""

    name: str
    context_length: int
    vocab_size: int
    stop_ids: tuple[int, ...]
    """Where the model ends a text by itself."""
    fingerprint: str
    """Equal fingerprints give equal tokens."""
    exactness: str
    """What the worker's check of the kernels has found."""
    tokenizer: str
    """The hash under which the tokenizer's text is kept."""
    kv_tokens: int | None = None
    """Tokens whose keys and values its workers hold at a time: what prompt and answer of one job must fit."""
    chat: ChatFormat | None = None
    """How a conversation is written; None where the model has no template."""

    @property
    def limits(self) -> ModelLimits:
        return ModelLimits(self.vocab_size, self.context_length, self.kv_tokens)

    def to_json(self) -> str:
        return json.dumps(asdict(self), allow_nan=False)

    @classmethod
    def from_json(cls, text: str | bytes) -> ModelCard:
        try:
            content = json.loads(text)
            chat = ChatFormat(**content["chat"]) if content.get("chat") else None
            return cls(**{**content, "stop_ids": tuple(content["stop_ids"]), "chat": chat})
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise CardError(f"a model card cannot be read, is it of another version? {error}") from error


def digest(tokenizer_json: str) -> str:
    """The hash that names a tokenizer."""
    return hashlib.sha256(tokenizer_json.encode()).hexdigest()[:32]


def publish_card(connection: redis.Redis, card: ModelCard, tokenizer_json: str) -> None:
    """Announce a model, or announce it again before its card expires."""
    with connection.pipeline(transaction=True) as pipeline:
        pipeline.set(keys.tokenizer(card.tokenizer), tokenizer_json, ex=keys.CARD_TTL)
        pipeline.set(keys.model_card(card.name), card.to_json(), ex=keys.CARD_TTL)
        pipeline.execute()


def announced_card(connection: redis.Redis, model: str) -> ModelCard | None:
    """A model's card as its last worker announced it; None where none has. Raises CardError."""
    stored = connection.get(keys.model_card(model))
    return ModelCard.from_json(stored) if stored is not None else None


def read_card(connection: redis.Redis, model: str) -> ModelCard:
    """A model's card; for the base model the shipped one where no worker has been up yet."""
    card = announced_card(connection, model)
    if card is not None:
        return card
    if model == keys.DEFAULT_MODEL:
        return _shipped_card()
    known = sorted(card.name for card in all_cards(connection))
    listed = f"; announced are {', '.join(known)}" if known else "; no model is announced"
    raise UnknownModelError(f"no worker has announced the model {model}{_hint(model, known)}{listed}")


def _hint(model: str, known: Sequence[str]) -> str:
    """The announced name that may have been meant, however its letters were written."""
    by_letters = {name.casefold(): name for name in known}
    closest = get_close_matches(keys.without_owner(model).casefold(), by_letters, n=1)
    return f" (did you mean {by_letters[closest[0]]}?)" if closest else ""


def all_cards(connection: redis.Redis) -> list[ModelCard]:
    """The cards of all announced models, by name."""
    found = sorted(connection.scan_iter(match=keys.model_card("*"), count=1000))
    texts = connection.mget(found) if found else []
    cards = []
    for text in texts:
        with contextlib.suppress(CardError):  # one that we cannot read hides no other
            cards.append(ModelCard.from_json(text or b""))
    return cards


def read_tokenizer(connection: redis.Redis, card: ModelCard) -> Tokenizer:
    """The tokenizer of an announced model."""
    stored: Any = connection.get(keys.tokenizer(card.tokenizer))
    if stored is not None:
        return Tokenizer.from_json(stored.decode())
    if card.name == keys.DEFAULT_MODEL and card.tokenizer == _shipped_tokenizer()[1]:
        return _shipped_tokenizer()[0]
    raise UnknownModelError(
        f"the tokenizer of the model {card.name} has expired; start one of its workers: {start_command(card.name)}"
    )


def start_command(model: str) -> str:
    """What to type so that a worker serves a model. With the name alone the shipped one would be served under it."""
    if model == keys.DEFAULT_MODEL:
        return "minilab-worker"
    return f"minilab-worker --model ./{model} --name {model}, where ./{model} is its folder or GGUF file"


@cache
def _shipped_tokenizer() -> tuple[Tokenizer, str]:
    """With its hash; to read it takes a tenth of the time of a `submit`."""
    tokenizer = get_tokenizer()
    return tokenizer, digest(tokenizer.to_json())


def _shipped_card() -> ModelCard:
    config = json.loads((BASE_CHECKPOINT / "config.json").read_text(encoding="utf-8"))
    return ModelCard(
        name=keys.DEFAULT_MODEL,
        context_length=config["max_position_embeddings"],
        vocab_size=config["vocab_size"],
        stop_ids=(config["eos_token_id"],),
        fingerprint="",
        exactness="unknown: no worker has been up",
        tokenizer=_shipped_tokenizer()[1],
    )
