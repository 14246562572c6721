"""Stop texts in an answer that comes piece by piece: what is shown, when, and where it ends."""

from __future__ import annotations

from functools import cache
from itertools import chain, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.small_models import PROPERTY
from support.stopping import stopped
from support.tokenizer_kinds import KINDS
from tokenizers import Tokenizer as Library
from tokenizers import normalizers

from minilab_gen.protocol.events import EndEvent, EndReason, Event, TokenEvent
from minilab_gen.protocol.transcript import Transcript
from minilab_gen.request import GenerationRequest
from minilab_gen.text.stop_texts import StopTexts
from minilab_gen.text.tokenizer import Tokenizer

LETTERS = st.text("ab\n\ufffd😀", max_size=30)
STOPS = st.lists(st.text("ab\n\ufffd😀", min_size=1, max_size=5), min_size=1, max_size=4)


def no_prefix() -> Library:
    """That of Llama 2 without the space that it puts before every text, so that ``▁la`` is a text of its own."""
    library = KINDS["llama-2"]()
    library.normalizer = normalizers.Replace(" ", "▁")
    return library


ALL_KINDS = {**KINDS, "no-prefix": no_prefix}


@cache
def tokenizer_of(kind: str) -> Tokenizer:
    return Tokenizer.from_json(ALL_KINDS[kind]().to_str())


def undecided(text: str, stops: list[str]) -> str:
    """The longest end of a text that a stop text begins with."""
    ends = (text[start:] for start in range(len(text) + 1))
    return next(end for end in ends if any(stop.startswith(end) for stop in stops))


def shown_by(search: StopTexts, pieces: list[str]) -> str:
    return "".join(map(search.push, pieces)) + search.flush()


@PROPERTY
@given(text=LETTERS, stops=STOPS, cuts=st.lists(st.integers(0, 30)), include=st.booleans())
def test_what_is_shown_is_the_text_up_to_its_first_stop_however_it_is_cut(
    text: str, stops: list[str], cuts: list[int], include: bool
) -> None:
    pieces = [text[start:end] for start, end in pairwise(sorted({0, len(text), *cuts}))]
    search = StopTexts(stops, include=include)

    shown = shown_by(search, pieces)

    assert (shown, search.found) == stopped(text, stops, include=include)


@PROPERTY
@given(text=LETTERS, stops=STOPS, cuts=st.lists(st.integers(0, 30)))
def test_only_what_may_begin_a_stop_text_is_held_back(text: str, stops: list[str], cuts: list[int]) -> None:
    search, came, shown = StopTexts(stops), "", ""
    for start, end in pairwise(sorted({0, len(text), *cuts})):
        came += text[start:end]
        shown += search.push(text[start:end])
        if search.found is not None:
            assert shown == stopped(came, stops)[0]
            return
        assert shown == came.removesuffix(undecided(came, stops))


@pytest.mark.parametrize(
    ("text", "stops", "shown", "found"),
    [
        ("un deux trois", ["trois", "deux"], "un ", "deux"),
        ("garçon", ["çon", "garçon"], "", "garçon"),
        ("garçon", ["arç", "garçon"], "g", "arç"),
        ("aab", ["ab"], "a", "ab"),
        ("abababc", ["ababc"], "ab", "ababc"),
        ("abcd", ["abce", "bcd"], "a", "bcd"),
        ("ab", ["abc"], "ab", None),
        ("a", ["a", "ab"], "", "a"),
        ("x\ufffdy", ["\ufffd"], "x", "\ufffd"),
        ("xé", ["é"], "x", "é"),
    ],
)
def test_the_stop_text_that_is_complete_first_ends_the_answer_and_of_two_the_longer(
    text: str, stops: list[str], shown: str, found: str | None
) -> None:
    for pieces in ([text], list(text)):
        search = StopTexts(stops)
        assert (shown_by(search, pieces), search.found) == (shown, found)


def test_nothing_is_shown_after_the_stop_text() -> None:
    search = StopTexts(["b"])

    assert [search.push(piece) for piece in ("a", "bc", "d", "b")] == ["a", "", "", ""]
    assert (search.flush(), search.found) == ("", "b")


def test_a_stop_text_that_does_not_count_is_passed_over_and_shown() -> None:
    search = StopTexts(["ab", "ba"])

    assert [search.push(piece, counts=False) for piece in ("a", "b")] == ["", "a"]
    assert (search.push("a"), search.found) == ("", "ba")


def test_with_include_nothing_is_held_back() -> None:
    search = StopTexts(["abc"], include=True)

    assert [search.push(piece) for piece in ("xa", "b", "cd")] == ["xa", "b", "c"]
    assert (search.flush(), search.found) == ("", "abc")


# In the text of tokens


def text_of(kind: str, prompt: list[int], ids: list[int]) -> str:
    """The text of an answer as it is streamed without stop texts."""
    decoder = tokenizer_of(kind).decoder(prompt)
    return "".join(map(decoder.push, ids)) + decoder.flush()


def answered(
    kind: str,
    prompt: list[int],
    ids: list[int],
    stops: list[str],
    reason: EndReason = "length",
    *,
    include: bool = False,
) -> Transcript:
    """What a worker writes where a model says these ids."""
    request = GenerationRequest(tuple(prompt), stop=tuple(stops), include_stop=include)
    transcript = Transcript(request, tokenizer_of(kind))
    for token_id in ids:
        transcript.add(token_id)
        if transcript.has_stopped():
            transcript.close("stop")
            return transcript
    transcript.close(reason)
    return transcript


def ids_of(kind: str, *tokens: str) -> list[int]:
    ids = [tokenizer_of(kind).token_id(token) for token in tokens]
    return [token_id for token_id in ids if token_id is not None]


@PROPERTY
@pytest.mark.parametrize("kind", ALL_KINDS)
@given(data=st.data())
def test_every_stream_reads_as_the_whole_text_up_to_its_first_stop(kind: str, data: st.DataObject) -> None:
    tokenizer = tokenizer_of(kind)
    any_ids = st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=12)
    words = st.text(" \n,la▁é😀", max_size=8).map(tokenizer.encode)
    prompt = data.draw(st.one_of(any_ids, words)) or [0]
    ids = data.draw(st.lists(st.one_of(any_ids, words), max_size=3).map(chain.from_iterable).map(list))
    whole = text_of(kind, prompt, ids)
    parts = [whole[start : start + length] for start in range(len(whole)) for length in (1, 2, 3, 5)]
    stop = st.one_of(st.sampled_from([*parts, "\n"]), st.text(" \n,la▁é\0\ufffd", min_size=1, max_size=3))
    stops = data.draw(st.lists(stop, min_size=1, max_size=3))
    include = data.draw(st.booleans())

    transcript = answered(kind, prompt, ids, stops, include=include)

    shown, found = stopped(whole, stops, include=include)
    end = transcript.end
    assert end is not None
    assert (transcript.text, end.stop_text) == (shown, found)
    assert end.reason == ("length" if found is None else "stop")
    assert whole.startswith(transcript.text)
    assert transcript.ids == ids[: end.tokens]
    assert found is not None or end.tokens == len(ids)
    resumed_anywhere(transcript, prompt, stops, include, kind)


def resumed_anywhere(whole: Transcript, prompt: list[int], stops: list[str], include: bool, kind: str) -> None:
    """Assert that another worker writes the same entries behind any of them."""
    request = GenerationRequest(tuple(prompt), stop=tuple(stops), include_stop=include)
    assert whole.end is not None
    for kept in range(whole.tokens + 1):
        events: list[Event] = whole.events[:kept]
        resumed = Transcript(request, tokenizer_of(kind), events)
        for token_id in whole.ids[kept:]:
            assert not resumed.has_stopped()
            resumed.add(token_id)
        resumed.close("length")
        assert resumed.events == whole.events


@pytest.mark.parametrize(
    ("kind", "prompt", "tokens", "stop", "text"),
    [
        ("llama-2", ["<s>"], ["▁l", "a", "▁"], " ", "la"),
        ("llama-2", ["<s>"], ["▁l", "a"], " l", "la"),
        ("llama-2", ["l"], ["▁l", "a"], " l", ""),
        ("llama-2", ["l"], ["<0xE2>", "<0x0A>", "<0xA0>", "a"], "\n", "\ufffd\ufffd\ufffda"),
        ("llama-2", ["l"], ["<0xE2>", "<0x0A>", "<0xA0>", "a"], "\ufffda", "\ufffd\ufffd"),
        ("llama-2", ["l"], ["<0xC3>", "<0xA9>", "<0x0A>", "a"], "\n", "é"),
        ("llama-2", ["l"], ["a", "<0xC3>", "<0xA9>"], "é", "a"),
        ("no-prefix", ["<s>"], ["▁l", "a"], " l", "la"),
        ("no-prefix", ["l"], ["a", "▁l", "a"], " l", "a"),
        ("unigram", ["l"], ["▁la", "l"], " la", ""),
        ("llama-3", ["l"], ["a", "Ã", "©", "a"], "é", "a"),
        ("llama-3", ["l"], ["a", "Ã", "a"], "\ufffd", "a"),
        ("llama-3", ["l"], ["a", "Ã"], "\ufffd", "a"),
    ],
)
def test_a_stop_text_counts_where_a_reader_sees_it(
    kind: str, prompt: list[str], tokens: list[str], stop: str, text: str
) -> None:
    assert answered(kind, ids_of(kind, *prompt), ids_of(kind, *tokens), [stop]).text == text


def test_the_tokens_of_the_stop_text_are_in_the_stream_and_add_no_text() -> None:
    ids = ids_of("llama-3", "l", "a", "l", "e", "s")

    transcript = answered("llama-3", [1], ids, ["al"])

    assert transcript.events == [
        TokenEvent(1, ids[0], "l"),
        TokenEvent(2, ids[1], ""),
        TokenEvent(3, ids[2], ""),
        EndEvent("stop", 3, 1, stop_text="al"),
    ]
    assert transcript.result() == {
        "ids": ids[:3],
        "end": "stop",
        "tokens": 3,
        "prompt_tokens": 1,
        "stop_text": "al",
        "text": "l",
    }


@pytest.mark.parametrize("reason", ["length", "context", "cancelled", "timeout", "error"])
def test_what_was_held_back_and_became_no_stop_text_stands_in_the_terminal_entry(reason: EndReason) -> None:
    transcript = answered("llama-3", [1], ids_of("llama-3", "l", "a"), ["ale"], reason)

    assert transcript.end == EndEvent(reason, 2, 1, text="a")


@pytest.mark.parametrize(
    ("reason", "end"),
    [
        ("length", EndEvent("stop", 2, 1, stop_text="\ufffd")),
        ("cancelled", EndEvent("cancelled", 2, 1)),
    ],
)
def test_a_stop_text_in_what_is_left_at_the_end_is_not_shown(reason: EndReason, end: EndEvent) -> None:
    transcript = answered("llama-3", [1], ids_of("llama-3", "l", "Ã"), ["\ufffd"], reason)

    assert (transcript.text, transcript.end) == ("l", end)


def test_a_stop_token_after_the_beginning_of_a_stop_text_shows_that() -> None:
    tokenizer, ids = tokenizer_of("llama-3"), ids_of("llama-3", "l", "a", "s")
    transcript = Transcript(GenerationRequest((1,), stop_ids=(ids[2],), stop=("as",)), tokenizer)
    for token_id in ids:
        transcript.add(token_id)

    end = transcript.close("stop", stop_id=ids[2])

    assert end == EndEvent("stop", 3, 1, text="a", stop_id=ids[2])


def test_an_end_of_ours_behind_a_stop_text_in_the_stream_is_that_of_the_stop_text() -> None:
    theirs = answered("llama-3", [1], ids_of("llama-3", "l", "a", "l"), ["al"])
    stream: list[Event] = theirs.events[:-1]
    ours = Transcript(GenerationRequest((1,), stop=("al",)), tokenizer_of("llama-3"), stream[:1])
    ours.close("cancelled")

    ours.adopt(stream)

    assert ours.events == theirs.events
