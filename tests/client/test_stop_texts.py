"""Answers cut before a stop text: what is left is what a reader sees before it, with every kind of tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st
from minilab_client.batch.asked_model import AskedModel
from minilab_client.batch.stop_texts import Kept, cut
from support.batch_files import asked_model
from support.small_models import PROPERTY
from support.tokenizer_kinds import KINDS
from tokenizers import Tokenizer as Library
from tokenizers import normalizers

from minilab_gen.protocol.events import EndEvent
from minilab_gen.protocol.results import Answer
from minilab_gen.text.tokenizer import Tokenizer


def no_prefix() -> Library:
    """That of Llama 2 without the space that it puts before every text, so that ``▁la`` is a text of its own."""
    library = KINDS["llama-2"]()
    library.normalizer = normalizers.Replace(" ", "▁")
    return library


ALL_KINDS = {**KINDS, "no-prefix": no_prefix}


@cache
def model(kind: str) -> AskedModel:
    """A model with a tokenizer of this kind, as a client sees it."""
    return AskedModel(asked_model().card, Tokenizer.from_json(ALL_KINDS[kind]().to_str()))


def read_by_people(kind: str, prompt: Sequence[int], ids: Sequence[int]) -> str:
    """The text of an answer as it is streamed."""
    decoder = model(kind).tokenizer.decoder(prompt)
    return "".join(map(decoder.push, ids)) + decoder.flush()


def answered(kind: str, prompt: Sequence[int], ids: Sequence[int], stops: Sequence[str]) -> Kept:
    """What is left where a model would say these ids: it ends at a stop text that is one token, as a worker does."""
    stop_ids = [model(kind).stop_id_of(stop) for stop in stops]
    place = next((place for place, token in enumerate(ids) if token in stop_ids), None)
    end = EndEvent("length" if place is None else "stop", len(ids) if place is None else place + 1, len(prompt))
    text = read_by_people(kind, prompt, ids[:place])
    answer = Answer(tuple(ids[: end.tokens]), text, end, 0.0, None)
    return cut(answer, stops, model(kind).tokenizer, prompt)


def ids_of(kind: str, *tokens: str) -> list[int]:
    ids = [model(kind).tokenizer.token_id(token) for token in tokens]
    return [token_id for token_id in ids if token_id is not None]


@PROPERTY
@pytest.mark.parametrize("kind", ALL_KINDS)
@given(data=st.data())
def test_what_is_left_is_the_text_before_the_first_stop_that_a_reader_sees(kind: str, data: st.DataObject) -> None:
    tokenizer = model(kind).tokenizer
    any_ids = st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=12)
    words = st.text(" \n,la▁é😀", max_size=8).map(tokenizer.encode)
    prompt = data.draw(st.one_of(st.just([]), any_ids, words))
    ids = data.draw(st.lists(st.one_of(any_ids, words), max_size=3).map(chain.from_iterable).map(list))
    whole = read_by_people(kind, prompt, ids)
    parts = [whole[start : start + length] for start in range(len(whole)) for length in (1, 2, 3, 5)]
    stop = data.draw(st.one_of(st.sampled_from([*parts, "\n"]), st.text(" \n,la▁é\0", min_size=1, max_size=3)))

    kept = answered(kind, prompt, ids, [stop])

    place = whole.find(stop)
    assert kept.text == (whole if place < 0 else whole[:place])
    assert tuple(ids[: len(kept.ids)]) == kept.ids


@pytest.mark.parametrize(
    ("kind", "prompt", "tokens", "stop", "text"),
    [
        ("llama-2", ["<s>"], ["▁l", "a", "▁"], " ", "la"),
        ("llama-2", ["<s>"], ["▁l", "a"], " l", "la"),
        ("llama-2", ["l"], ["▁l", "a"], " l", ""),
        ("llama-2", ["l"], ["<0xE2>", "<0x0A>", "<0xA0>", "a"], "\n", "\ufffd\ufffd\ufffda"),
        ("llama-2", ["l"], ["<0xC3>", "<0xA9>", "<0x0A>", "a"], "\n", "é"),
        ("llama-2", ["l"], ["<0xE2>", "<0x2C>", "<0xA0>", "a"], ",", "\ufffd\ufffd\ufffda"),
        ("no-prefix", ["<s>"], ["▁l", "a"], " l", "la"),
        ("no-prefix", ["l"], ["a", "▁l", "a"], " l", "a"),
        ("no-prefix", ["l"], ["<0xE2>", "<0x3B>", "<0xA0>", "a"], ";", "\ufffd\ufffd\ufffda"),
        ("unigram", [], ["▁la", "▁la"], " la", "la"),
        ("unigram", ["l"], ["▁la", "l"], " la", ""),
    ],
)
def test_a_stop_text_that_only_the_tokens_hold_does_not_count(
    kind: str, prompt: list[str], tokens: list[str], stop: str, text: str
) -> None:
    assert answered(kind, ids_of(kind, *prompt), ids_of(kind, *tokens), [stop]).text == text


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_a_stop_text_that_begins_before_the_token_that_ends_the_answer_counts(kind: str) -> None:
    tokenizer = model(kind).tokenizer
    last = tokenizer.encode("la", bare=True)[-1]
    ids = [*tokenizer.encode("numéro", bare=True), last]
    said = read_by_people(kind, [], ids[:-1])
    answer = Answer(tuple(ids), said, EndEvent("stop", len(ids), 1), 0.0, None)
    ending = read_by_people(kind, [], ids)[len(said) :]

    kept = cut(answer, ["o" + ending, ending], tokenizer, [])

    assert kept == replace(kept, text=said.removesuffix("o"), ids=tuple(ids), was_cut=True)


def answer(text: str) -> Answer:
    """An answer of these words, as the base tokenizer cuts them."""
    ids = tuple(asked_model().tokenizer.encode(text))
    return Answer(ids, text, EndEvent("length", len(ids), 2), 0.0, None)


@pytest.mark.parametrize(
    ("stops", "text", "was_cut"),
    [
        ((), "Le pauvre garçon était à bord.", False),
        (("Fix",), "Le pauvre garçon était à bord.", False),
        (("bord",), "Le pauvre garçon était à ", True),
        (("re gar", "bord"), "Le pauv", True),
        (("arç", "garçon é"), "Le pauvre g", True),
        (("çon", "garçon"), "Le pauvre ", True),
        (("L",), "", True),
    ],
)
def test_an_answer_is_cut_before_the_stop_text_that_is_complete_first(
    stops: tuple[str, ...], text: str, was_cut: bool
) -> None:
    kept = cut(answer("Le pauvre garçon était à bord."), stops, asked_model().tokenizer, [])

    assert (kept.text, kept.was_cut) == (text, was_cut)


def test_of_a_cut_answer_the_tokens_stay_up_to_the_one_that_completed_the_stop_text() -> None:
    tokenizer = asked_model().tokenizer
    whole = answer("Le pauvre garçon était à bord.")

    kept = cut(whole, ["garçon"], tokenizer, [])

    assert whole.ids[: len(kept.ids)] == kept.ids
    assert "garçon" in tokenizer.decode(kept.ids)
    assert "garçon" not in tokenizer.decode(kept.ids[:-1])
