"""Answers of every kind of tokenizer: what is streamed is what the library makes of prompt and answer together."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.small_models import PROPERTY
from support.tokenizer_kinds import KINDS, TEXT
from tokenizers import AddedToken, decoders
from tokenizers import Tokenizer as Library

from minilab_gen.errors import CheckpointError
from minilab_gen.text.stream_decoder import StreamDecoder
from minilab_gen.text.tokenizer import Tokenizer

DAMAGED = "\N{REPLACEMENT CHARACTER}"
EMOJI = ["<0xF0>", "<0x9F>", "<0x98>", "<0x80>"]


@cache
def library(kind: str) -> Library:
    return KINDS[kind]()


@cache
def ours(kind: str) -> Tokenizer:
    return Tokenizer.from_json(library(kind).to_str())


def with_decoder(kind: str, decoder: decoders.Decoder | None) -> Library:
    changed = Library.from_str(library(kind).to_str())
    changed.decoder = decoder
    return changed


def id_in(tokenizer: Library, token: str) -> int:
    found = tokenizer.token_to_id(token)
    assert found is not None, token
    return found


def ids_of(kind: str, *tokens: str) -> list[int]:
    return [id_in(library(kind), token) for token in tokens]


def streamed(decoder: StreamDecoder, ids: Iterable[int]) -> list[str]:
    """What each token made printable, and at the end what was left."""
    return [*(decoder.push(token) for token in ids), decoder.flush()]


def pieces(*tokens: str, after: tuple[str, ...] = ("▁",)) -> list[str]:
    """The same of tokens by name, after a prompt, with the tokenizer of Llama 2."""
    return streamed(ours("llama-2").decoder(ids_of("llama-2", *after)), ids_of("llama-2", *tokens))


# Whole texts


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("text", ["Phileas Fogg", " deux  espaces ", "l'année", "maison\n\nhabitée"])
def test_a_text_comes_back_as_the_library_gives_it_back(kind: str, text: str) -> None:
    ids = ours(kind).encode(text)

    assert ids == library(kind).encode(text).ids
    assert ours(kind).decode(ids) == library(kind).decode(ids)


@pytest.mark.parametrize("kind", ["llama-2", "llama-3", "qwen"])
@pytest.mark.parametrize("text", ["ď 😀 漢字 \x00", "  Phileas Fogg"])
def test_any_text_survives_where_every_byte_has_a_token(kind: str, text: str) -> None:
    assert ours(kind).decode(ours(kind).encode(text)) == text


@PROPERTY
@given(st.sampled_from(sorted(KINDS)), st.data())
def test_any_ids_decode_to_what_the_library_makes_of_them(kind: str, data: st.DataObject) -> None:
    ids = data.draw(st.lists(st.integers(0, ours(kind).vocab_size - 1)))

    assert ours(kind).decode(ids) == library(kind).decode(ids)


# After a prompt


@PROPERTY
@given(st.sampled_from(sorted(KINDS)), st.text("Fog née ▁😀\n"), st.data())
def test_prompt_and_streamed_answer_are_what_the_library_makes_of_both(
    kind: str, text: str, data: st.DataObject
) -> None:
    # Two letters that are a piece end the prompt with a whole character.
    prompt = ours(kind).encode(text + " la")
    answer = data.draw(st.lists(st.integers(0, ours(kind).vocab_size - 1)))

    texts = streamed(ours(kind).decoder(prompt), answer)

    assert library(kind).decode(prompt) + "".join(texts) == library(kind).decode([*prompt, *answer])


@pytest.mark.parametrize("split", range(1, 50, 7))
@pytest.mark.parametrize("kind", ["llama-2", "llama-3", "unigram"])
def test_an_answer_goes_on_exactly_where_the_prompt_ended(kind: str, split: int) -> None:
    ids = ours(kind).encode(TEXT.encode().decode("ascii", errors="ignore"))

    answer = "".join(streamed(ours(kind).decoder(ids[:split]), ids[split:]))

    assert library(kind).decode(ids[:split]) + answer == library(kind).decode(ids)


@pytest.mark.parametrize(
    ("prompt", "text"),
    [([], "la"), (["<s>"], "la"), (["<s>", "</s>"], "la"), (["<s>", "▁"], " la"), (["l"], " la"), (["<0x41>"], " la")],
)
def test_only_the_first_space_of_all_is_left_out(prompt: list[str], text: str) -> None:
    assert "".join(pieces("▁l", "a", after=tuple(prompt))) == text


@pytest.mark.parametrize(("prompt", "text"), [([], "l"), (["</s>"], "l"), (["▁"], " l"), (["n"], " l")])
def test_a_unigram_answer_begins_a_text_only_where_its_prompt_has_none(prompt: list[str], text: str) -> None:
    decoder = ours("unigram").decoder(ids_of("unigram", *prompt))

    assert "".join(streamed(decoder, ids_of("unigram", "▁", "l"))) == text


@pytest.mark.parametrize("kind", KINDS)
def test_each_token_knows_the_bytes_that_it_adds_to_a_text(kind: str) -> None:
    prompt, answer = ours(kind).encode("la maison"), ours(kind).encode("Phileas Fogg 😀" if kind != "unigram" else "la")

    joined = b"".join(map(ours(kind).token_bytes, answer))

    assert joined.decode() == "".join(streamed(ours(kind).decoder(prompt), answer))


# Bytes that are tokens


def test_a_split_character_appears_once_and_whole() -> None:
    assert pieces(*EMOJI, "l") == ["", "", "", "", "😀l", ""]
    assert pieces(*EMOJI) == ["", "", "", "", "😀"]


def test_a_row_of_bytes_that_is_no_text_becomes_one_replacement_for_each() -> None:
    assert pieces(*EMOJI[:3]) == ["", "", "", DAMAGED * 3]
    assert pieces(*EMOJI, "<0xFF>", "l") == ["", "", "", "", "", DAMAGED * 5 + "l", ""]


def test_a_special_token_inside_a_character_does_not_break_it() -> None:
    assert pieces("<0xC3>", "</s>", "<0xA9>", "l") == ["", "", "", "él", ""]


def test_a_token_that_only_looks_like_a_byte_is_text() -> None:
    changed = with_decoder("llama-2", library("llama-2").decoder)
    changed.add_tokens([AddedToken("<0xZZ>", special=False, normalized=False)])
    ids = [id_in(changed, "<0xZZ>")]

    assert Tokenizer(changed).decode(ids) == changed.decode(ids) == "<0xZZ>"


def test_a_byte_level_tokenizer_follows_the_library_for_a_token_in_other_letters() -> None:
    changed = Library.from_str(library("qwen").to_str())
    changed.add_tokens([AddedToken("漢", special=False), AddedToken("é", special=False)])
    ids = [id_in(changed, token) for token in ("漢", "é")]

    assert Tokenizer(changed).decode(ids) == changed.decode(ids) == "漢" + DAMAGED


# Decoders


ACCEPTED = [
    decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]),
    decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback()]),
    decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.Replace("a", "b"), decoders.Fuse(), decoders.Strip(" ", 2, 0)]
    ),
    decoders.Sequence([decoders.Fuse()]),
    decoders.Metaspace(prepend_scheme="never"),
    decoders.Metaspace(),
    decoders.Replace("▁", "_"),
]


@pytest.mark.parametrize("decoder", ACCEPTED, ids=str)
def test_every_decoder_that_is_accepted_gives_what_the_library_gives(decoder: decoders.Decoder) -> None:
    changed = with_decoder("llama-2", decoder)
    tokenizer = Tokenizer(changed)
    for ids in (range(changed.get_vocab_size()), [*reversed(range(changed.get_vocab_size()))]):
        for start in range(0, 400, 13):
            part = list(ids)[start : start + 40]
            assert tokenizer.decode(part) == changed.decode(part)


REFUSED = [
    decoders.WordPiece(),
    decoders.BPEDecoder(),
    decoders.CTC(),
    decoders.Sequence([decoders.Strip(" ", 1, 0), decoders.Fuse()]),
    decoders.Sequence([decoders.Fuse(), decoders.Strip(" ", 1, 1)]),
    decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()]),
]


@pytest.mark.parametrize("decoder", REFUSED, ids=str)
def test_a_decoder_that_cannot_be_streamed_is_refused_by_name(decoder: decoders.Decoder) -> None:
    with pytest.raises(CheckpointError, match=r"decoder must be byte-level or of pieces, got \{'type': '[A-Z]"):
        Tokenizer(with_decoder("llama-2", decoder))


# Around a text


@pytest.mark.parametrize(("kind", "bos"), [("llama-2", "<s>"), ("llama-3", "<|begin_of_text|>")])
def test_a_text_gets_the_token_for_its_beginning_unless_it_is_bare(kind: str, bos: str) -> None:
    (begin,) = ids_of(kind, bos)

    assert ours(kind).encode("la maison")[0] == begin
    assert ours(kind).encode("la maison", bare=True) == ours(kind).encode("la maison")[1:]


@pytest.mark.filterwarnings("ignore")  # of transformers, about Python
@pytest.mark.parametrize("kind", KINDS)
def test_a_text_has_the_ids_that_transformers_gives_it(kind: str) -> None:
    import transformers

    theirs = transformers.PreTrainedTokenizerFast(tokenizer_object=library(kind))

    for text in (TEXT, "<|im_start|>user\nla <think>é</s>", "😀", ""):
        assert ours(kind).encode(text) == theirs(text).input_ids
        assert ours(kind).encode(text, bare=True) == theirs(text, add_special_tokens=False).input_ids


def test_what_a_file_says_about_lengths_in_training_is_no_matter() -> None:
    changed = Library.from_str(library("llama-3").to_str())
    changed.enable_truncation(4)
    changed.enable_padding(length=2000)

    assert Tokenizer.from_json(changed.to_str()).encode(TEXT) == ours("llama-3").encode(TEXT)
