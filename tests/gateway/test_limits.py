"""The limits of a key: all gateways on one Redis count together, and what one of them began counts until it ends."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
import redis
from minilab_gateway.api_keys import ApiKey
from minilab_gateway.errors import ApiError
from minilab_gateway.limits import Allowance, Limits
from minilab_worker.worker import Worker
from support.engines import slow_engine, slower_engine
from support.waiting import wait_until

from gateway.conftest import StartGateway
from gateway.gateway_process import Gateway
from gateway.test_access import ASKED, bearer, write_keys
from minilab_gen.protocol import keys
from minilab_gen.protocol.endings import cancel
from minilab_gen.protocol.streams import end_of
from minilab_gen.protocol.submission import Submission, enqueue
from minilab_gen.request import GenerationRequest

LONG = {**ASKED, "max_tokens": 100, "temperature": 0, "ignore_eos": True}

StartTwo = Callable[[str], list[Gateway]]


@pytest.fixture
def start_two(start_gateway: StartGateway, tmp_path: Path) -> StartTwo:
    """Two gateways with one file of keys, in which alice has these limits."""

    def start(limits: str) -> list[Gateway]:
        file = str(write_keys(tmp_path / "keys", "alice", options=limits))
        return [start_gateway("--api-keys", file) for _ in range(2)]

    return start


def post(gateway: Gateway, body: dict[str, Any] = ASKED, **headers: str) -> httpx.Response:
    with gateway.http(headers={**bearer("alice"), **headers}) as http:
        return http.post("/v1/completions", json=body)


def begin(gateway: Gateway, **fields: Any) -> str:
    """Begin a stream, and leave it when its first event is there; its jobs stay."""
    body = {**LONG, "store": True, "stream": True, **fields}
    with gateway.http(headers=bearer("alice")) as http, http.stream("POST", "/v1/completions", json=body) as answer:
        assert answer.status_code == 200, answer.read()
        found = next(re.search(r'"id":"cmpl-([^"]+)"', line) for line in answer.iter_lines() if "data:" in line)
        assert found is not None
        return found[1]


def test_two_gateways_count_the_requests_of_a_key_together(
    start_two: StartTwo, start_worker: Callable[..., Worker]
) -> None:
    start_worker()
    first, second = start_two("requests-per-minute=3")

    answers = [post(first), post(second), post(first), post(second)]

    assert [answer.status_code for answer in answers] == [200, 200, 200, 429]
    remaining = [int(answer.headers["x-ratelimit-remaining-requests"]) for answer in answers]
    assert remaining == [2, 1, 0, 0]
    refused = answers[-1]
    assert refused.headers["x-ratelimit-limit-requests"] == "3"
    assert re.fullmatch(r"(1m)?[0-9.]+s", refused.headers["x-ratelimit-reset-requests"])
    assert 1 <= int(refused.headers["retry-after"]) <= 20
    assert refused.json()["error"]["type"] == "rate_limit_error"
    assert "x-ratelimit-limit-tokens" not in refused.headers


def test_what_is_only_looked_at_counts_as_no_request(start_two: StartTwo, server: redis.Redis) -> None:
    gateway, _ = start_two("requests-per-minute=1")

    with gateway.http(headers=bearer("alice")) as http:
        assert [http.get("/v1/models").status_code for _ in range(3)] == 3 * [200]


def test_two_gateways_count_the_tokens_of_a_key_together(
    start_two: StartTwo, start_worker: Callable[..., Worker]
) -> None:
    start_worker()
    first, second = start_two("tokens-per-minute=60")
    body = {**LONG, "max_tokens": 60}

    answers = [post(first, body), post(second, body)]

    assert [answer.status_code for answer in answers] == [200, 429]
    assert answers[0].json()["usage"]["total_tokens"] == 62
    assert int(answers[0].headers["x-ratelimit-remaining-tokens"]) == 58  # what the prompt has left
    refused = answers[1]
    assert refused.json()["error"]["code"] == "rate_limit_exceeded"
    assert "60 tokens a minute" in refused.json()["error"]["message"]
    assert refused.headers["x-ratelimit-remaining-tokens"] == "0"
    assert 1 <= int(refused.headers["retry-after"]) <= 4


def test_tokens_count_as_they_are_made_also_where_no_client_waits(
    start_two: StartTwo, start_worker: Callable[..., Worker], server: redis.Redis
) -> None:
    start_worker(engine=slower_engine)
    first, second = start_two("tokens-per-minute=20")
    job_id = begin(first)
    wait_until(lambda: server.xlen(keys.token_stream(job_id)) > 30)

    assert post(second).status_code == 429
    assert end_of(server, job_id) is None
    cancel(server, job_id)


def test_two_gateways_count_the_jobs_of_a_key_together_until_they_end(
    start_two: StartTwo, start_worker: Callable[..., Worker], server: redis.Redis
) -> None:
    start_worker(engine=slow_engine)
    first, second = start_two("jobs=2")
    job_id = begin(first)

    assert post(second, {**ASKED, "n": 2}).json()["error"]["code"] == "too_many_jobs"
    assert post(second).status_code == 200
    cancel(server, job_id)
    wait_until(lambda: end_of(server, job_id) is not None)
    assert post(second, {**ASKED, "n": 2}).status_code == 200


def test_a_gateway_that_is_killed_holds_no_jobs_back(
    start_two: StartTwo, start_worker: Callable[..., Worker], server: redis.Redis
) -> None:
    start_worker(engine=slow_engine)
    first, second = start_two("jobs=1")
    job_id = begin(first, max_tokens=40)
    first.kill()

    assert post(second).status_code == 429
    wait_until(lambda: end_of(server, job_id) is not None)
    assert post(second).status_code == 200


def test_a_retry_of_a_request_is_no_second_job(start_two: StartTwo, start_worker: Callable[..., Worker]) -> None:
    start_worker(engine=slow_engine)
    first, second = start_two("jobs=1 tokens-per-minute=5000")
    body = {**LONG, "max_tokens": 30}

    answers = [post(gateway, body, **{"Idempotency-Key": "k"}) for gateway in (first, second)]

    assert [answer.status_code for answer in answers] == [200, 200]
    assert answers[0].json()["id"] == answers[1].json()["id"]


def test_what_the_queue_refuses_counts_no_more(
    start_gateway: StartGateway, tmp_path: Path, start_worker: Callable[..., Worker], server: redis.Redis
) -> None:
    start_worker(max_batch=1, engine=slow_engine)
    file = str(write_keys(tmp_path / "keys", "alice", options="jobs=3 tokens-per-minute=1000"))
    gateway = start_gateway("--api-keys", file, "--max-queued", "1")
    running = begin(gateway)
    waiting = enqueue(server, GenerationRequest((5, 6), max_new_tokens=3), Submission())

    refused = post(gateway)

    assert refused.json()["error"]["code"] == "queue_full"
    record: Any = server.hgetall(keys.limits("alice"))
    assert [name for name in record if name.startswith(b"job:")] == [f"job:{running}".encode()]
    for job_id in (running, waiting):
        cancel(server, job_id)


def test_a_record_of_limits_expires(server: redis.Redis) -> None:
    Allowance(ApiKey("bob", requests_per_minute=2), Limits(server)).count_request()
    Allowance(ApiKey("eve", jobs=2), Limits(server)).reserve(["a"], 3)

    assert 0 < server.ttl(keys.limits("bob")) <= keys.RETENTION
    assert 0 < server.ttl(keys.limits("eve")) <= keys.RETENTION


def test_requests_are_given_back_as_time_passes(server: redis.Redis) -> None:
    key, limits = ApiKey("bob", requests_per_minute=600), Limits(server)
    while limits.count_request(key)[0]:
        pass

    with pytest.raises(ApiError) as refused:
        Allowance(key, limits).count_request()
    assert (refused.value.status, refused.value.headers["Retry-After"]) == (429, "1")
    wait_until(lambda: limits.count_request(key)[0])


def test_a_job_that_never_came_into_the_queue_counts_for_a_short_time_only(server: redis.Redis) -> None:
    key, limits = ApiKey("bob", jobs=1), Limits(server)
    Allowance(key, limits).reserve(["lost"], 3)
    with pytest.raises(ApiError):
        Allowance(key, limits).reserve(["next"], 3)
    server.hset(keys.limits("bob"), "job:lost", f"0 {time.time() - 60}")

    Allowance(key, limits).reserve(["next"], 3)


def test_a_key_without_limits_asks_nothing_of_redis(server: redis.Redis) -> None:
    allowance = Allowance(ApiKey("bob"), Limits(server))
    before = server.info("stats")["total_commands_processed"]

    allowance.count_request()
    allowance.reserve(["a"], 3)
    allowance.release()

    assert server.info("stats")["total_commands_processed"] == before + 1  # the question itself
    assert allowance.headers == {}
