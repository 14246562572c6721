"""Settings that only a model's card and tokenizer turn into fields of a request: ``bad_words`` and ``ignore_eos``.

A request holds ids alone, so that the engine needs no tokenizer. Whoever submits has card and tokenizer at hand.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from minilab_gen import field_checks as checks
from minilab_gen.errors import RequestError
from minilab_gen.field_checks import shown
from minilab_gen.request import GenerationRequest
from minilab_gen.sampling_settings import MAX_BAD_WORD_IDS, MAX_BAD_WORDS

if TYPE_CHECKING:
    from minilab_gen.text.tokenizer import Tokenizer

MAX_WORDS: Final = MAX_BAD_WORDS // 2
"""Texts that may be given: most are two sequences of ids, at the beginning of a text and after a space."""

_LONGEST_WORD: Final = 1000
"""Characters of one: far more than it may have ids."""


def check_settings(given: Mapping[str, object], max_new_tokens: int) -> GenerationRequest:
    """A request with these settings and any prompt. Raises RequestError for what breaks a rule whatever the model is.

    ``given`` has the names of :data:`GIVEN_FIELDS`; ``max_new_tokens`` is the default.
    """
    _words_of(given)
    _ignores_ends(given)
    return GenerationRequest.from_payload({"max_new_tokens": max_new_tokens, **_of_request(given), "prompt": (0,)})


def own_ends(given: Mapping[str, object], stop_ids: Sequence[int]) -> Sequence[int]:
    """The model's own stop ids, or none with ``ignore_eos``. Those that a request names itself end it all the same."""
    return () if _ignores_ends(given) else stop_ids


def request_fields(given: Mapping[str, object], tokenizer: Callable[[], Tokenizer]) -> dict[str, object]:
    """The settings as fields of a request's payload. The tokenizer is asked for only where there are ``bad_words``.

    Raises RequestError.
    """
    fields, words = _of_request(given), _words_of(given)
    if words:
        found = [ids for word in words for ids in bad_word_ids(word, tokenizer())]
        as_ids = checks.elements("bad_words_ids", fields.get("bad_words_ids") or (), at_most=MAX_BAD_WORDS, what="ids")
        fields["bad_words_ids"] = (*as_ids, *dict.fromkeys(found))
    return fields


def bad_word_ids(word: str, tokenizer: Tokenizer) -> list[tuple[int, ...]]:
    """The ids of a word at the beginning of a text and after a space, where these are others.

    A word can often be made of other tokens as well, which are not avoided.
    """
    bare, spaced = (tuple(tokenizer.encode(before + word.lstrip(), bare=True)) for before in ("", " "))
    if not bare:
        raise RequestError(f"bad_words must hold texts of at least one token, got {shown(word)}")
    longest = max(len(bare), len(spaced))
    if longest > MAX_BAD_WORD_IDS:
        raise RequestError(
            f"bad_words must hold texts of at most {MAX_BAD_WORD_IDS} tokens, got {shown(word)}: {longest}"
        )
    return [bare] if spaced[-len(bare) :] == bare else [bare, spaced]


def _of_request(given: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in given.items() if name not in ("bad_words", "ignore_eos")}


def _words_of(given: Mapping[str, object]) -> list[str]:
    named = given.get("bad_words")
    words = checks.elements("bad_words", () if named is None else named, at_most=MAX_WORDS, what="texts")
    return [_word(text) for text in words]


def _word(text: object) -> str:
    if not isinstance(text, str) or not text.strip() or len(text) > _LONGEST_WORD or not checks.is_whole(text):
        raise RequestError(f"bad_words must hold texts of 1 to {_LONGEST_WORD} whole characters, got {shown(text)}")
    return text


def _ignores_ends(given: Mapping[str, object]) -> bool:
    ignores = given.get("ignore_eos")
    if ignores is not None and not isinstance(ignores, bool):
        raise RequestError(f"ignore_eos must be true or false, got {shown(ignores)}")
    return bool(ignores)
