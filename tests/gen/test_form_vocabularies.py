"""Grammars see the tokens of every kind of tokenizer as we do."""

from __future__ import annotations

import pytest
from support.formed_texts import FormedTexts, allowed_ids, goes_on
from support.random_forms import form_of, schema_form
from support.tokenizer_kinds import KINDS

from minilab_gen.text.tokenizer import Tokenizer

pytestmark = pytest.mark.slow


@pytest.fixture(params=KINDS)
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return Tokenizer(KINDS[request.param]())


def test_the_bytes_of_every_token_are_those_that_the_text_gets(tokenizer: Tokenizer) -> None:
    texts = FormedTexts(tokenizer)
    for token_id in range(tokenizer.vocab_size):
        expected = tokenizer.token_bytes(token_id)
        if expected and expected != b"\xff":  # no text has this byte, and to llguidance it begins a special token
            assert texts.compiler.token_bytes(token_id) == expected


def test_only_tokens_with_a_text_are_ever_allowed(tokenizer: Tokenizer) -> None:
    texts = FormedTexts(tokenizer, tokenizer.vocab_size + 40)  # a model whose rows are more than the ids
    constraint = texts.compiler.start(form_of(regex=r"(?s:.)*"))
    allowed = allowed_ids(constraint, texts.vocab_size)
    assert allowed
    assert all(tokenizer.token_bytes(token_id) for token_id in allowed)
    assert not any(tokenizer.is_special(token_id) for token_id in allowed)
    assert b"\xff" not in map(tokenizer.token_bytes, allowed)  # which no text has


def test_a_model_with_fewer_rows_than_ids_is_held_to_its_rows(tokenizer: Tokenizer) -> None:
    texts = FormedTexts(tokenizer, 300)
    constraint = texts.compiler.start(form_of(regex=r"(?s:.)*"))
    assert allowed_ids(constraint, 300)


@pytest.mark.parametrize("kind", ["llama-2", "llama-3", "qwen"])
def test_an_emoji_may_be_spelled_byte_by_byte(kind: str) -> None:
    texts = FormedTexts(Tokenizer(KINDS[kind]()))
    by_bytes = {texts.tokenizer.token_bytes(token): token for token in range(texts.vocab_size)}
    ids = [by_bytes[bytes([byte])] for byte in '"😀"'.encode()]
    for form in (schema_form({"type": "string", "maxLength": 1}), form_of(choice=['"😀"'])):
        constraint = texts.compiler.start(form)
        assert goes_on(constraint, texts.vocab_size, ids)
        assert constraint.must_end


def test_an_added_token_that_is_no_special_one_is_its_letters() -> None:
    texts = FormedTexts(Tokenizer(KINDS["qwen"]()))
    think = texts.tokenizer.token_id("<think>")
    assert think is not None
    constraint = texts.compiler.start(form_of(choice=["<think>", "<thing>"]))
    assert think in allowed_ids(constraint, texts.vocab_size)
    assert goes_on(constraint, texts.vocab_size, [think])
    assert constraint.must_end
