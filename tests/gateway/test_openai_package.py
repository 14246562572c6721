"""What OpenAI's own package for Python offers beyond a plain call, against a real gateway and worker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import openai
import pytest
import redis
from minilab_worker.worker import Worker
from openai.types.chat import ChatCompletion
from openai.types.chat.completion_create_params import CompletionCreateParamsNonStreaming as ChatParameters
from openai.types.completion_create_params import CompletionCreateParamsNonStreaming as TextParameters
from pydantic import BaseModel
from support.engines import very_slow_engine
from support.waiting import wait_until

from gateway.conftest import StartGateway
from gateway.gateway_process import Gateway
from minilab_gen.protocol import keys
from minilab_gen.protocol.jobs import queue_of, workers_alive

MESSAGES: list[Any] = [{"role": "user", "content": "Passepartout"}]
TOOL: Any = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}


class City(BaseModel):
    name: Literal["Paris", "Suez"]
    large: bool


# Structured outputs


def test_an_answer_is_parsed_into_the_class_of_its_form(chat_gateway: Gateway) -> None:
    answer = chat_gateway.client().chat.completions.parse(
        model="base", messages=MESSAGES, response_format=City, max_tokens=40, temperature=0
    )

    (choice,) = answer.choices
    assert isinstance(choice.message.parsed, City)
    assert choice.message.parsed == City.model_validate_json(choice.message.content or "")
    assert choice.finish_reason == "stop"


async def test_a_stream_is_parsed_into_the_class_of_its_form(chat_gateway: Gateway) -> None:
    async with (
        chat_gateway.async_client() as client,
        client.chat.completions.stream(
            model="base", messages=MESSAGES, response_format=City, max_tokens=40, temperature=0
        ) as stream,
    ):
        kinds = [event.type async for event in stream]
        final = await stream.get_final_completion()

    assert isinstance(final.choices[0].message.parsed, City)
    assert kinds[-1] == "content.done"
    assert "content.delta" in kinds


def test_an_answer_that_is_cut_short_is_not_parsed(chat_gateway: Gateway) -> None:
    with pytest.raises(openai.LengthFinishReasonError):
        chat_gateway.client().chat.completions.parse(
            model="base", messages=MESSAGES, response_format=City, max_tokens=3, temperature=0
        )


# Tools, and fields in general


def test_tools_of_a_class_are_taken(chat_gateway: Gateway) -> None:
    client = chat_gateway.client()
    plain = client.chat.completions.create(model="base", messages=MESSAGES, max_tokens=2)

    answer = client.chat.completions.create(model="base", messages=MESSAGES, max_tokens=2, tools=[TOOL])

    assert plain.usage is not None
    assert answer.usage is not None
    assert answer.usage.prompt_tokens > plain.usage.prompt_tokens


def parameters_of(kind: type[Any], *needed: str) -> list[str]:
    """All that a call of the package may have; but for ``stream_options``, which goes with a stream."""
    names = {name for base in kind.__mro__ for name in getattr(base, "__annotations__", {})}
    return sorted(names - {"model", "stream_options", *needed})


def test_every_parameter_of_a_completion_may_be_null(gateway: Gateway) -> None:
    unset: dict[str, Any] = dict.fromkeys(parameters_of(TextParameters, "prompt"))

    answer = gateway.complete(model="base", prompt=[5, 6], extra_body=unset | {"max_tokens": 2})

    assert len(unset) > 12
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 2


def test_every_parameter_of_a_chat_may_be_null(chat_gateway: Gateway) -> None:
    unset: dict[str, Any] = dict.fromkeys(parameters_of(ChatParameters, "messages"))

    answer = chat_gateway.chat(model="base", messages=MESSAGES, extra_body=unset | {"max_tokens": 2})

    assert len(unset) > 30
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 2


def test_every_parameter_of_a_chat_is_taken_or_refused_by_its_name(chat_gateway: Gateway) -> None:
    def refusal_of(name: str) -> openai.BadRequestError | None:
        try:
            chat_gateway.chat(model="base", messages=MESSAGES, extra_body={name: {"nothing": "like it"}})
        except openai.BadRequestError as refused:
            return refused
        return None

    refused = {name: refusal_of(name) for name in parameters_of(ChatParameters, "messages")}

    told = {name: error for name, error in refused.items() if error is not None}
    assert len(told) > 25
    assert [name for name, error in told.items() if name not in (error.param, error.message.split(" ")[0])] == []


def test_an_answer_has_the_id_of_its_request(chat_gateway: Gateway) -> None:
    client = chat_gateway.client()

    answer = client.chat.completions.create(model="base", messages=MESSAGES, max_tokens=2)
    raw = client.chat.completions.with_raw_response.create(model="base", messages=MESSAGES, max_tokens=2)

    assert answer._request_id
    assert raw.request_id != answer._request_id
    assert isinstance(raw.parse(), ChatCompletion)


async def test_many_requests_at_once_have_the_answers_that_each_would_have_alone(chat_gateway: Gateway) -> None:
    async with chat_gateway.async_client() as client:

        async def ask(seed: int) -> str | None:
            answer = await client.chat.completions.create(
                model="base", messages=MESSAGES, max_tokens=8, temperature=1, seed=seed
            )
            return answer.choices[0].message.content

        together = await asyncio.gather(*map(ask, range(12)))
        alone = [await ask(seed) for seed in range(12)]

    assert together == alone
    assert len(set(together)) > 6


# Errors


def test_errors_are_raised_as_their_classes_with_all_fields(chat_gateway: Gateway) -> None:
    client = chat_gateway.client()
    with pytest.raises(openai.NotFoundError) as unknown:
        client.chat.completions.create(model="nobody", messages=MESSAGES)
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model="base", messages=MESSAGES, temperature=-1)

    told = [(e.value.status_code, e.value.type, e.value.param, e.value.code) for e in (unknown, refused)]
    assert told[0] == (404, "invalid_request_error", "model", "model_not_found")
    assert told[1] == (400, "invalid_request_error", "temperature", None)
    assert all(error.value.request_id and error.value.message for error in (unknown, refused))


def test_a_key_with_another_body_is_a_conflict(chat_gateway: Gateway, server: redis.Redis) -> None:
    client = chat_gateway.client()
    named: dict[str, Any] = {"extra_headers": {"Idempotency-Key": "order-1"}}
    client.chat.completions.create(model="base", messages=MESSAGES, max_tokens=2, **named)

    with pytest.raises(openai.ConflictError) as refused:
        client.chat.completions.create(model="base", messages=MESSAGES, max_tokens=3, **named)

    assert refused.value.code == "idempotency_key_in_use"


# Retries and timeouts


def test_a_retry_comes_when_there_is_a_worker_again(
    shared_gateway: Gateway, start_worker: Callable[..., Worker], server: redis.Redis
) -> None:
    worker = start_worker()
    worker.stop()
    wait_until(lambda: not workers_alive(server, keys.queue_name("base")))
    with pytest.raises(openai.InternalServerError) as away:
        shared_gateway.complete(model="base", prompt=[5, 6], max_tokens=2)
    client = shared_gateway.client(max_retries=50)
    before = shared_gateway.said.count(" 503 ")

    with ThreadPoolExecutor(1) as threads:
        asking = threads.submit(client.completions.create, model="base", prompt=[5, 6], max_tokens=2)
        wait_until(lambda: shared_gateway.said.count(" 503 ") > before)
        start_worker()
        answer = asking.result()

    assert (away.value.status_code, away.value.code) == (503, "no_worker")
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 2


def test_a_call_that_times_out_finds_its_own_job_when_it_comes_again(
    shared_gateway: Gateway, start_worker: Callable[..., Worker], server: redis.Redis
) -> None:
    start_worker(1, engine=very_slow_engine)
    client = shared_gateway.client(timeout=0.4, max_retries=100)

    answer = client.completions.create(
        model="base",
        prompt=[5, 6],
        max_tokens=20,
        temperature=0,
        extra_headers={"Idempotency-Key": "slow-1"},
        extra_body={"ignore_eos": True},
    )

    assert answer.usage is not None
    assert answer.usage.completion_tokens == 20
    assert shared_gateway.said.count("POST /v1/completions") > 1
    streams = list(server.scan_iter(match=f"{keys.token_stream('')}*"))
    assert len(streams) == 1


def test_a_full_queue_is_a_rate_limit_and_tells_when_to_come_again(
    start_gateway: StartGateway, start_worker: Callable[..., Worker], server: redis.Redis
) -> None:
    start_worker(1, engine=very_slow_engine)
    gateway = start_gateway("--max-queued", "1")
    client = gateway.client()
    asked: dict[str, Any] = {"model": "base", "prompt": [5, 6], "max_tokens": 60, "extra_body": {"ignore_eos": True}}
    with client.completions.create(**asked, stream=True) as running:
        next(iter(running))  # the only slot is taken
        with client.completions.with_streaming_response.create(**asked, stream=True):
            wait_until(lambda: queue_of(server, keys.queue_name("base")).count == 1)
            with pytest.raises(openai.RateLimitError) as refused:
                client.completions.create(**asked)

    assert (refused.value.code, refused.value.type) == ("queue_full", "rate_limit_error")
    assert int(refused.value.response.headers["retry-after"]) >= 1


def test_a_gateway_that_is_not_there_is_a_connection_error(start_gateway: StartGateway, server: redis.Redis) -> None:
    gateway = start_gateway()
    client = gateway.client()
    gateway.kill()

    with pytest.raises(openai.APIConnectionError):
        client.models.list()
