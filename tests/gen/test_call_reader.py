"""Calls of tools in the tokens of answers: marks that are special tokens, stop texts, and ids of calls."""

from __future__ import annotations

import random
import re

import pytest
from support.tokenizer_kinds import llama_2, qwen
from tokenizers import AddedToken
from tokenizers import Tokenizer as Library

from minilab_gen.text.call_formats import CALL_FORMATS, call_format_named
from minilab_gen.text.call_json import ToolCall
from minilab_gen.text.call_parser import Piece
from minilab_gen.text.call_reader import CallReader, CallReading, call_object, read_answer
from minilab_gen.text.stop_texts import StopTexts
from minilab_gen.text.tokenizer import Tokenizer

NAMES = ("weather", "time")
MARKS = [mark for row in CALL_FORMATS for mark in (*row.openers, *row.closers)]
TEXTS = {
    "mistral": 'Vu.\n[TOOL_CALLS] [{"name": "weather", "arguments": {"city": "🧭"}}]',
    "hermes": 'é<tool_call>{"name": "weather", "arguments": {"city": "🧭"}}</tool_call>\n<tool_call>{"name": "time"}',
    "granite": '<|tool_call|>[{"name": "weather", "arguments": {"city": "🧭"}}, {"name": "time"}] ',
    "llama3_json": '<|python_tag|>{"name": "weather", "parameters": {"city": "🧭"}}',
}
NO_CALLS = {"hermes": "So <tool_call>later</tool_call>.", "mistral": "[TOOL_CALLS]time[TOOL_CALLS] [", "granite": "a"}


def with_marks(library: Library, *, special: bool) -> Tokenizer:
    library.add_tokens([AddedToken(mark, special=special, normalized=False) for mark in MARKS])
    return Tokenizer(library)


TOKENIZERS = {
    "special": with_marks(qwen(), special=True),
    "added": with_marks(qwen(), special=False),
    "plain": Tokenizer(qwen()),
    "pieces": with_marks(llama_2(), special=True),
}


def reading(name: str, *, single: bool = False) -> CallReading:
    known = call_format_named(name)
    assert known is not None
    return CallReading(known, NAMES, None, single)


def shown(tokenizer: Tokenizer, ids: list[int], stops: tuple[str, ...] = ()) -> tuple[list[str], str]:
    """The text that comes with each token, and with the end, as a worker publishes it."""
    decoder, search = tokenizer.decoder((5,)), StopTexts(stops)
    texts = [search.push(decoder.push(token_id)) for token_id in ids]
    rest = search.push(decoder.flush())
    return texts, rest + search.flush()


def streamed(how: CallReading, tokenizer: Tokenizer, ids: list[int], texts: list[str], rest: str) -> list[Piece]:
    reader = CallReader(how, (5,), tokenizer)
    return [piece for each in zip(ids, texts, strict=True) for piece in reader.push(*each)] + reader.flush(rest)


def both(pieces: list[Piece]) -> tuple[str, list[ToolCall]]:
    content = "".join(piece for piece in pieces if isinstance(piece, str))
    return content, [piece for piece in pieces if isinstance(piece, ToolCall)]


@pytest.mark.parametrize("kind", TOKENIZERS)
@pytest.mark.parametrize("name", TEXTS)
def test_calls_are_found_whatever_the_marks_are_to_the_tokenizer(kind: str, name: str) -> None:
    tokenizer = TOKENIZERS[kind]
    ids = tokenizer.encode(TEXTS[name], bare=True)
    texts, rest = shown(tokenizer, ids)

    content, calls = both(streamed(reading(name), tokenizer, ids, texts, rest))

    assert calls[0] == ToolCall("weather", '{"city": "🧭"}')
    assert [call.name for call in calls[1:]] == ["time"] * TEXTS[name].count("time")
    assert content.lstrip() == TEXTS[name].split("\n")[0].split("<")[0].split("[")[0]


@pytest.mark.parametrize("kind", TOKENIZERS)
@pytest.mark.parametrize("name", NO_CALLS)
def test_an_answer_without_calls_has_the_content_that_it_would_have_without_tools(kind: str, name: str) -> None:
    tokenizer = TOKENIZERS[kind]
    ids = tokenizer.encode(NO_CALLS[name], bare=True)
    texts, rest = shown(tokenizer, ids)

    assert both(streamed(reading(name), tokenizer, ids, texts, rest)) == ("".join(texts) + rest, [])


@pytest.mark.parametrize("kind", TOKENIZERS)
@pytest.mark.parametrize("stops", [(), ("}",), ("]", "🧭"), ("\n[", "é<", "}}<", '"c'), ("]\x00", "}\x00")], ids=str)
@pytest.mark.parametrize("single", [False, True])
def test_a_stream_joined_is_the_whole_answer_also_where_stop_texts_hold_text_back(
    kind: str, stops: tuple[str, ...], single: bool
) -> None:
    tokenizer, generator = TOKENIZERS[kind], random.Random(1)
    for name, text in [*TEXTS.items(), *NO_CALLS.items()]:
        for _ in range(8):
            ids = tokenizer.encode(text, bare=True)
            for _ in range(generator.randrange(3)):
                ids.insert(generator.randrange(len(ids)), generator.choice(ids))
            texts, rest = shown(tokenizer, ids, stops)
            how = reading(name, single=single)

            content, calls = both(streamed(how, tokenizer, ids, texts, rest))

            whole = read_answer(how, ids, "".join(texts) + rest, (5,), tokenizer)
            assert whole == (content or (None if calls else ""), calls)
            assert len(calls) <= (1 if single else 9)


def test_without_parallel_calls_the_first_is_given() -> None:
    tokenizer = TOKENIZERS["plain"]
    text = TEXTS["hermes"] + " and text"
    ids = tokenizer.encode(text, bare=True)

    content, calls = read_answer(reading("hermes", single=True), ids, text, (), tokenizer)

    assert (content, [call.name for call in calls]) == ("é and text", ["weather"])


def test_a_reading_comes_back_from_json_and_one_of_a_later_release_reads_nothing() -> None:
    known = call_format_named("hermes")
    assert known is not None
    for how in (CallReading(known, NAMES), CallReading(known, NAMES, "weather", True), CallReading(known, (), "")):
        assert CallReading.of(how.to_json()) == how
    assert CallReading.of(None) is None
    assert CallReading.of({"format": "new", "names": []}) is None


def test_ids_of_calls_differ_are_the_same_again_and_have_the_length_that_mistral_wants() -> None:
    call = ToolCall("time", "{}")
    ids = [call_object(call, answer, n, index)["id"] for answer in "ab" for n in range(20) for index in range(20)]

    assert len(set(ids)) == len(ids)
    assert ids[0] == call_object(call, "a", 0, 0)["id"]
    assert all(re.fullmatch("[a-zA-Z0-9]{9}", each) for each in ids)
