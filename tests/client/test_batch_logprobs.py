"""Logprobs in a batch: asked for and given in our form and in both of OpenAI's, as strict JSON."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import redis
import torch
from minilab_worker.serving import ServedModel
from support.batch_files import asked_model, good_lines, openai, own, read_file, records, write_lines
from support.batch_runs import batch
from support.served_jobs import StartWorker
from support.tokenizer_kinds import KINDS

from minilab_gen.asked_model import AskedModel
from minilab_gen.batch import openai_form
from minilab_gen.batch.line import BadLine, Line
from minilab_gen.generate import generate, logprobs
from minilab_gen.logprobs import LEAST_LOGPROB, TokenLogprobs
from minilab_gen.protocol.events import EndEvent
from minilab_gen.protocol.results import Answer
from minilab_gen.request import GenerationRequest
from minilab_gen.text.chat import ChatFormat
from minilab_gen.text.openai_logprobs import of_chat, of_completion, text_offsets
from minilab_gen.text.tokenizer import Tokenizer, get_tokenizer

SAID = [{"role": "user", "content": "Phileas Fogg"}]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return get_tokenizer()


def model_that_chats() -> AskedModel:
    base = asked_model()
    return AskedModel(replace(base.card, chat=ChatFormat("{{ messages[-1].content }}", {})), base.tokenizer)


def chat(custom_id: str, **body: Any) -> dict[str, Any]:
    named = {"method": "POST", "url": "/v1/chat/completions", "body": {"messages": SAID, **body}}
    return {"custom_id": custom_id, **named}


def asked_by(file: Path, line: dict[str, Any]) -> int | str | None:
    """How many are to be listed; the reason where the line is refused."""
    (found,) = read_file(write_lines(file, line), model_that_chats())
    return found.reason if isinstance(found, BadLine) else found.request.logprobs


def answer(ids: list[int], text: str, *listed: TokenLogprobs) -> Answer:
    return Answer(tuple(ids), text, EndEvent("length", len(ids), 3), 0.0, None, tuple(listed))


def flat(*tokens: int) -> list[TokenLogprobs]:
    return [TokenLogprobs(-float(at)) for at, _ in enumerate(tokens, start=1)]


def given_in_a_chat(ids: list[int], listed: list[TokenLogprobs], tokenizer: Tokenizer) -> list[dict[str, Any]]:
    content: list[dict[str, Any]] = of_chat(ids, listed, tokenizer)["content"]
    return content


def given_in_a_completion(
    ids: list[int], text: str, listed: list[TokenLogprobs], tokenizer: Tokenizer
) -> dict[str, Any]:
    return of_completion(ids, listed, text_offsets(ids, text, tokenizer.decoder((5, 6))), tokenizer)


# What is asked


@pytest.mark.parametrize(
    ("line", "count"),
    [
        (own("a"), None),
        (own("a", logprobs=None), None),
        (own("a", logprobs=0), 0),
        (own("a", logprobs=20), 20),
        (openai("a"), None),
        (openai("a", logprobs=None), None),
        (openai("a", logprobs=0), 0),
        (openai("a", logprobs=6), 6),
        (chat("a"), None),
        (chat("a", logprobs=False), None),
        (chat("a", logprobs=None, top_logprobs=None), None),
        (chat("a", logprobs=False, top_logprobs=0), None),
        (chat("a", logprobs=True), 0),
        (chat("a", logprobs=True, top_logprobs=0), 0),
        (chat("a", logprobs=True, top_logprobs=20), 20),
        (own("a", logprobs=21), "logprobs must be at most 20, got 21"),
        (chat("a", logprobs=True, top_logprobs=21), "top_logprobs must be an integer from 0 to 20, got 21"),
        (chat("a", logprobs=True, top_logprobs=-1), "top_logprobs must be an integer from 0 to 20, got -1"),
        (chat("a", top_logprobs=5), "top_logprobs goes with logprobs true, got 5 without it"),
        (chat("a", logprobs=5), "logprobs must be true or false in a chat, where top_logprobs counts, got 5"),
    ],
)
def test_each_form_asks_in_its_own_words(file: Path, line: dict[str, Any], count: int | str | None) -> None:
    assert asked_by(file, line) == count


def test_a_line_without_logprobs_keeps_its_name_and_one_with_them_has_another(file: Path) -> None:
    lines = [own("a"), own("a", logprobs=None), own("a", logprobs=0), own("a", prompt_logprobs=0)]
    echoes = [openai("a"), openai("a", echo=False), openai("a", echo=True), openai("a", prompt_logprobs=0)]
    plain, same, listed, scored = (
        found.digest for line in lines for found in read_file(write_lines(file, line)) if isinstance(found, Line)
    )

    assert plain == same
    assert len({plain, listed, scored}) == 3
    digests = [found.digest for line in echoes for found in good_lines(write_lines(file, line))]
    assert digests[0] == digests[1]
    assert len({*digests}) == 3


# What is given


def test_parts_of_a_character_have_their_own_bytes_and_special_tokens_have_none(tokenizer: Tokenizer) -> None:
    emoji = [next(t for t in range(2048) if tokenizer.token_bytes(t) == bytes([byte])) for byte in "😀".encode()]
    word = next(t for t in range(2048) if tokenizer.token_bytes(t) == b" les")
    ids = [*emoji, word, 0]
    listed = [replace_top(one, (word, -0.5), (0, -2.0)) for one in flat(*ids)]

    content = given_in_a_chat(ids, listed, tokenizer)

    assert [one["bytes"] for one in content] == [[240], [159], [152], [128], list(b" les"), None]
    assert b"".join(bytes(one["bytes"] or []) for one in content).decode() == "😀 les"
    assert [one["token"] for one in content] == [*["�"] * 4, " les", "<|endoftext|>"]
    assert content[0]["top_logprobs"] == [
        {"token": " les", "logprob": -0.5, "bytes": list(b" les")},
        {"token": "<|endoftext|>", "logprob": -2.0, "bytes": None},
    ]
    assert [one["logprob"] for one in content] == [-1.0, -2.0, -3.0, -4.0, -5.0, -6.0]


def replace_top(one: TokenLogprobs, *top: tuple[int, float]) -> TokenLogprobs:
    return one._replace(top=top)


def test_a_chat_that_asks_for_no_alternatives_gets_empty_lists(tokenizer: Tokenizer) -> None:
    content = given_in_a_chat([14, 13], flat(14, 13), tokenizer)

    assert [one["top_logprobs"] for one in content] == [[], []]


def test_a_completion_has_lists_of_equal_length_and_lists_its_own_token_as_an_extra(tokenizer: Tokenizer) -> None:
    emoji = [next(t for t in range(2048) if tokenizer.token_bytes(t) == bytes([byte])) for byte in "😀".encode()]
    ids = [14, *emoji, 362]
    listed = [replace_top(one, (297, -0.25), (emoji[0], LEAST_LOGPROB)) for one in flat(*ids)]

    found = given_in_a_completion(ids, ",😀 qui", listed, tokenizer)

    names = [",", *(f"bytes:\\x{byte:02x}" for byte in "😀".encode()), " qui"]
    assert found["tokens"] == names
    assert found["token_logprobs"] == [-1.0, -2.0, -3.0, -4.0, -5.0, -6.0]
    assert found["text_offset"] == [0, 1, 1, 1, 1, 2]
    assert found["top_logprobs"][0] == {" et": -0.25, "bytes:\\xf0": LEAST_LOGPROB, ",": -1.0}
    assert found["top_logprobs"][1] == {" et": -0.25, "bytes:\\xf0": LEAST_LOGPROB}


def test_offsets_are_those_in_a_text_that_goes_on_with_a_space() -> None:
    pieces = Tokenizer.from_json(KINDS["llama-2"]().to_str())
    prompt = pieces.encode("Le")
    ids = pieces.encode("Le monde est")[len(prompt) :]
    decoder = pieces.decoder(prompt)
    texts = [decoder.push(token) for token in ids]

    line = Line(1, "a", "openai", GenerationRequest(tuple(prompt)), None, "0" * 32)
    given = (line, "x", answer(ids, "".join(texts), *flat(*ids)))
    written = openai_form.answer([given], AskedModel(asked_model().card, pieces))

    (choice,) = written["response"]["body"]["choices"]
    found = choice["logprobs"]
    assert texts[0].startswith(" ")
    assert found["text_offset"] == [len("".join(texts[:n])) for n in range(len(ids))]
    assert "".join(found["tokens"]) == "".join(texts)


def test_offsets_end_with_the_text_where_a_stop_text_was_cut_off(tokenizer: Tokenizer) -> None:
    found = given_in_a_completion([14, 362, 359], ", q", flat(14, 362, 359), tokenizer)

    assert found["text_offset"] == [0, 1, 3]


def test_an_answer_in_a_chat_has_openais_shape() -> None:
    model = model_that_chats()
    line = Line(1, "a", "openai-chat", GenerationRequest((5, 6, 7)), None, "0" * 32)

    plain = openai_form.answer([(line, "x", replace(answer([14], ","), logprobs=None))], model)
    listed = openai_form.answer([(line, "x", answer([14], ",", *flat(14)))], model)

    (without,), (with_them,) = (one["response"]["body"]["choices"] for one in (plain, listed))
    assert without["logprobs"] is None
    one = {"token": ",", "logprob": -1.0, "bytes": [44], "top_logprobs": []}
    assert with_them["logprobs"] == {"content": [one], "refusal": None}
    assert {**with_them, "logprobs": None} == without


def test_lines_are_answered_with_the_logprobs_of_the_reference(
    server: redis.Redis, file: Path, out: Path, start_worker: StartWorker, served: ServedModel
) -> None:
    start_worker()
    asked = [
        own("own", temperature=1, seed=5, max_new_tokens=6, logprobs=2, prompt_logprobs=0),
        openai("openai", seed=6, max_tokens=6, logprobs=0),
        openai("scored", [5, 6, 7], max_tokens=0, prompt_logprobs=1),
        own("plain", max_new_tokens=6),
        openai("echo", [5, 6, 7], max_tokens=2, logprobs=1, echo=True, temperature=0),
        openai("whole", "Phileas Fogg", max_tokens=0, logprobs=0, echo=True),
        openai("several", [5, 6, 7], max_tokens=2, logprobs=0, n=2, seed=8),
        own("several of ours", max_new_tokens=2, logprobs=0, n=2, seed=8, temperature=1),
    ]
    lines = {
        line.custom_id: line.request
        for line in good_lines(write_lines(file, *asked), AskedModel(served.card, served.tokenizer))
    }

    result = batch(file, out)

    assert result.exit_code == 0, result.output
    found = {record["custom_id"]: record for record in records(out)}
    steps = {
        name: list(generate(served.model, request.prompt, 6, request.settings, request.stop_ids))
        for name, request in lines.items()
        if request.max_new_tokens
    }
    assert found["own"]["logprobs"] == [logprobs(step.logits, step.token_id, 2).to_json() for step in steps["own"]]
    assert len(found["own"]["prompt_logprobs"]) == 2
    assert {"logprobs", "prompt_logprobs"}.isdisjoint(found["plain"])
    (completion,) = found["openai"]["response"]["body"]["choices"]
    assert completion["logprobs"]["token_logprobs"] == [
        logprobs(step.logits, step.token_id).logprob for step in steps["openai"]
    ]
    assert [len(top) for top in completion["logprobs"]["top_logprobs"]] == [1] * len(steps["openai"])
    assert "".join(completion["logprobs"]["tokens"]) == completion["text"]
    (scored,) = found["scored"]["response"]["body"]["choices"]
    first, *rest = scored["prompt_logprobs"]
    assert first is None
    assert [set(one) for one in rest] == [{"logprob", "top_logprobs"}] * 2
    assert (scored["text"], scored["logprobs"], scored["finish_reason"]) == ("", None, "length")
    echoed, whole = (found[name]["response"]["body"]["choices"][0] for name in ("echo", "whole"))
    ids = [5, 6, 7, *(step.token_id for step in steps["echo"][:2])]
    assert echoed["text"] == served.tokenizer.decode(ids)
    assert echoed["token_ids"] == ids[3:]
    read, _ = served.model(torch.tensor([ids]))
    wanted = [logprobs(read[0, at], ids[at + 1], 1) for at in range(4)]
    assert echoed["logprobs"]["token_logprobs"] == [None, *(one.logprob for one in wanted)]
    assert [top if top is None else max(top.values()) for top in echoed["logprobs"]["top_logprobs"]] == [
        None,
        *(one.top[0][1] for one in wanted),
    ]
    assert [len(echoed["logprobs"][name]) for name in ("tokens", "text_offset")] == [5, 5]
    assert whole["text"] == "".join(whole["logprobs"]["tokens"]) == "Phileas Fogg"
    assert whole["logprobs"]["text_offset"] == [0, 7]
    assert "prompt_logprobs" not in whole
    for choice in found["several"]["response"]["body"]["choices"]:
        assert len(choice["logprobs"]["token_logprobs"]) == len(choice["token_ids"]) == 2
    for choice in found["several of ours"]["choices"]:
        assert [set(one) for one in choice["logprobs"]] == [{"logprob", "top_logprobs"}] * len(choice["ids"])
