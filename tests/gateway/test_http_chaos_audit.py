"""The audit of a chaos run finds what is planted in what a client was sent, and nothing where all is well."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx2 as httpx
import pytest
import redis
from chaos.audit import Audit, Findings, unfinished
from chaos.checkpoint import Answers, written_references
from chaos.http_audit import HttpAudit, http_jobs
from chaos.http_clients import HttpClient
from chaos.http_load import Ask, PlannedAsk
from support.waiting import LIMIT, wait_until

from gateway.gateway_process import Gateway
from minilab_gen.protocol.groups import requests_of
from minilab_gen.request import GenerationRequest, SamplingSettings

REQUEST = GenerationRequest((5, 6), 12, SamplingSettings(temperature=1.0, seed=3), logprobs=1)
BODY = {
    "model": "base",
    "prompt": [5, 6],
    "max_tokens": 12,
    "temperature": 1,
    "seed": 3,
    "logprobs": 1,
    "ignore_eos": True,
}

Find = Callable[..., Findings]


@pytest.fixture(scope="module")
def answers(small_checkpoint: Path) -> Answers:
    return written_references(small_checkpoint, requests_of(REQUEST, 2))


@pytest.fixture
def find(gateway: Gateway, server: redis.Redis, answers: Answers) -> Iterator[Find]:
    """What the audit finds after one client has asked, and something has been done to what it was sent."""
    with gateway.http() as http:

        def run(spoil: Callable[[HttpClient], None] | None = None, n: int = 1, *, streams: bool = True) -> Findings:
            ask = Ask("text", {**BODY, "n": n}, REQUEST, n)
            client = asked(PlannedAsk(1, ask, 0.0, streams=streams, usage=True), http, gateway)
            if spoil is not None:
                spoil(client)
            wait_until(lambda: not unfinished(server, http_jobs(server)))
            audit = Audit(server, answers)
            HttpAudit(server, audit, answers, http).check([client], may_forget=False)
            return audit.findings

        yield run


def asked(plan: PlannedAsk, http: httpx.Client, gateway: Gateway) -> HttpClient:
    client = HttpClient(plan, http, lambda: [gateway.url], random.Random(1))
    client.start(time.monotonic())
    wait_until(lambda: not client.is_running, LIMIT)
    assert client.failure is None
    return client


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("n", [1, 2])
def test_nothing_is_found_where_all_is_well(find: Find, n: int, streams: bool) -> None:
    assert find(n=n, streams=streams).all == []


@pytest.mark.parametrize("n", [1, 2])
def test_a_lost_token_is_found(find: Find, n: int) -> None:
    found = find(lambda client: client.events.pop(4), n)

    assert (len(found.lost), found.all) == (1, found.lost)


@pytest.mark.parametrize("n", [1, 2])
def test_a_doubled_token_is_found(find: Find, n: int) -> None:
    found = find(lambda client: client.events.insert(4, client.events[4]), n)

    assert (len(found.doubled), found.all) == (1, found.doubled)


@pytest.mark.parametrize("part", [b'"token_ids":[', b'"text":"', b'"token_logprobs":[-', b'"completion_tokens":'])
@pytest.mark.parametrize("n", [1, 2])
def test_another_token_text_logprob_or_usage_is_found(find: Find, n: int, part: bytes) -> None:
    def spoil(client: HttpClient) -> None:
        index = next(index for index, event in enumerate(client.events) if part in event)
        client.events[index] = client.events[index].replace(part, part + b"1")

    found = find(spoil, n)

    assert (len(found.different), found.all) == (1, found.different)


def test_a_whole_answer_that_was_another_is_found(find: Find) -> None:
    def spoil(client: HttpClient) -> None:
        assert client.answer is not None
        client.answer["choices"][0]["token_ids"][3] += 1

    found = find(spoil, streams=False)

    assert (len(found.different), found.all) == (1, found.different)


def test_an_answer_that_generate_does_not_give_is_found(find: Find, answers: Answers) -> None:
    expected = answers[REQUEST]
    answers[REQUEST] = [expected[0]._replace(token_id=expected[0].token_id ^ 1), *expected[1:]]
    try:
        found = find()
    finally:
        answers[REQUEST] = expected

    assert len(found.different) == 2  # in the job's own stream and in what its client was sent


def test_a_second_job_of_one_request_is_found(find: Find, gateway: Gateway) -> None:
    def ask_again(client: HttpClient) -> None:
        with gateway.http() as http:
            http.post("/v1/completions", json=client.plan.body)

    found = find(ask_again)

    assert (len(found.doubled), found.all) == (1, found.doubled)


def test_a_client_that_was_told_that_its_answer_is_unknown_is_found(find: Find) -> None:
    found = find(lambda client: client.forgotten.append("unknown or expired completion"))

    assert (len(found.lost), found.all) == (1, found.lost)


def test_a_job_that_goes_on_after_it_was_to_stop_is_found(find: Find) -> None:
    found = find(lambda client: client.stopped_at.update({client.job_ids[0]: 3}))

    assert (len(found.different), found.all) == (1, found.different)


@pytest.mark.parametrize("part", [b'"token_ids":[', b'"text":"'])
def test_what_was_sent_before_redis_forgot_it_must_come_again(find: Find, part: bytes) -> None:
    def forget(client: HttpClient) -> None:
        seen = client.events[:4]
        client.dropped += [seen, [*seen[:3], seen[3].replace(part, part + b"1")]]

    found = find(forget)

    assert (len(found.different), found.all) == (1, found.different)
