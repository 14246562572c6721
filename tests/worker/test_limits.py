"""What is too large is refused before it is taken apart, wherever it enters, and the refusal itself is short."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable
from typing import Any

import pytest
import redis
from minilab_worker.worker import Worker
from rq.serializers import JSONSerializer
from support.client_program import client, fake_redis, queued
from support.waiting import wait_until

import minilab_gen
from minilab_gen.errors import RequestError
from minilab_gen.protocol import endings, jobs, keys
from minilab_gen.protocol.events import EndEvent
from minilab_gen.protocol.jobs import MAX_PAYLOAD_BYTES, fetch, request_of
from minilab_gen.protocol.script_cache import forget_connection
from minilab_gen.protocol.streams import stream_length
from minilab_gen.protocol.submission import Submission, enqueue
from minilab_gen.protocol.tail import tail
from minilab_gen.request import (
    MAX_NEW_TOKENS,
    MAX_PROMPT_CHARACTERS,
    MAX_PROMPT_IDS,
    GenerationRequest,
    ModelLimits,
    SamplingSettings,
    check_text,
)
from minilab_gen.sampling_settings import MAX_ALLOWED_IDS, MAX_BAD_WORD_IDS, MAX_BAD_WORDS, MAX_BIASES
from minilab_gen.text.tokenizer import Tokenizer

SHORT = 800
"""Characters that a refusal may have: eight quotes and the rule."""

IMMENSE = 10**5000
"""An integer that Python does not write out."""


def refusal(make: Callable[..., object], *arguments: Any, **named: Any) -> str:
    with pytest.raises(RequestError) as caught:
        make(*arguments, **named)
    assert len(str(caught.value)) <= SHORT
    return str(caught.value)


def record_with(connection: redis.Redis, job_id: str, **fields: bytes) -> str:
    """A waiting job in whose record another program has written."""
    enqueue(connection, GenerationRequest((5, 6)), Submission(job_id=job_id))
    for name, value in fields.items():
        connection.hset(f"rq:job:{job_id}", name, value)
    forget_connection(connection)
    return job_id


def bomb(ids: int) -> bytes:
    """The arguments of a job with a long prompt, as small as they get."""
    return zlib.compress(f'["{keys.TASK}", null, [{{"prompt": [7{", 7" * (ids - 1)}]}}], {{}}]'.encode())


def unread(*_: object, **__: object) -> None:
    pytest.fail("what is too large must not be taken apart")


# Requests


def test_a_text_that_is_too_long_is_refused_before_it_is_tokenized(
    server: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Tokenizer, "encode", unread)

    message = refusal(minilab_gen.submit, "a" * 10_000_000)

    assert message == f"prompt must be at most {MAX_PROMPT_CHARACTERS} characters long, got 10000000"
    assert server.keys("rq:*") == []


def test_the_longest_text_is_not_too_long() -> None:
    check_text("a" * MAX_PROMPT_CHARACTERS)


def test_a_million_ids_are_refused_with_their_number(server: redis.Redis) -> None:
    message = refusal(minilab_gen.submit, range(1_000_000))

    assert message == f"prompt must hold at most {MAX_PROMPT_IDS} ids, got 1000000"


def test_ids_without_an_end_are_refused() -> None:
    message = refusal(GenerationRequest, itertools.repeat(7))

    assert message == f"prompt must hold at most {MAX_PROMPT_IDS} ids, got more"


def test_the_longest_prompt_fits_into_a_payload() -> None:
    token = 9_999_999
    settings = SamplingSettings(
        logit_bias={token - number: -100 / 3 for number in range(MAX_BIASES)},
        allowed_token_ids=(token,) * MAX_ALLOWED_IDS,
        bad_words_ids=((token,) * MAX_BAD_WORD_IDS,) * MAX_BAD_WORDS,
    )
    largest = GenerationRequest((token,) * MAX_PROMPT_IDS, MAX_NEW_TOKENS, settings)

    data = JSONSerializer.dumps((keys.TASK, None, [largest.to_payload()], {}))

    assert len(data) <= MAX_PAYLOAD_BYTES


@pytest.mark.parametrize(
    "payload",
    [
        {"prompt": ["a" * 1_000_000]},
        {"prompt": [[[["a" * 1_000_000] * 10] * 10] * 10]},
        {"prompt": [-IMMENSE]},
        {"prompt": [5], "stop_ids": [-IMMENSE]},
        {"prompt": [5], "max_new_tokens": IMMENSE},
        {"prompt": [5], "max_new_tokens": "9" * 1_000_000},
        {"prompt": [5], "temperature": "9" * 1_000_000},
        {"prompt": [5], "temperature": IMMENSE},
        {"prompt": [5], "top_k": -IMMENSE},
        {"prompt": [5], "top_p": {"a" * 1_000_000: 1}},
        {"prompt": [5], "seed": IMMENSE},
        {"prompt": [5], "min_p": -IMMENSE},
        {"prompt": [5], "min_tokens": -IMMENSE},
        {"prompt": [5], "presence_penalty": "9" * 1_000_000},
        {"prompt": [5], "logit_bias": {"9" * 1_000_000: 1}},
        {"prompt": [5], "logit_bias": {"5": IMMENSE}},
        {"prompt": [5], "logit_bias": {IMMENSE: 1000}},
        {"prompt": [5], "allowed_token_ids": [-IMMENSE]},
        {"prompt": [5], "bad_words_ids": [["a" * 1_000_000]]},
        {"prompt": [5], "a" * 1_000_000: 1},
        {"prompt": [5], **{f"field {n}": n for n in range(10_000)}},
    ],
    ids=range(21),
)
def test_a_refusal_quotes_no_more_than_a_line_holds(payload: dict[str, Any]) -> None:
    refusal(GenerationRequest.from_payload, payload)


@pytest.mark.parametrize("request_", [GenerationRequest((IMMENSE,)), GenerationRequest((5,), stop_ids=(IMMENSE,))])
def test_an_id_too_large_to_write_out_is_refused(request_: GenerationRequest) -> None:
    assert "an immense int" in refusal(request_.check_fits, ModelLimits(10, 10))


def test_settings_too_large_to_write_out_are_refused() -> None:
    assert refusal(SamplingSettings, seed=IMMENSE) == "seed must be at most 4294967295, got an immense int"


def test_the_command_line_refuses_a_long_text_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    connection = fake_redis(monkeypatch)

    result = client("submit", "-", stdin="a" * (MAX_PROMPT_CHARACTERS + 1))

    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert queued(connection) == []


# Jobs


@pytest.mark.parametrize(
    "fields",
    [
        {"data": bomb(2_000_000)},
        {"exc_info": zlib.compress(bytes(100_000_000))},
        {"data": bytes(MAX_PAYLOAD_BYTES + 1)},
        {"meta": b"[" * (MAX_PAYLOAD_BYTES + 1)},
        {"anything": bytes(MAX_PAYLOAD_BYTES + 1)},
    ],
    ids=["inflating data", "inflating error", "data", "meta", "unknown field"],
)
def test_a_record_that_is_too_large_is_not_restored(
    connection: redis.Redis, fields: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    record_with(connection, "a", **fields)
    monkeypatch.setattr("rq.job.Job.restore", unread)

    for read in (fetch, jobs.view, endings.cancel, endings.settle):
        assert "a job's record must be at most 4000000 bytes" in refusal(read, connection, "a")


def test_arguments_that_are_too_large_are_not_parsed(connection: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    job = fetch(connection, record_with(connection, "a"))
    job.data = b"[" * (MAX_PAYLOAD_BYTES + 1)
    monkeypatch.setattr(JSONSerializer, "loads", unread)

    assert refusal(request_of, job) == "a job's data must be at most 4000000 bytes, got 4000001"


def test_a_worker_ends_a_job_of_100_mb_and_lives(server: redis.Redis, start_worker: Callable[..., Worker]) -> None:
    large = record_with(server, "large", data=bomb(33_000_000))
    start_worker()

    wait_until(lambda: stream_length(server, large)[1])

    *_, end = tail(server, large)
    assert isinstance(end, EndEvent)
    assert (end.reason, end.tokens, len(end.error or "") <= SHORT) == ("error", 0, True)
    *_, end = tail(server, enqueue(server, GenerationRequest((5, 6)), Submission()))
    assert isinstance(end, EndEvent)
    assert end.succeeded


def test_a_waiting_job_may_be_as_large_as_the_longest_prompt(connection: redis.Redis) -> None:
    largest = GenerationRequest((9_999_999,) * MAX_PROMPT_IDS)

    job_id = enqueue(connection, largest, Submission())

    assert request_of(fetch(connection, job_id)) == largest
