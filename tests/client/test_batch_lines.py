"""What a line of a batch may say, in both forms, and the reason that is given where it says something else."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from minilab_client.batch import own_form
from support.batch_files import asked_model, good_lines, openai, own, read_file, write_lines

from minilab_gen.asked_model import AskedModel
from minilab_gen.batch import json_lines
from minilab_gen.batch.line import BadLine, Line
from minilab_gen.request import GREEDY, GenerationRequest, SamplingSettings
from minilab_gen.text.chat import ChatFormat

FOGG = tuple(asked_model().tokenizer.encode("Phileas Fogg"))


def line_of(file: Path, line: dict[str, Any] | str | bytes) -> Line:
    """What is made of one line, which must be good."""
    (found,) = read_file(write_lines(file, line))
    assert isinstance(found, Line), found
    return found


def reason(file: Path, line: dict[str, Any] | str | bytes) -> str:
    """Why one line is refused."""
    (found,) = read_file(write_lines(file, line))
    assert isinstance(found, BadLine), found
    return found.reason


def test_our_form_takes_the_settings_of_submit(file: Path) -> None:
    asked = own("a", max_new_tokens=9, temperature=0.5, top_k=7, top_p=0.9, seed=3, stop_ids=[4, 5])

    assert line_of(file, asked).request == GenerationRequest(FOGG, 9, SamplingSettings(0.5, 7, 0.9, 3), (4, 5))


ALL = {
    "min_p": 0.1,
    "repetition_penalty": 1.2,
    "presence_penalty": 0.5,
    "frequency_penalty": -0.5,
    "logit_bias": {"12": -5, "7": 2.5},
    "min_tokens": 3,
    "allowed_token_ids": [7, 12, 13],
    "bad_words": ["Fogg"],
    "bad_words_ids": [[5, 6]],
    "ignore_eos": True,
}
"""Every setting that is no plain filter or end."""


@pytest.mark.parametrize("form", [own, openai])
def test_both_forms_take_all_settings(file: Path, form: Any) -> None:
    words = [(5, 6), (40, 351), (352,)]

    line = line_of(file, form("a", temperature=0.5, seed=3, **ALL))

    settings = SamplingSettings(
        0.5, None, None, 3, 0.1, 1.2, 0.5, -0.5, {7: 2.5, 12: -5.0}, 3, (7, 12, 13), tuple(words)
    )
    assert (line.request.settings, line.request.stop_ids) == (settings, ())


@pytest.mark.parametrize("form", [own, openai])
def test_null_leaves_a_setting_out(file: Path, form: Any) -> None:
    off = {name: None for name in ALL if name in ("logit_bias", "allowed_token_ids", "bad_words", "ignore_eos")}

    assert line_of(file, form("a", seed=3, **off)).request == line_of(file, form("a", seed=3)).request


def test_every_setting_of_a_chat_makes_another_job(file: Path) -> None:
    base = asked_model()
    chat = ChatFormat("{{ messages[0].content }}", {"eos_token": "<|im_end|>"})
    model = AskedModel(replace(base.card, chat=chat), base.tokenizer)
    said = {"custom_id": "a", "chat": "Phileas Fogg"}
    lines: list[dict[str, Any]] = [said, *({**said, name: value} for name, value in ALL.items())]

    digests = set()
    for line in lines:
        (found,) = read_file(write_lines(file, line), model)
        assert isinstance(found, Line), found
        digests.add(found.digest)

    assert len(digests) == len(lines)


def test_our_form_has_the_defaults_of_submit(file: Path) -> None:
    assert line_of(file, own("a")).request == GenerationRequest(FOGG, 64, GREEDY, (0,))
    assert line_of(file, {"custom_id": "a", "ids": [5, 6], "seed": None, "stop_ids": None}).request.prompt == (5, 6)


def test_our_form_takes_a_conversation_for_a_model_that_chats() -> None:
    base = asked_model()
    chat = ChatFormat("{{ messages[0].role }}: {{ messages[0].content }}", {"eos_token": "<|im_end|>"})
    model = AskedModel(replace(base.card, chat=chat), base.tokenizer)
    prompt = tuple(base.tokenizer.encode("user: Phileas Fogg"))

    for said in ("Phileas Fogg", [{"role": "user", "content": "Phileas Fogg"}]):
        payload = own_form.read({"custom_id": "a", "chat": said}, model).payload
        assert payload == {"prompt": prompt, "max_new_tokens": 1024, "stop_ids": (0, 2)}
        assert own_form.read({"custom_id": "a", "chat": said, "stop_ids": [5]}, model).payload["stop_ids"] == [5]


def test_openais_form_has_its_defaults(file: Path) -> None:
    request = line_of(file, openai("a", seed=3)).request

    assert request == GenerationRequest(FOGG, 16, SamplingSettings(1.0, None, None, 3), (0,))
    assert all(line_of(file, openai("a", seed=3, top_k=off)).request == request for off in (0, -1))  # as in vLLM


def test_openais_form_takes_its_names_and_two_of_vllm(file: Path) -> None:
    body = {"max_tokens": 9, "temperature": 0.5, "top_p": 0.9, "seed": 3, "top_k": 7, "stop_token_ids": [4]}

    request = line_of(
        file, openai("a", [5, 6], model="base", user="me", n=1, echo=False, logprobs=None, **body)
    ).request

    assert request == GenerationRequest((5, 6), 9, SamplingSettings(0.5, 7, 0.9, 3), (0, 4))


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        (openai("a", top_k=False), "top_k must be an integer, got False"),
        ("{", "a line must be JSON"),
        (" {}x", "a line must be JSON"),
        ("\0\0", "a line must be JSON"),
        ("[1, 2]", "a line must be a JSON object, got list"),
        ("[" * 100_000, "a line must be JSON that can be read"),
        (f'{{"custom_id": {"9" * 5000}}}', "a line must be JSON that can be read"),
        (b'{"custom_id": "\xff"}', "a line must be UTF-8, got another byte at position 15"),
        ('{"custom_id": "a", "prompt": "b", "prompt": "c"}', "a field must be given once, got 'prompt' twice"),
        ({"prompt": "b"}, "a line must have a custom_id, got none"),
        ({"custom_id": 7, "prompt": "b"}, "custom_id must be a text of 1 to 512 characters, got 7"),
        ({"custom_id": "", "prompt": "b"}, "custom_id must be a text of 1 to 512 characters, got ''"),
        ({"custom_id": "a" * 513, "prompt": "b"}, "custom_id must be a text of 1 to 512 characters"),
        ('{"custom_id": "\\ud800", "prompt": "b"}', "custom_id must hold whole characters"),
        ({"custom_id": "a", "chat": "Hello"}, "the model base has no chat template"),
        ({"custom_id": "a", "chat": 5}, "a conversation must be a text or a list of messages, got int"),
        ({"custom_id": "a"}, "a line must have one of prompt, chat, ids, got none"),
        (own("a", ids=[5]), "a line must have one of prompt, chat, ids, got prompt and ids"),
        (own("a", temprature=1), "got 'temprature'"),
        (own("a", "b" * 1_000_001), "prompt must be at most 1000000 characters long"),
        (own("a", "ou " * 200), "prompt must hold 1 to 127 ids, got "),
        (own("a", ""), "prompt must hold at least 1 token, got an empty text"),
        ('{"custom_id": "a", "prompt": "\\ud800"}', "prompt must be text of whole characters"),
        ({"custom_id": "a", "prompt": ["b"]}, "prompt must be a text, got ['b']"),
        ({"custom_id": "a", "ids": "5,6"}, "ids must be a list of token ids, got '5,6'"),
        ({"custom_id": "a", "ids": []}, "prompt must hold at least 1 id, got none"),
        ({"custom_id": "a", "ids": [5, True]}, "prompt must hold integers of at least 0, got True at position 1"),
        ({"custom_id": "a", "ids": [5, 2048]}, "prompt ids must be 0 to 2047, got 2048 at position 1"),
        ('{"custom_id": "a", "prompt": "b", "temperature": NaN}', "temperature must be a finite number, got nan"),
        ('{"custom_id": "a", "prompt": "b", "top_p": -Infinity}', "top_p must be a finite number, got -inf"),
        (own("a", temperature=-1), "temperature must be 0 or more, got -1.0"),
        (own("a", temperature=None), "temperature must be a number, got None"),
        (own("a", top_p=0), "top_p must be above 0 and at most 1, got 0.0"),
        (own("a", top_k=0), "top_k must be at least 1, got 0"),
        (own("a", seed=2**32), "seed must be at most 4294967295"),
        (own("a", seed=False), "seed must be an integer, got False"),
        (own("a", seed=""), "seed must be an integer, got ''"),
        (own("a", max_new_tokens=0), "max_new_tokens must be at least 1, got 0"),
        (own("a", max_new_tokens="9"), "max_new_tokens must be an integer, got '9'"),
        (own("a", stop_ids=[2048]), "stop_ids must be below 2048, got 2048 at position 0"),
        (own("a", stop_ids={"4": 4}), "stop_ids must be a list of ids, got dict"),
        (own("a", stop_ids=list(range(17))), "stop_ids must hold at most 16 ids"),
    ],
)
def test_a_line_that_breaks_a_rule_is_told_which(file: Path, line: dict[str, Any] | str | bytes, rule: str) -> None:
    assert rule in reason(file, line)


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        ({**openai("a"), "method": "GET"}, "method must be POST, got 'GET'"),
        ({**openai("a"), "url": "/v1/embeddings"}, "url must be /v1/completions or /v1/chat/completions, got"),
        ({"custom_id": "a", "body": {"prompt": "b"}}, "method must be POST, got None"),
        ({**openai("a"), "body": "b"}, "body must be an object, got 'b'"),
        ({**openai("a"), "prompt": "b"}, "a line with a body may have custom_id, method, url and body, got 'prompt'"),
        (openai("a", model="gpt-4"), "model must be base, which --model names, got 'gpt-4'"),
        (openai("a", tools=[]), "got 'tools'"),
        (openai("a", max_new_tokens=9), "got 'max_new_tokens'"),
        (openai("a", n=65), "n must be a whole number from 1 to 64, got 65"),
        (openai("a", n=True), "n must be a whole number from 1 to 64, got True"),
        (openai("a", n=2, best_of=2), "best_of is not offered here and must be 1 or null, got 2"),
        (openai("a", logprobs=21), "logprobs must be at most 20, got 21"),
        (openai("a", logprobs=True), "logprobs must be an integer, got True"),
        (openai("a", top_logprobs=2), "got 'top_logprobs'"),
        (openai("a", echo=1), "echo must be true or false, got 1"),
        (openai("a", logit_bias={"5": 101}), "the logit_bias of 5 must be from -100 to 100, got 101.0"),
        (openai("a", logit_bias={"05": 1}), "logit_bias must have ids in plain digits as keys, got '05'"),
        (openai("a", logit_bias={"2048": 1}), "logit_bias ids must be below 2048, got 2048"),
        (openai("a", min_tokens=17), "min_tokens must be at most max_tokens, 16, got 17"),
        (openai("a", ignore_eos=1), "ignore_eos must be true or false, got 1"),
        (openai("a", bad_words="a"), "bad_words must be a list of texts, got str"),
        (openai("a", stream=True), "stream is not offered here"),
        (openai("a", max_tokens=0), "max_tokens must be at least 1, got 0"),
        (openai("a", stop_token_ids=[2048]), "stop_token_ids must be below 2048"),
        (openai("a", stop_token_ids=[[4]]), "stop_token_ids must hold integers of at least 0, got [4]"),
        (openai("a", stop_token_ids=4), "stop_token_ids must be a list of token ids, got 4"),
        (openai("a", stop=["a"] * 17), "stop must hold at most 16 texts, got 17"),
        (openai("a", stop=[""]), "stop must hold texts of 1 to 256 characters, got '' at position 0"),
        (openai("a", stop=["a", "\ud83d"]), "stop must hold texts of whole characters, got '\\ud83d' at position 1"),
        (openai("a", stop=7), "stop must be a text or a list of texts, got 7"),
        (openai("a", include_stop=True), "got 'include_stop'"),
        (openai("a", include_stop_str_in_output=1), "include_stop_str_in_output must be true or false, got 1"),
        ({**openai("a"), "body": {}}, "prompt must be one text or one list of token ids, got None"),
        ({**openai("a"), "body": {"prompt": ["a", "b"]}}, "prompt must be one text or one list of token ids"),
        ({**openai("a"), "body": {"prompt": [[5], [6]]}}, "prompt must be one text or one list of token ids"),
    ],
)
def test_a_line_of_openais_form_is_refused_in_its_own_words(file: Path, line: dict[str, Any], rule: str) -> None:
    assert rule in reason(file, line)


def test_a_bad_line_keeps_its_number_and_its_custom_id(file: Path) -> None:
    write_lines(file, own("a"), "", "  ", own("b", top_k=0), "{")

    _, *bad = read_file(file)

    assert [(line.number, line.custom_id) for line in bad] == [(4, "b"), (5, None)]


def test_a_custom_id_may_come_once_and_a_bad_line_does_not_take_it(file: Path) -> None:
    write_lines(file, own("a", top_k=0), own("a"), own("a", top_k=3))

    first, second, third = read_file(file)

    assert isinstance(first, BadLine)
    assert isinstance(second, Line)
    assert isinstance(third, BadLine)
    assert third.reason == "custom_id must differ from line to line, got that of line 2 again"


def test_line_ends_of_windows_a_byte_order_mark_and_a_missing_last_line_end_are_no_errors(file: Path) -> None:
    file.write_bytes(b"\xef\xbb\xbf" + b"\r\n".join(json.dumps(own(name)).encode() for name in "abc"))

    assert [line.custom_id for line in good_lines(file)] == ["a", "b", "c"]


def test_a_line_that_is_too_long_is_refused_without_its_neighbours(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = [json.dumps(own("a")), json.dumps(own("b", "b" * 2_000_000)), json.dumps(own("c"))]
    file.write_text("\n".join(content), encoding="utf-8")

    with file.open("rb") as lines:
        found = list(json_lines.read_lines(lines, at_most=100))

    assert [(line.number, line.content is None) for line in found] == [(1, False), (2, True), (3, False)]
    assert found[2].content == content[2].encode()


def test_the_longest_line_is_taken_and_one_byte_more_is_not(file: Path) -> None:
    file.write_bytes(b"\xef\xbb\xbf" + b"a" * 100 + b"\r\n" + b"b" * 101 + b"\n" + b"c" * 100)

    with file.open("rb") as lines:
        found = list(json_lines.read_lines(lines, at_most=100))

    assert [line.content for line in found] == [b"a" * 100, None, b"c" * 100]


def test_without_a_seed_the_content_gives_one_that_stays(file: Path) -> None:
    one = line_of(file, own("a", temperature=0.8))

    again = line_of(file, json.dumps(own("a", temperature=0.8), indent=None, separators=(" , ", " : ")))
    other = line_of(file, own("b", temperature=0.8))

    assert one.seed == one.request.settings.seed == again.seed
    assert one.digest == again.digest
    assert one.seed != other.seed


def test_the_seed_of_a_greedy_line_is_told_only_where_it_was_given(file: Path) -> None:
    assert line_of(file, own("a")).seed is None
    assert line_of(file, own("a", seed=0)).seed == 0


@pytest.mark.parametrize(
    "other",
    [
        own("b", temperature=0.8),
        own("a", temperature=0.9),
        own("a", "Phileas", temperature=0.8),
        own("a", temperature=0.8, top_k=2047),
        own("a", temperature=0.8, seed=1),
        own("a", temperature=0.8, stop_ids=[]),
        own("a", temperature=0.8, stop=","),
        openai("a", max_tokens=64, temperature=0.8),
    ],
)
def test_a_line_whose_content_differs_is_another_request(file: Path, other: dict[str, Any]) -> None:
    assert line_of(file, other).digest != line_of(file, own("a", temperature=0.8)).digest


def test_how_a_line_is_written_makes_no_other_request_of_it(file: Path) -> None:
    line = line_of(file, own("a", temperature=1))

    same = line_of(file, {"temperature": 1.0, "ids": list(FOGG), "custom_id": "a", "max_new_tokens": 64})

    assert same.digest == line.digest


def test_stop_texts_are_given_as_one_or_several(file: Path) -> None:
    for form in (own, openai):
        assert line_of(file, form("a", stop=", ")).request.stop == (", ",)
        assert line_of(file, form("a", stop=[", ", "\n"])).request.stop == (", ", "\n")
        assert line_of(file, form("a", stop=None)).request.stop == ()
    assert line_of(file, own("a", stop=",", include_stop=True)).request.include_stop
    assert line_of(file, openai("a", stop=",", include_stop_str_in_output=True)).request.include_stop


def test_a_stop_text_that_names_a_special_token_is_a_stop_id_too(file: Path) -> None:
    for form in (own, openai):
        assert line_of(file, form("a", stop=["<|im_end|>", ","])).request.stop_ids == (0, 2)
        assert line_of(file, form("a", stop=[","])).request.stop_ids == (0,)
