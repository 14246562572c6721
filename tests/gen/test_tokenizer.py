"""Text to ids and back: nothing is lost, no half character is ever shown, and special tokens have no text."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.small_models import PROPERTY
from tokenizers import AddedToken, models, pre_tokenizers
from tokenizers import Tokenizer as Library

from minilab_gen.errors import CheckpointError
from minilab_gen.text.tokenizer import END_OF_TEXT, SPECIAL_TOKENS, Tokenizer, get_tokenizer, train_tokenizer

FRENCH = """En l'année 1872, la maison portant le numéro 7 de Saville-row, Burlington Gardens, était habitée
par Phileas Fogg, esq., l'un des membres les plus singuliers et les plus remarqués du Reform-Club de Londres,
bien qu'il semblât prendre à tâche de ne rien faire qui pût attirer l'attention.
"""
EMOJI = "😀".encode()
DAMAGED = "\N{REPLACEMENT CHARACTER}"


@cache
def french() -> Tokenizer:
    return train_tokenizer([FRENCH], vocab_size=320)


def id_of(tokenizer: Tokenizer, wanted: bytes) -> int:
    """The token that adds exactly these bytes."""
    (found,) = [token for token in range(tokenizer.vocab_size) if tokenizer.token_bytes(token) == wanted]
    return found


def ids_of(tokenizer: Tokenizer, *parts: bytes) -> list[int]:
    return [id_of(tokenizer, part) for part in parts]


def streamed(tokenizer: Tokenizer, ids: Iterable[int]) -> list[str]:
    """What each token made printable, and at the end what was left."""
    decoder = tokenizer.decoder()
    return [*(decoder.push(token) for token in ids), decoder.flush()]


def of_library(library: Library) -> Tokenizer:
    return Tokenizer.from_json(library.to_str())


def byte_level(*merges: tuple[str, str]) -> Library:
    """A byte-level tokenizer of the library with the 256 bytes and some merges of their letters."""
    tokens = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *(left + right for left, right in merges)]
    library = Library(models.BPE({token: token_id for token_id, token in enumerate(tokens)}, list(merges)))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return library


# There and back


@pytest.mark.parametrize("text", [FRENCH, "", " ", "\n\n", "  deux  espaces ", "ď 😀 漢字 \x00", "🇫🇷e\u0301"])
def test_a_text_comes_back_as_it_went(text: str) -> None:
    tokenizer = french()

    assert tokenizer.decode(tokenizer.encode(text)) == text


@PROPERTY
@given(st.text().filter(lambda text: not any(token in text for token in SPECIAL_TOKENS)))
def test_any_text_comes_back_as_it_went(text: str) -> None:
    tokenizer = french()

    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_a_learned_tokenizer_is_shorter_than_bytes_and_has_special_tokens_first() -> None:
    tokenizer = french()

    assert tokenizer.vocab_size == 320
    assert len(tokenizer.encode(FRENCH)) < len(FRENCH.encode())
    assert [tokenizer.token_id(token) for token in SPECIAL_TOKENS] == [0, 1, 2]
    assert tokenizer.token_id("nothing of ours") is None


def test_every_byte_has_a_token() -> None:
    tokenizer = french()

    assert {tokenizer.token_bytes(token) for token in range(320)} >= {bytes([byte]) for byte in range(256)}


def test_json_carries_a_tokenizer_unchanged(tmp_path: Path) -> None:
    tokenizer = french()
    (tmp_path / "tokenizer.json").write_text(tokenizer.to_json(), encoding="utf-8")

    read = get_tokenizer(tmp_path)

    assert read.to_json() == tokenizer.to_json()
    assert read.encode(FRENCH + END_OF_TEXT) == tokenizer.encode(FRENCH + END_OF_TEXT)


def test_decoding_agrees_with_the_library() -> None:
    tokenizer, library = french(), Library.from_str(french().to_json())
    pick = random.Random(0)

    for _ in range(50):
        ids = [pick.randrange(3, 320) for _ in range(20)]
        assert tokenizer.decode(ids) == library.decode(ids)


# One token at a time


@pytest.mark.parametrize("character", ["ď", "😀", "漢", "é"])
def test_a_split_character_appears_once_and_whole_with_its_last_byte(character: str) -> None:
    tokenizer = french()
    parts = [bytes([byte]) for byte in character.encode()]

    texts = streamed(tokenizer, ids_of(tokenizer, *parts))

    assert texts == [*[""] * (len(parts) - 1), character, ""]


def test_two_tokens_of_two_bytes_make_one_character() -> None:
    letters = "ðŁĺĢ"  # how the alphabet spells F0 9F 98 80
    tokenizer = of_library(byte_level((letters[0], letters[1]), (letters[2], letters[3])))

    assert streamed(tokenizer, ids_of(tokenizer, EMOJI[:2], EMOJI[2:])) == ["", "😀", ""]


def test_a_character_cut_short_by_the_end_is_flushed_as_one_replacement() -> None:
    tokenizer = french()
    ids = ids_of(tokenizer, *(EMOJI[index : index + 1] for index in range(3)))

    assert streamed(tokenizer, ids) == ["", "", "", DAMAGED]
    assert tokenizer.decode(ids) == DAMAGED


def test_bytes_that_are_no_text_hold_nothing_back() -> None:
    tokenizer = french()

    assert streamed(tokenizer, ids_of(tokenizer, b"\x80", b"A", b"B")) == [DAMAGED, "A", "B", ""]


def test_a_character_that_breaks_off_is_replaced_when_the_next_begins() -> None:
    tokenizer = french()

    assert streamed(tokenizer, ids_of(tokenizer, EMOJI[:1], EMOJI[1:2], b"A")) == ["", "", DAMAGED + "A", ""]


def test_two_thousand_random_ids_stream_to_what_they_decode_to_at_once() -> None:
    tokenizer, pick = french(), random.Random(0)
    ids = [pick.randrange(tokenizer.vocab_size) for _ in range(2000)]

    assert "".join(streamed(tokenizer, ids)) == tokenizer.decode(ids)


@PROPERTY
@given(st.lists(st.integers(-3, 330)))
def test_any_ids_known_or_not_stream_to_what_they_decode_to_at_once(ids: list[int]) -> None:
    tokenizer = french()

    assert "".join(streamed(tokenizer, ids)) == tokenizer.decode(ids)


@pytest.mark.parametrize("split", range(0, 60, 7))
def test_an_answer_goes_on_exactly_where_the_prompt_ended(split: int) -> None:
    tokenizer = french()
    text = FRENCH.encode().decode("ascii", errors="ignore")  # so that every token ends with a whole character
    ids = tokenizer.encode(text)

    answer = "".join(streamed(tokenizer, ids[split:]))

    assert tokenizer.decode(ids[:split]) + answer == text


# Tokens without text


@pytest.mark.parametrize("token", SPECIAL_TOKENS)
def test_a_special_token_adds_no_text_streamed_or_whole(token: str) -> None:
    tokenizer = french()
    ids = tokenizer.encode(f"a{token}b")

    assert tokenizer.token_id(token) in ids
    assert tokenizer.decode(ids) == "".join(streamed(tokenizer, ids)) == "ab"


def test_an_answer_that_starts_with_a_special_token_does_not_repeat_the_prompt() -> None:
    tokenizer = french()
    (end,) = tokenizer.encode(END_OF_TEXT)

    assert streamed(tokenizer, [end, *ids_of(tokenizer, b"c")]) == ["", "c", ""]


def test_a_special_token_inside_a_character_does_not_break_it() -> None:
    tokenizer = french()
    (end,) = tokenizer.encode(END_OF_TEXT)
    first, second = ids_of(tokenizer, b"\xc3", b"\xa9")

    assert streamed(tokenizer, [first, end, second]) == ["", "", "é", ""]


@pytest.mark.parametrize("unknown", [-1, 320, 2**40])
def test_an_id_without_a_meaning_adds_no_text(unknown: int) -> None:
    assert french().decode([unknown]) == ""


def test_an_added_token_that_is_not_special_reads_as_it_is_spelled() -> None:
    library = byte_level()
    library.add_tokens([AddedToken("  élan  ", special=False, normalized=False)])
    tokenizer = of_library(library)

    assert tokenizer.decode(tokenizer.encode("un  élan  vital")) == "un  élan  vital"


# Files that are no tokenizer of ours


@pytest.mark.parametrize(
    "text", ["", "{", "{}", "null", "[]", '{"model": 3}', french().to_json()[:200], '{"version": "1.0", "model": {}}']
)
def test_a_damaged_file_is_a_checkpoint_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "tokenizer.json").write_text(text, encoding="utf-8")

    with pytest.raises(CheckpointError, match="tokenizer"):
        get_tokenizer(tmp_path)


def test_a_file_that_is_no_text_is_a_checkpoint_error(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes(b"\xff\xfe{}\x80")

    with pytest.raises(CheckpointError, match=r"tokenizer\.json"):
        get_tokenizer(tmp_path)


def test_a_missing_file_is_a_checkpoint_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"tokenizer\.json cannot be read: No such file"):
        get_tokenizer(tmp_path)


@pytest.mark.parametrize("token", ["▁une", "deux mots", "漢"])
def test_a_tokenizer_that_is_not_byte_level_is_refused_by_its_first_foreign_token(token: str) -> None:
    library = Library(models.WordLevel({"une": 0, token: 1}, unk_token="une"))

    with pytest.raises(CheckpointError, match=f"must be byte-level, got the token '{token}'"):
        of_library(library)


def test_a_tokenizer_without_tokens_is_a_checkpoint_error() -> None:
    with pytest.raises(CheckpointError):
        of_library(Library(models.BPE()))


def test_what_is_written_is_the_layout_of_the_library() -> None:
    written = json.loads(french().to_json())

    assert written["model"]["type"] == "BPE"
    assert [token["content"] for token in written["added_tokens"]] == list(SPECIAL_TOKENS)
