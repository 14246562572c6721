"""Calls of tools in the texts of answers: each format, what is no call, and any cut of a text into pieces."""

from __future__ import annotations

import json
import random
import time

import pytest
from support.call_templates import TEMPLATES

from minilab_gen.text.call_formats import CALL_FORMATS, call_format_named, call_format_of
from minilab_gen.text.call_json import JsonEnd, ToolCall, calls_in
from minilab_gen.text.call_parser import CallParser, Piece

NAMES = ("weather", "time", "être")
SUEZ = ToolCall("weather", '{"city": "Suez"}')
NOW = ToolCall("time", "{}")

LOOKED = """I look.
<tool_call>{"name": "weather", "arguments": {"city": "Suez"}}</tool_call>
<tool_call>
{"name": "time"}
</tool_call>
Done. """

CALLS: list[tuple[str, str, list[Piece]]] = [
    ("hermes", '<tool_call>\n{"name": "weather", "arguments": {"city": "Suez"}}\n</tool_call>', [SUEZ]),
    ("hermes", '<tool_call>{"arguments": {"city": "Suez"}, "name": "weather"}</tool_call>\n', [SUEZ]),
    ("hermes", LOOKED, ["I look.", SUEZ, NOW, "\nDone. "]),
    ("hermes", '<tool_call>{"name": "time", "arguments": {}}', [NOW]),
    ("hermes", '<tool_call>{"name": "time", "arguments": null} </tool_', [NOW]),
    ("hermes", '<tool_call>{"name": "weather", "arguments": "{\\"city\\": \\"Suez\\"}"}</tool_call>', [SUEZ]),
    (
        "hermes",
        '<tool_call>{"name": "weather", "arguments": {"city": "}</tool_call>\\" 🧭é"}}</tool_call>',
        [ToolCall("weather", '{"city": "}</tool_call>\\" 🧭é"}')],
    ),
    ("hermes", '<tool_call><tool_call>{"name": "time"}</tool_call>', ["<tool_call>", NOW]),
    ("hermes", '<tool_call>{"name": "\\u00eatre"}</tool_call>', [ToolCall("être", "{}")]),
    ("hermes", '<tool_call>{"name": "time", "arguments": {"n": 1.10e400}}', [ToolCall("time", '{"n": 1.10e400}')]),
    ("mistral", '[TOOL_CALLS] [{"name": "weather", "arguments": {"city": "Suez"}}, {"name": "time"}]', [SUEZ, NOW]),
    ("mistral", 'So: [TOOL_CALLS][{"name": "time", "arguments": {}, "id": "123456789"}]', ["So:", NOW]),
    ("granite", '<|tool_call|>[{"name": "weather", "arguments": {"city": "Suez"}}]', [SUEZ]),
    ("granite", '<tool_call>[{"name": "time", "arguments": {}}]\n', [NOW]),
    ("granite", '<|tool_call|>[{"name": "time", "arguments": {}}]<|/tool_call|>', [NOW]),
    ("phi4_mini_json", 'functools[{"name": "weather", "arguments": {"city": "Suez"}}]', [SUEZ]),
    ("llama3_json", '{"name": "weather", "parameters": {"city": "Suez"}}', [SUEZ]),
    ("llama3_json", '\n{"type": "function", "name": "weather", "parameters": {"city": "Suez"}} ', [SUEZ]),
    ("llama3_json", '<|python_tag|>{"name": "weather", "arguments": {"city": "Suez"}}', [SUEZ]),
    ("llama3_json", '{"name": "weather", "parameters": {"city": "Suez"}}; {"name": "time"}', [SUEZ, NOW]),
    ("llama3_json", '{"name": "time"} is my answer.', [NOW, " is my answer."]),
]

TEXTS: list[tuple[str, str]] = [
    ("hermes", ""),
    ("hermes", " \n"),
    ("hermes", "A plain answer, with < and <tool and\n\n<tool_calls>.  "),
    ("hermes", "<tool_call>weather(Suez)</tool_call>"),
    ("hermes", '<tool_call>{"name": "weather", "arguments": {"city": "Su'),
    ("hermes", " <tool_call>"),
    ("hermes", '<tool_call>{"name": "nobody", "arguments": {}}</tool_call>'),
    ("hermes", '<tool_call>{"name": "time", "arguments": [1]}</tool_call>'),
    ("hermes", '<tool_call>{"name": "time", "arguments": "soon"}</tool_call>'),
    ("hermes", '<tool_call>{"name": "time", "arguments": {"x": NaN}}</tool_call>'),
    ("hermes", '<tool_call>{"name": "time", "arguments": {}, "parameters": {}}</tool_call>'),
    ("hermes", '<tool_call>{name: "time"}</tool_call>'),
    ("hermes", '<tool_call>{"name": "time", "arguments": "{\\"x\\": \\"\\ud800\\"}"}</tool_call>'),
    ("hermes", '<tool_call>{"name": "time",}</tool_call>'),
    ("hermes", '<tool_call>{"name": "time"]</tool_call>'),
    ("hermes", '<tool_call>{"name": ["time"], "arguments": {}}</tool_call>'),
    ("hermes", "<tool_call>[]</tool_call>"),
    ("hermes", "<tool_call>" + "[" * 5000 + "]" * 5000 + "</tool_call>"),
    ("hermes", '<tool_call>{"name": "time", "arguments": {"x": ' + "9" * 5000 + "}} x"),
    ("hermes", '{"name": "time", "arguments": {}}'),
    ("mistral", '[TOOL_CALLS] [{"name": "time"}, {"name": "nobody"}]'),
    ("mistral", '[TOOL_CALLS] [{"name": "time"},]'),
    ("mistral", "[TOOL_CALLS]time[ARGS]{}"),
    ("phi4_mini_json", "import functools\n\nfunctools.cache"),
    ("llama3_json", '{"city": "Suez"}'),
    ("llama3_json", 'It is {"name": "time", "parameters": {}}'),
    ("llama3_json", "<|python_tag|>print(1)"),
    ("llama3_json", " ; {"),
]


def read(name: str, pieces: list[str], forced: str | None = None) -> list[Piece]:
    """What comes of a text in these pieces, with neighbouring contents joined."""
    known = call_format_named(name)
    assert known is not None
    parser = CallParser(known, NAMES, forced)
    return joined([piece for text in pieces for piece in parser.push(text)] + parser.flush())


def joined(pieces: list[Piece]) -> list[Piece]:
    found: list[Piece] = []
    for piece in pieces:
        if isinstance(piece, str) and found and isinstance(found[-1], str):
            found[-1] += piece
        else:
            found.append(piece)
    return found


def cut(text: str, generator: random.Random) -> list[str]:
    places = sorted(generator.choices(range(len(text) + 1), k=generator.randrange(12)))
    return [text[start:end] for start, end in zip([0, *places], [*places, len(text)], strict=True)]


@pytest.mark.parametrize(("name", "text", "expected"), CALLS, ids=range(len(CALLS)))
def test_calls_are_found_and_what_stands_around_them_is_content(name: str, text: str, expected: list[Piece]) -> None:
    assert read(name, [text]) == expected


@pytest.mark.parametrize(("name", "text"), TEXTS, ids=range(len(TEXTS)))
def test_what_is_no_call_stays_content_to_the_letter(name: str, text: str) -> None:
    assert read(name, [text]) == ([text] if text else [])


@pytest.mark.parametrize("seed", range(20))
def test_however_a_text_is_cut_into_pieces_the_same_comes_of_it(seed: int) -> None:
    generator = random.Random(seed)
    for name, text in [("hermes", f"{'a ' * 300}{LOOKED * 5}"), *((name, text) for name, text, _ in CALLS), *TEXTS]:
        assert read(name, cut(text, generator)) == read(name, [text]), text
        if len(text) < 1000:
            assert read(name, list(text)) == read(name, [text]), text


@pytest.mark.parametrize("seed", range(30))
def test_parts_of_calls_in_any_order_lose_nothing_but_calls_and_space_beside_them(seed: int) -> None:
    generator = random.Random(seed)
    marks = [mark for row in CALL_FORMATS for mark in (*row.openers, *row.closers)]
    parts = [*marks, '{"name": "time"}', '{"name": "time"', "{", "}", '"', "[", "]", "\\", ";", " ", "\n", "a", "<"]
    for row in CALL_FORMATS:
        text = "".join(generator.choices(parts, k=generator.randrange(12)))
        whole = read(row.name, [text])

        assert read(row.name, cut(text, generator)) == whole, text
        if not any(isinstance(piece, ToolCall) for piece in whole):
            assert "".join(map(str, whole)) == text
        rest = text
        for piece in whole:  # content stands in the text in this order
            if isinstance(piece, str):
                assert piece in rest
                rest = rest[rest.index(piece) + len(piece) :]


def test_content_is_shown_at_once_where_it_cannot_become_a_call() -> None:
    parser = CallParser(CALL_FORMATS[0], NAMES)

    assert parser.push("Let me look") == ["Let me look"]
    assert parser.push(" <to") == []
    assert parser.push("p> ") == [" <top>"]
    assert parser.push('<tool_call>{"name": "time"') == []
    assert parser.push("}") == [NOW]
    assert parser.push("</tool_call>") == []
    assert parser.flush() == []


@pytest.mark.parametrize(
    ("forced", "text", "expected"),
    [
        ("weather", '{"city": "Suez"}', [SUEZ]),
        ("", '{"name": "weather", "arguments": {"city": "Suez"}}', [SUEZ]),
        ("", '{"name":"weather","parameters":{"city": "Suez"}}', [SUEZ]),
        ("weather", '{"city": "Su', ['{"city": "Su']),
        ("weather", "[1]", ["[1]"]),
        ("", '{"name": "nobody"}', ['{"name": "nobody"}']),
        ("weather", "", []),
    ],
    ids=str,
)
def test_an_answer_goes_on_within_a_call_that_the_prompt_began(forced: str, text: str, expected: list[Piece]) -> None:
    assert read("hermes", [text], forced) == expected
    assert read("hermes", list(text), forced) == expected


@pytest.mark.parametrize(("name", "template"), TEMPLATES.items(), ids=list(TEMPLATES))
def test_a_template_tells_the_format(name: str, template: str) -> None:
    found = call_format_of(template)

    assert (None if found is None else found.name) == {"qwen": "hermes", "llama": "llama3_json"}.get(name, name)


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages }}",
        "<tool_call>\n<function=example></function>\n</tool_call>",
        "<tool_call>{{ name }}\n<arg_key></arg_key></tool_call>",
        "[TOOL_CALLS]{{ name }}[ARGS]{{ arguments }}",
    ],
)
def test_a_template_of_another_format_tells_none(template: str) -> None:
    assert call_format_of(template) is None


@pytest.mark.parametrize("seed", range(20))
def test_the_end_of_json_is_found_in_pieces_and_values_are_read_as_python_reads_them(seed: int) -> None:
    generator = random.Random(seed)
    arguments = value_of(generator, 4)
    if not isinstance(arguments, dict):
        arguments = {"x": arguments}
    indent, is_ascii = generator.choice([None, 2]), generator.random() < 0.5
    text = json.dumps({"arguments": arguments, "name": "time"}, indent=indent, ensure_ascii=is_ascii)

    found, end = 0, JsonEnd()
    for piece in cut(text + " }]", generator):
        length = end.push(piece)
        found += len(piece) if length is None else length
        if length is not None:
            break
    calls = calls_in(text, NAMES)

    assert found == len(text)
    assert calls is not None
    assert json.loads(calls[0].arguments) == arguments
    assert calls[0].arguments in text


def value_of(generator: random.Random, depth: int) -> object:
    letters = 'a"\\{}[]é🧭 \n,:'
    text = "".join(generator.choices(letters, k=generator.randrange(6)))
    if depth and generator.random() < 0.7:
        inner = [value_of(generator, depth - 1) for _ in range(generator.randrange(4))]
        return inner if generator.random() < 0.5 else {f"{text}{index}": each for index, each in enumerate(inner)}
    return generator.choice([text, None, True, generator.randrange(-99, 99), 1.5])


def test_a_mark_that_is_a_special_token_goes_on_behind_a_call_without_its_closing_one() -> None:
    parser = CallParser(CALL_FORMATS[0], NAMES)

    assert parser.push('<tool_call>{"name": "time"}\n') == [NOW]
    assert parser.mark("<tool_call>") == []
    assert parser.push('{"name": "time"}') == [NOW]
    assert parser.mark("</tool_call>") == []
    assert parser.push("Done") == ["Done"]


def test_marks_in_a_long_text_take_no_longer_than_in_a_short_one() -> None:
    parser = CallParser(CALL_FORMATS[2], NAMES)
    text = "<tool_call>x" * 30_000

    began = time.process_time()
    pieces = [*parser.push(text), *parser.flush()]

    assert time.process_time() - began < 5  # a second, where each mark costs the same, else minutes
    assert "".join(map(str, pieces)) == text
