"""Model cards: what a worker announces is what a client reads, and what is not announced is told."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import redis

from minilab_gen.errors import CardError, UnknownModelError
from minilab_gen.protocol import keys
from minilab_gen.protocol.cards import ModelCard, all_cards, digest, publish_card, read_card, read_tokenizer
from minilab_gen.request import ModelLimits
from minilab_gen.text.tokenizer import get_tokenizer

TOKENIZER = get_tokenizer()
CARD = ModelCard(
    name="mine",
    context_length=128,
    vocab_size=2048,
    stop_ids=(0, 2),
    fingerprint="abc",
    exactness="exact",
    tokenizer=digest(TOKENIZER.to_json()),
)


def announce(connection: redis.Redis, card: ModelCard = CARD) -> None:
    publish_card(connection, card, TOKENIZER.to_json())


def test_what_is_announced_is_what_is_read(connection: redis.Redis) -> None:
    announce(connection)

    assert read_card(connection, "mine") == CARD
    assert read_card(connection, "mine").limits == ModelLimits(2048, 128)
    assert read_tokenizer(connection, CARD).encode("Phileas Fogg") == TOKENIZER.encode("Phileas Fogg")


def test_a_model_that_is_announced_again_is_read_as_it_is_now(connection: redis.Redis) -> None:
    announce(connection)
    newer = replace(CARD, context_length=256)

    announce(connection, newer)

    assert read_card(connection, "mine") == newer
    assert all_cards(connection) == [newer]


def test_a_card_and_its_tokenizer_outlive_their_worker_by_a_stated_time(connection: redis.Redis) -> None:
    announce(connection)

    for key in (keys.model_card("mine"), keys.tokenizer(CARD.tokenizer)):
        assert keys.CARD_TTL - 60 < connection.ttl(key) <= keys.CARD_TTL


def test_models_with_one_tokenizer_keep_it_once(connection: redis.Redis) -> None:
    announce(connection)
    announce(connection, replace(CARD, name="other"))

    assert len(connection.keys("minilab:tokenizer:*")) == 1


def test_another_tokenizer_has_another_name() -> None:
    assert digest(TOKENIZER.to_json()) != digest(TOKENIZER.to_json() + " ")


def test_a_card_is_strict_json(connection: redis.Redis) -> None:
    announce(connection)

    stored = connection.get(keys.model_card("mine"))

    assert isinstance(stored, bytes)
    assert set(json.loads(stored, parse_constant=pytest.fail)) == set(ModelCard.__slots__)


def test_the_announced_models_are_listed_by_name(connection: redis.Redis) -> None:
    assert all_cards(connection) == []
    cards = [replace(CARD, name=name) for name in ("b", "a", "c")]
    for card in cards:
        announce(connection, card)

    assert [card.name for card in all_cards(connection)] == ["a", "b", "c"]


def test_an_unknown_model_is_told_with_those_that_are_there(connection: redis.Redis) -> None:
    with pytest.raises(UnknownModelError, match="no worker has announced the model nope; no model is announced"):
        read_card(connection, "nope")
    announce(connection)
    announce(connection, replace(CARD, name="base"))

    with pytest.raises(UnknownModelError, match="no worker has announced the model nope; announced are base, mine"):
        read_card(connection, "nope")


@pytest.mark.parametrize("asked", ["smol-x3.2", "SMOL-X3.2", "Smol-X3-2", "a-long-organisation/smol-x3.2", "Smol_X3.2"])
def test_a_name_that_is_nearly_that_of_a_model_is_told_which_may_be_meant(connection: redis.Redis, asked: str) -> None:
    announce(connection, replace(CARD, name="Smol-X3.2"))
    announce(connection)

    with pytest.raises(UnknownModelError) as refused:
        read_card(connection, asked)

    assert str(refused.value) == (
        f"no worker has announced the model {asked} (did you mean Smol-X3.2?); announced are Smol-X3.2, mine"
    )


def test_the_base_model_has_a_card_and_a_tokenizer_before_any_worker_is_up(connection: redis.Redis) -> None:
    card = read_card(connection, "base")

    assert card.name == "base"
    assert read_tokenizer(connection, card).encode("Phileas Fogg") == TOKENIZER.encode("Phileas Fogg")
    assert card.tokenizer == CARD.tokenizer
    assert card.vocab_size >= TOKENIZER.vocab_size
    assert all(0 <= stop_id < card.vocab_size for stop_id in card.stop_ids)
    assert connection.keys("*") == []


def test_an_announced_base_model_goes_before_the_shipped_one(connection: redis.Redis) -> None:
    announced = replace(CARD, name="base")
    announce(connection, announced)

    assert read_card(connection, "base") == announced


def test_a_tokenizer_that_has_expired_is_told_with_what_helps(connection: redis.Redis) -> None:
    announce(connection)
    connection.delete(keys.tokenizer(CARD.tokenizer))

    remedy = r"start one of its workers: minilab-worker --model \./mine --name mine"
    with pytest.raises(UnknownModelError, match=rf"the tokenizer of the model mine has expired; {remedy}"):
        read_tokenizer(connection, CARD)


DAMAGED = [b"", b"{", b"7", b"[1]", b"{}", b"\xff", json.dumps({**json.loads(CARD.to_json()), "new": 1}).encode()]


@pytest.mark.parametrize("stored", DAMAGED)
def test_a_card_of_another_version_is_told_and_hides_no_other(connection: redis.Redis, stored: bytes) -> None:
    announce(connection)
    connection.set(keys.model_card("odd"), stored)

    with pytest.raises(CardError, match="a model card cannot be read"):
        read_card(connection, "odd")

    assert all_cards(connection) == [CARD]


def test_a_base_tokenizer_is_never_taken_for_another_one(connection: redis.Redis) -> None:
    """The base model may be served from another checkpoint; its ids would mean other text."""
    other = replace(CARD, name="base", tokenizer="0" * 32)

    with pytest.raises(UnknownModelError, match="the tokenizer of the model base has expired"):
        read_tokenizer(connection, other)
