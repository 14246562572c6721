"""What forms allow and what they refuse, text by text."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from support.formed_texts import FormedTexts, allowed_ids, goes_on
from support.random_forms import form_of, schema_form

from minilab_gen.errors import RequestError
from minilab_gen.text.tokenizer import get_tokenizer

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def texts() -> FormedTexts:
    return FormedTexts(get_tokenizer())


STRING_1 = {"type": "string", "maxLength": 1}
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("schema", "held", "not_held"),
    [
        (PERSON, ['{"name":"Fogg","age":40}', '{"name":""}'], ['{"age":40}', '{"age":4,"name":"x"}', '{"name":1}']),
        (PERSON, [], ['{"name":"x","age":4,}', '{"name":"x","more":1}', "[]", '{"name":"x"}{', '{"name": "x"}']),
        (STRING_1, ['"😀"', '"é"', '"\\""', '"\\n"', '""'], ['"ab"', '"😀é"', '"\\ud83d"', '"\n"']),
        ({"type": "string", "minLength": 2}, ['"ab"', '"😀é"'], ['"😀"', '"\\ud83d\\ude00"', '"a"']),
        ({"pattern": "p", "type": "string"}, ['"apple"', '"p"'], ['"ale"', '""']),
        ({"pattern": "^p$", "type": "string"}, ['"p"'], ['"apple"', '"p\\n"', '"pp"']),
        ({"enum": ["é", "é", '"', "\n", "😀"]}, ['"é"', '"\\""', '"\\n"', '"😀"'], ['"e"', "é", '"\n"']),
        ({"required": ["x"], "type": "object"}, ['{"x":1}', '{"x":{}}'], ["{}", '{"y":1}']),
        ({"type": ["integer", "null"]}, ["12", "-3", "null"], ["1.5", '"1"', "012", "+1"]),
        ({"type": "integer", "minimum": 5, "maximum": 12}, ["5", "12", "9"], ["4", "13", "-5", "5.0"]),
        ({"type": "integer", "multipleOf": 7}, ["0", "14", "-7"], ["13", "1"]),
        ({"type": "array", "items": {"type": "integer"}, "maxItems": 2}, ["[]", "[1,2]"], ["[1,2,3]", "[1, 2]"]),
        ({"prefixItems": [{"const": 1}, {"const": "b"}], "items": False, "type": "array"}, ['[1,"b"]'], ["[2]"]),
        ({"$ref": "#/$defs/t", "$defs": {"t": {"enum": [1, 2]}}}, ["1", "2"], ["3"]),
        ({"$defs": {"a/b": {"const": 5}}, "$ref": "#/$defs/a~1b"}, ["5"], ["6"]),
        ({"format": "date", "type": "string"}, ['"2024-02-29"'], ['"2024-13-01"', '"yesterday"']),
        ({"const": None, "deprecated": True, "title": "x"}, ["null"], ["0"]),
        ({"properties": {"a": {"deprecated": True, "const": 1}}, "type": "object"}, ['{"a":1}', "{}"], ['{"a":2}']),
        (True, ["1", '{"a":[1,{"b":null}]}'], ["x", "{a}"]),
        ({"patternProperties": {"^x": {"const": 1}}, "additionalProperties": False}, ['{"x1":1}', "{}"], ['{"y":1}']),
    ],
)
def test_a_schema_allows_what_it_holds_and_nothing_else(
    texts: FormedTexts, schema: Any, held: list[str], not_held: list[str]
) -> None:
    form = schema_form(schema)
    for text in held:
        assert texts.has(form, text), text
    for text in not_held:
        assert not texts.has(form, text), text


def test_json_has_no_white_space_between_its_parts_however_much_comes_of_it(texts: FormedTexts) -> None:
    form = schema_form(PERSON)
    for text in (" {", "{ ", '{"name" ', '{"name": ', '{"name":"x" ', '{"name":"x"} ', '{\n"', " " * 200):
        assert not texts.begins(form, text), text
    assert texts.has(form, '{"name":"  x  "}')


@pytest.mark.parametrize(
    ("regex", "held", "not_held"),
    [
        ("p", ["p"], ["apple", "pp", ""]),
        ("^p$", ["p"], ["p\n", "ap"]),
        ("a|bc", ["a", "bc"], ["ac", "ab"]),
        ("[a-z]+?b", ["ab", "abb"], ["b"]),
        (r"\d{3}/\d", ["123/4"], ["12/4"]),
        ("a/b\n", ["a/b\n"], ["a/b"]),
        (r"a\/b", ["a/b"], ["a\\/b"]),
        ("é😀", ["é😀"], ["e😀"]),
        ("(?i)fogg", ["Fogg", "FOGG"], ["fog"]),
        (".", ["a", "😀"], ["\n", ""]),
    ],
)
def test_a_regular_expression_matches_the_whole_answer(
    texts: FormedTexts, regex: str, held: list[str], not_held: list[str]
) -> None:
    form = form_of(regex=regex)
    for text in held:
        assert texts.has(form, text), text
    for text in not_held:
        assert not texts.has(form, text), text


def test_a_choice_is_one_of_the_texts_letter_by_letter(texts: FormedTexts) -> None:
    choices = ["oui", "oui, oui", 'say "x"\\n\n', "é😀", "a\x00b", "x // y"]
    form = form_of(choice=choices)
    for text in choices:
        assert texts.has(form, text), text
    assert not any(texts.has(form, text) for text in ("ou", "oui,", "non", "say"))


def test_a_grammar_derives_the_answer(texts: FormedTexts) -> None:
    form = form_of(grammar='start: "(" start ")" | NUMBER\nNUMBER: /[0-9]+/')
    assert texts.has(form, "((12))")
    assert not texts.has(form, "((12)")


def test_special_tokens_are_no_part_of_a_text_though_their_letters_are(texts: FormedTexts) -> None:
    constraint = texts.compiler.start(schema_form({"type": "string"}))
    assert goes_on(constraint, texts.vocab_size, texts.tokenizer.encode('"', bare=True))
    special = {token for token in range(texts.vocab_size) if texts.tokenizer.is_special(token)}
    assert special
    assert not special & allowed_ids(constraint, texts.vocab_size)
    letters = [token for part in "<|im_end|>" for token in texts.tokenizer.encode(part, bare=True)]
    assert goes_on(constraint, texts.vocab_size, letters)


def test_stop_ids_may_come_where_the_answer_is_whole_and_nowhere_else(texts: FormedTexts) -> None:
    constraint = texts.compiler.start(form_of(regex="ab*"))
    (letter,) = texts.tokenizer.encode("a", bare=True)
    assert not allowed_ids(constraint, texts.vocab_size, (0, 2)) & {0, 2}
    constraint.accept(letter)
    constraint.prepare([constraint])
    assert allowed_ids(constraint, texts.vocab_size, (0, 2)) >= {0, 2}
    assert 1 not in allowed_ids(constraint, texts.vocab_size, (0, 2))


def nested(depth: int) -> dict[str, Any]:
    if not depth:
        return {"type": "integer"}
    inner = nested(depth - 1)
    options = [{"type": "object", "properties": {"t": inner}, "required": ["t"], "additionalProperties": False}, inner]
    return {"oneOf": [{"type": "string"}, options[0]]} if depth % 2 else options[0]


def arrays(depth: int) -> dict[str, Any]:
    return {"type": "array", "items": arrays(depth - 1)} if depth else {"type": "null"}


HARD: dict[str, Any] = {
    "an enum of 50 000": lambda: schema_form({"enum": [f"text number {n}" for n in range(50_000)]}),
    "an enum of 10 000": lambda: schema_form({"enum": [f"text number {n}" for n in range(10_000)]}),
    "a long string": lambda: schema_form({"type": "string", "maxLength": 10**6}),
    "arrays 90 deep": lambda: schema_form(arrays(90)),
    "oneOf 12 deep": lambda: schema_form(nested(24)),
    "5 MB": lambda: schema_form({"enum": ["x" * 5_000_000]}),
    "optional letters": lambda: form_of(regex="(a?){30}a{30}"),
    "letters anywhere": lambda: form_of(regex="(.*a){12}"),
    "repeats of repeats": lambda: form_of(regex="((((a{1,100}){1,100}){1,100}){1,100})"),
    "a common multiple": lambda: schema_form({"allOf": [{"type": "integer", "multipleOf": n} for n in (7919, 7907)]}),
    "a schema of itself": lambda: schema_form({"$ref": "#"}),
    "2000 properties": lambda: schema_form(
        {"type": "object", "properties": {f"p{n}": {"type": "integer"} for n in range(2000)}}
    ),
}


@pytest.mark.parametrize("name", HARD)
def test_a_hard_form_is_compiled_or_refused_with_a_reason_in_a_few_seconds(texts: FormedTexts, name: str) -> None:
    start = time.monotonic()
    try:
        constraint = texts.compiler.start(HARD[name]())
        outcome = "compiled" if constraint.error is None else constraint.error
    except RequestError as error:
        outcome = str(error)
    assert time.monotonic() - start < 60  # 5 s of a processor, on a machine that is loaded
    if name in ("an enum of 50 000", "5 MB"):
        assert "at most 262144 characters of JSON" in outcome
    elif name == "a common multiple":
        assert "more than 5 s to compile" in outcome
    elif name == "a schema of itself":
        assert "no text has this form" in outcome
    else:
        assert outcome == "compiled"


def test_a_form_is_compiled_once_and_refused_once(texts: FormedTexts, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []

    def counted(grammar: str) -> str | None:
        tried.append(grammar)
        return "it is refused" if "refused" in grammar else None

    monkeypatch.setattr("minilab_gen.constraints.trial.fault_of", counted)
    for _ in range(100):
        texts.compiler.start(form_of(choice=["compiled once"]))
        with pytest.raises(RequestError, match="it is refused"):
            texts.compiler.start(form_of(choice=["refused once"]))
    assert len(tried) == 2


def test_an_answer_whose_form_explodes_fails_alone_and_the_form_is_as_before(texts: FormedTexts) -> None:
    form = form_of(regex="((((a{1,100}){1,100}){1,100}){1,100})")
    (letter,) = texts.tokenizer.encode("a", bare=True)

    def letters_until_it_fails() -> int:
        constraint = texts.compiler.start(form)
        for count in range(200):
            if constraint.error is not None:
                assert "too many" in constraint.error
                return count
            constraint.accept(letter)
            constraint.prepare([constraint])
        return 200

    assert letters_until_it_fails() == letters_until_it_fails() > 0


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"regex": "a(?=b)"}, "look-ahead"),
        ({"regex": r"(a)\1"}, "backreferences"),
        ({"regex": r"\bx"}, "lookarounds"),
        ({"regex": "(a"}, "unclosed group"),
        ({"grammar": "start: foo"}, 'line 1, column 8: unknown name: "foo"'),
        ({"grammar": 'start: "a"\nother: ('}, "line 2"),
        ({"grammar": 'start: %json {"type": "string", "x-guidance": {"lenient": true}}'}, "embeds nothing"),
        ({"grammar": '%llguidance {"no_forcing": false}\nstart: "a"'}, "embeds nothing"),
        ({"grammar": "start: <|im_end|>"}, "names no special tokens"),
        ({"grammar": 'start: a\na[temperature=0.5]: "x"'}, "sets no temperature"),
        ({"regex": r"[^\s\S]"}, "no text has this form"),
    ],
)
def test_what_cannot_be_compiled_is_refused_with_the_reason(texts: FormedTexts, given: Any, why: str) -> None:
    with pytest.raises(RequestError, match="cannot be compiled") as refused:
        texts.compiler.start(form_of(**given))
    assert why in str(refused.value)


def test_what_a_grammar_may_not_say_may_stand_in_its_texts(texts: FormedTexts) -> None:
    form = form_of(grammar='start: "<b> %json temperature= " /<[a-z]>/  // <comment>')
    assert texts.has(form, "<b> %json temperature= <i>")


def test_schemas_that_hold_unlike_values_by_their_order_are_unlike_forms() -> None:
    one, other = ({"properties": dict.fromkeys(names, True)} for names in ("ab", "ba"))
    assert schema_form(one) != schema_form(other)
    assert json.loads(schema_form(one).text) == json.loads(schema_form(other).text)
