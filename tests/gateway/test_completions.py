"""Completions, plain and streamed, as OpenAI's own client asks for them, from a real gateway and worker."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import openai
import pytest
from minilab_worker.serving import ServedModel
from minilab_worker.worker import Worker
from support.engines import slow_engine
from support.references import reference_ids

from gateway.conftest import StartGateway
from gateway.gateway_process import Gateway, events_in, extra
from minilab_gen.request import GenerationRequest

PROMPT = [5, 6]
GREEDY: dict[str, Any] = {"model": "base", "prompt": PROMPT, "max_tokens": 12, "temperature": 0}
STOPS: dict[str, Any] = {"extra_body": {"ignore_eos": True}}


def raw_stream(gateway: Gateway, path: str, body: dict[str, Any], **headers: str) -> str:
    with gateway.http() as http:
        answer = http.post(path, json={**body, "stream": True}, headers=headers)
    assert answer.status_code == 200, answer.text
    return answer.text


def test_a_completion_has_the_tokens_that_generate_gives(gateway: Gateway, served: ServedModel) -> None:
    answer = gateway.complete(**GREEDY, **STOPS)

    expected = reference_ids(served, GenerationRequest((5, 6), max_new_tokens=12))
    assert extra(answer.choices[0], "token_ids") == expected
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (2, 12, 14)
    assert answer.id.startswith("cmpl-")
    assert answer.object == "text_completion"
    assert answer.model == "base"
    assert answer.system_fingerprint == served.card.fingerprint


def test_a_stream_adds_up_to_the_plain_answer(gateway: Gateway) -> None:
    plain = gateway.complete(**GREEDY, **STOPS)

    chunks = gateway.chunks(**GREEDY, **STOPS)

    assert "".join(chunk.choices[0].text for chunk in chunks) == plain.choices[0].text
    assert [chunk.choices[0].finish_reason for chunk in chunks][-2:] == [None, "length"]
    assert len({chunk.id for chunk in chunks}) == 1
    assert all(chunk.usage is None for chunk in chunks)
    ids = [token for chunk in chunks for token in extra(chunk.choices[0], "token_ids")]
    assert ids == extra(plain.choices[0], "token_ids")


async def test_the_async_client_gets_the_same(gateway: Gateway) -> None:
    async with gateway.async_client() as client:
        create: Any = client.completions.create
        plain = await create(**GREEDY, **STOPS)
        stream = await create(**GREEDY, **STOPS, stream=True)

        assert "".join([chunk.choices[0].text async for chunk in stream]) == plain.choices[0].text


def test_each_token_is_an_event_with_its_number(gateway: Gateway) -> None:
    events = events_in(raw_stream(gateway, "/v1/completions", {**GREEDY, "ignore_eos": True}))

    assert [event_id for event_id, _ in events] == [*(str(n) for n in range(1, 14)), None]
    assert events[-1] == (None, "[DONE]")


def test_a_stream_says_that_nothing_may_hold_it_back(gateway: Gateway) -> None:
    with gateway.http() as http:
        answer = http.post("/v1/completions", json={**GREEDY, "stream": True}, headers={"Accept-Encoding": "gzip"})

    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["cache-control"] == "no-cache, no-transform"
    assert answer.headers["x-accel-buffering"] == "no"
    assert "content-length" not in answer.headers
    assert "content-encoding" not in answer.headers


@pytest.mark.parametrize("options", [None, {}, {"include_usage": False}, {"include_usage": True}], ids=str)
def test_usage_is_the_last_chunk_where_it_is_asked_for_and_nowhere_else(
    gateway: Gateway, options: dict[str, bool] | None
) -> None:
    plain = gateway.complete(**GREEDY, **STOPS)
    body = {**GREEDY, "ignore_eos": True, "stream_options": options}

    *chunks, (_, last), (_, done) = events_in(raw_stream(gateway, "/v1/completions", body))

    assert done == "[DONE]"
    assert all(chunk.get("usage") is None and chunk["choices"] for _, chunk in chunks)
    if options and options.get("include_usage"):
        assert plain.usage is not None
        assert last["choices"] == []
        assert last["usage"] == {k: v for k, v in plain.usage.to_dict().items() if v is not None}
    else:
        assert last["choices"][0]["finish_reason"] == "length"


def test_a_stream_without_ids_has_nothing_but_data_and_whole_comments(
    start_gateway: StartGateway, start_worker: Callable[..., Worker]
) -> None:
    start_worker(engine=slow_engine)
    gateway = start_gateway("--ping", "0.05")
    body = {**GREEDY, "max_tokens": 10, "ignore_eos": True}
    options = {"include_event_ids": False}

    with_ids, without = (
        raw_stream(gateway, "/v1/completions", {**body, "stream_options": each}) for each in (None, options)
    )

    blocks = without.removesuffix("\n\n").split("\n\n")  # as vLLM's own load generator reads a stream
    assert {block.split(" ")[0] for block in blocks} == {"data:", ":"}
    assert "id: 3\n" in with_ids
    texts = [[data["choices"][0]["text"] for _, data in events_in(raw)[:-1]] for raw in (with_ids, without)]
    assert texts[0] == texts[1]


def test_stream_options_without_a_stream_are_refused(gateway: Gateway) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        gateway.complete(**GREEDY, stream_options={"include_usage": True})

    assert refused.value.param == "stream_options"


def test_several_answers_come_in_one_stream_each_under_its_index(gateway: Gateway) -> None:
    asked: dict[str, Any] = {**GREEDY, "temperature": 1, "seed": 5, "n": 3, "max_tokens": 20}
    plain = gateway.complete(**asked)
    options = {"include_usage": True}

    chunks = gateway.chunks(**asked, stream_options=options)

    *parts, last = chunks
    for index in range(3):
        own = [chunk.choices[0] for chunk in parts if chunk.choices[0].index == index]
        assert "".join(choice.text for choice in own) == plain.choices[index].text
        assert [choice.finish_reason for choice in own[:-1]] == [None] * (len(own) - 1)
        assert own[-1].finish_reason == plain.choices[index].finish_reason
    assert plain.usage is not None
    assert plain.usage.prompt_tokens == 2
    assert last.usage == plain.usage
    assert len({choice.text for choice in plain.choices}) == 3


def test_the_first_of_several_answers_is_the_one_that_comes_alone(gateway: Gateway) -> None:
    asked: dict[str, Any] = {**GREEDY, "temperature": 1, "seed": 7}

    alone = gateway.complete(**asked)
    several = gateway.complete(**asked, n=2)

    assert several.choices[0].text == alone.choices[0].text


@pytest.mark.parametrize("prompts", [["Phileas"], [[5, 6]]], ids=str)
def test_a_list_of_one_prompt_is_that_prompt(gateway: Gateway, prompts: list[Any]) -> None:
    alone = gateway.complete(**{**GREEDY, "prompt": prompts[0]}, logprobs=1, echo=True)

    listed = gateway.complete(**{**GREEDY, "prompt": prompts}, logprobs=1, echo=True)

    assert listed.choices == alone.choices


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("fields", [{}, {"logprobs": 2}, {"logprobs": 1, "echo": True}], ids=str)
def test_each_of_several_prompts_is_answered_as_if_it_were_alone(
    gateway: Gateway, n: int, fields: dict[str, Any]
) -> None:
    asked: dict[str, Any] = {**GREEDY, "temperature": 1, "seed": 3, "n": n, **fields}
    prompts: list[Any] = ["Phileas Fogg", [5, 6, 7], "Paris"]
    alone = [gateway.complete(**{**asked, "prompt": prompt}) for prompt in prompts]

    together = gateway.complete(**{**asked, "prompt": prompts})

    assert [choice.index for choice in together.choices] == list(range(3 * n))
    assert [choice.text for choice in together.choices] == [c.text for each in alone for c in each.choices]
    assert [choice.logprobs for choice in together.choices] == [c.logprobs for each in alone for c in each.choices]
    usages = [each.usage for each in alone if each.usage is not None]
    assert together.usage is not None
    assert together.usage.prompt_tokens == sum(usage.prompt_tokens for usage in usages)
    assert together.usage.completion_tokens == sum(usage.completion_tokens for usage in usages)
    with gateway.http() as http:
        again = http.get(f"/v1/completions/{together.id}").json()
        one = http.get(f"/v1/completions/{together.id}-{n}")
    assert again == together.to_dict()
    assert one.json()["choices"][0]["text"] == together.choices[n].text


def test_a_stream_of_several_prompts_adds_up_to_their_answers(gateway: Gateway) -> None:
    asked: dict[str, Any] = {**GREEDY, "prompt": ["Phileas Fogg", [5, 6, 7]], "seed": 3, "logprobs": 1}
    plain = gateway.complete(**asked)

    *chunks, last = gateway.chunks(**asked, stream_options={"include_usage": True})

    assert last.usage == plain.usage
    for index, whole in enumerate(plain.choices):
        own = [chunk.choices[0] for chunk in chunks if chunk.choices[0].index == index]
        assert "".join(choice.text for choice in own) == whole.text
        listed = [choice.logprobs for choice in own if choice.logprobs is not None]
        assert whole.logprobs is not None
        assert [offset for each in listed for offset in each.text_offset or []] == whole.logprobs.text_offset


def test_a_stop_text_ends_an_answer_and_is_named(gateway: Gateway) -> None:
    text = gateway.complete(**GREEDY, **STOPS).choices[0].text
    stop = text[len(text) // 2 :][:3]

    answer = gateway.complete(**GREEDY, **STOPS, stop=stop)

    assert answer.choices[0].text == text[: text.index(stop)]
    assert answer.choices[0].finish_reason == "stop"
    assert extra(answer.choices[0], "stop_reason") == stop


def test_extras_of_vllm_are_taken(gateway: Gateway) -> None:
    extras = {"top_k": 1, "min_p": 0.1, "repetition_penalty": 1.2, "ignore_eos": True}

    answer = gateway.complete(**{**GREEDY, "temperature": 3}, extra_body=extras)

    assert (
        answer.choices[0].text
        == gateway.complete(**GREEDY, extra_body={"repetition_penalty": 1.2, "ignore_eos": True}).choices[0].text
    )


def test_parameters_that_change_nothing_are_accepted(gateway: Gateway) -> None:
    plain = gateway.complete(**GREEDY)
    nothing = dict.fromkeys(("n", "stop", "seed", "top_k", "min_p", "logprobs", "stream", "suffix", "service_tier"))

    answer = gateway.complete(**GREEDY, user="somebody", best_of=1, echo=False, extra_body=nothing)

    assert answer.choices[0].text == plain.choices[0].text


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"suffix": "x"}, "suffix", "suffix is not offered here"),
        ({"best_of": 2}, "best_of", "best_of is not offered here"),
        ({"max_tokens": 0}, "max_tokens", "max_tokens must be at least 1, got 0"),
        ({"temperature": -1}, "temperature", "temperature must be"),
        ({"n": 0}, "n", "n must be a whole number from 1 to 64, got 0"),
        ({"prompt": ["a", 5]}, "prompt", "prompt must be one text"),
        ({"prompt": ["a"] * 33, "n": 2}, "prompt", "prompt must ask for at most 64 answers, prompts times n, got 66"),
        ({"prompt": ""}, "prompt", "prompt must hold"),
        ({"prompt": [5] * 64}, "prompt", "prompt must hold 1 to 63 ids, got 64"),
        ({"stream": "yes"}, "stream", "stream must be true or false"),
        ({"model": ""}, "model", "a request must name a model"),
    ],
    ids=str,
)
def test_what_would_not_be_done_is_refused_by_name(
    gateway: Gateway, fields: dict[str, Any], param: str | None, message: str
) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        gateway.complete(**GREEDY, extra_body=fields)

    assert message in refused.value.message
    assert refused.value.param == param
    assert refused.value.type == "invalid_request_error"


@pytest.mark.parametrize("model", ["nobody", "../x", "a" * 300])
def test_a_model_that_nobody_serves_is_not_found(gateway: Gateway, model: str) -> None:
    with pytest.raises(openai.NotFoundError) as refused:
        gateway.complete(model=model, prompt="Hello")

    assert (refused.value.code, refused.value.param) == ("model_not_found", "model")


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{", b'"x"', b"\xff", b"[" * 100_000, b'{"temperature": NaN}', b"null"], ids=lambda b: b[:20]
)
def test_a_body_that_is_no_object_is_refused(gateway: Gateway, body: bytes) -> None:
    with gateway.http() as http:
        answer = http.post("/v1/completions", content=body)

    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "invalid_request_error"


def test_unknown_routes_and_methods_have_openais_errors(gateway: Gateway) -> None:
    with gateway.http() as http:
        assert http.get("/v1/nothing").status_code == 404
        answer = http.get("/v1/completions")

    assert answer.status_code == 405
    assert answer.json()["error"]["message"] == "Method Not Allowed"


def test_a_token_does_not_wait_for_the_acknowledgement_of_what_was_sent_before(gateway: Gateway) -> None:
    times = []
    with gateway.http() as http:
        for _ in range(30):
            began = time.perf_counter()
            http.post("/v1/completions", json={**GREEDY, "max_tokens": 1, "stream": True})
            times.append(time.perf_counter() - began)

    assert min(times) < 0.035  # a client's kernel waits 40 ms before it acknowledges


def test_an_answer_may_be_held_to_a_form(gateway: Gateway) -> None:
    answer = gateway.complete(**GREEDY, extra_body={"structured_outputs": {"choice": ["oui", "non"]}})

    assert answer.choices[0].text in ("oui", "non")
    chunks = gateway.chunks(**GREEDY, extra_body={"choice": ["oui", "non"]})
    assert "".join(chunk.choices[0].text for chunk in chunks) == answer.choices[0].text
    assert extra(chunks[-1].choices[0], "complete") == extra(answer.choices[0], "complete")
