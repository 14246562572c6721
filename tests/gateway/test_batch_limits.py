"""The limits of a key in its batches: their jobs and tokens count, they wait for room, and leave some for requests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import openai
import pytest
import redis
from minilab_gateway.api_keys import ApiKey
from minilab_gateway.batches.batch import NewBatch
from minilab_gateway.batches.share import share_of
from minilab_gateway.limits import Limits
from minilab_worker.worker import Worker
from support.engines import slow_engine, very_slow_engine
from support.own_service import LIMIT
from support.waiting import wait_until

from gateway.batch_files import (
    COMPLETIONS,
    begin,
    counts,
    ended,
    jobs_in,
    jsonl,
    long_lines,
    outcomes,
    wait_for_answers,
)
from gateway.conftest import StartGateway
from gateway.gateway_process import Gateway
from gateway.test_access import KEYS, write_keys
from minilab_gen.batch.line import Line
from minilab_gen.batch.pending_jobs import PendingJobs
from minilab_gen.protocol import keys
from minilab_gen.protocol.endings import cancel
from minilab_gen.protocol.streams import end_of
from minilab_gen.protocol.submission import Submission, enqueue
from minilab_gen.request import GenerationRequest

StartTwo = Callable[[str], list[Gateway]]


@pytest.fixture
def start_two(start_gateway: StartGateway, tmp_path: Path) -> StartTwo:
    """Two gateways with one file of keys, in which alice has these limits."""

    def start(limits: str) -> list[Gateway]:
        file = str(write_keys(tmp_path / "keys", "alice", options=limits))
        return [start_gateway("--api-keys", file) for _ in range(2)]

    return start


def ask(client: openai.OpenAI, **more: Any) -> Any:
    given: dict[str, Any] = {"model": "base", "prompt": [7, 8], "max_tokens": 2, **more}
    return client.with_options(max_retries=0).completions.with_raw_response.create(**given)


# all gateways together


def test_the_batches_of_two_gateways_and_requests_share_the_jobs_of_a_key(
    start_two: StartTwo, start_worker: Callable[..., Worker], server: redis.Redis
) -> None:
    start_worker(8, engine=slow_engine)
    gateways = start_two("jobs=3")
    clients = [gateway.client(KEYS["alice"]) for gateway in gateways]
    batches: list[str] = []
    for client in clients:
        batch = begin(client, jsonl(long_lines(8)))
        batches.append(batch.id)
        wait_until(lambda: any(f"{batches[-1]} is driven here" in each.said for each in gateways), LIMIT)
    most = 0
    while any(clients[0].batches.retrieve(each).status != "completed" for each in batches):
        most = max(most, len([job_id for job_id in jobs_in(server) if end_of(server, job_id) is None]))
        if most == 2:
            assert ask(clients[0]).status_code == 200  # one of the three is left for it

    assert most == 2


def test_a_batch_waits_while_half_of_the_tokens_are_used_up(
    start_two: StartTwo, start_worker: Callable[..., Worker]
) -> None:
    start_worker(8)
    client = start_two("tokens-per-minute=200")[0].client(KEYS["alice"])
    batch = begin(client, jsonl(long_lines(20)))
    wait_for_answers(client, batch, 3)

    answer = ask(client)

    assert answer.status_code == 200
    assert 50 < int(answer.headers["x-ratelimit-remaining-tokens"]) < 110
    assert counts(client, batch)["completed"] <= 5
    assert client.batches.retrieve(batch.id).status == "in_progress"
    client.batches.cancel(batch.id)
    assert ended(client, batch).status == "cancelled"


def test_a_request_that_is_refused_comes_before_the_rest_of_a_batch(
    start_two: StartTwo, start_worker: Callable[..., Worker]
) -> None:
    start_worker(8, engine=very_slow_engine)
    client = start_two("jobs=1")[0].client(KEYS["alice"])
    batch = begin(client, jsonl(long_lines(20)))
    refusals = []

    def is_answered() -> bool:
        try:
            return bool(ask(client).status_code == 200)
        except openai.RateLimitError as error:
            refusals.append(error.code)
            return False

    wait_until(lambda: not is_answered(), LIMIT)
    wait_until(is_answered, LIMIT)

    assert set(refusals) == {"too_many_jobs"}
    assert counts(client, batch)["completed"] <= 2
    client.batches.cancel(batch.id)
    ended(client, batch)


def test_a_batch_whose_gateway_is_killed_leaves_no_count_behind(
    start_two: StartTwo, start_worker: Callable[..., Worker], server: redis.Redis
) -> None:
    start_worker(4, engine=slow_engine)
    gateways = start_two("jobs=3 tokens-per-minute=100000")
    client = gateways[0].client(KEYS["alice"])
    batch = begin(client, jsonl(long_lines(12)))
    wait_for_answers(client, batch, 3)
    (first,) = (gateway for gateway in gateways if f"{batch.id} is driven here" in gateway.said)
    (second,) = (gateway for gateway in gateways if gateway is not first)

    first.kill()
    server.delete(keys.batch_driver(batch.id))  # as its lease would expire, later
    client = second.client(KEYS["alice"])
    batch = ended(client, batch)

    answers, errors = outcomes(client, batch)
    assert (len(answers), errors) == (12, {})
    assert len(jobs_in(server)) == 12
    answer = ask(client, n=3)
    assert answer.status_code == 200  # all three jobs are there again
    used = 100_000 - int(answer.headers["x-ratelimit-remaining-tokens"])
    assert used <= 12 * 32 + 6


# one job of a batch


def test_a_batch_leaves_a_job_and_the_tokens_that_its_jobs_may_still_make(server: redis.Redis) -> None:
    limits, key = Limits(server), ApiKey("bob", jobs=3, tokens_per_minute=100)

    def refusal(job_id: str, to_make: int) -> str:
        return limits.reserve(key, [job_id], 5, to_make)[0]

    assert refusal("a", 20) == ""
    assert refusal("b", 26) == "tokens"  # 95 less 20 and 5 + 26 are less than half
    assert refusal("b", 10) == ""
    assert refusal("c", 1) == "jobs"
    assert refusal("a", 20) == ""  # it is counted already
    assert limits.reserve(key, ["d"], 5)[0] == ""  # a request may have the third job


def test_a_job_of_a_batch_that_makes_much_begins_alone(server: redis.Redis) -> None:
    limits, key = Limits(server), ApiKey("bob", tokens_per_minute=100)

    assert limits.reserve(key, ["a"], 5, 500)[0] == ""
    assert limits.reserve(key, ["b"], 5, 1)[0] == "tokens"


def test_a_batch_stands_back_after_a_request_was_refused(server: redis.Redis) -> None:
    limits, key = Limits(server), ApiKey("bob", jobs=4)
    assert limits.reserve(key, ["a"], 1, 1)[0] == ""
    assert limits.reserve(key, ["b", "c", "d", "e"], 1)[0] == "jobs"

    assert limits.reserve(key, ["f"], 1, 1)[0] == "later"
    server.hincrbyfloat(keys.limits("bob"), "refused_at", -60)
    assert limits.reserve(key, ["f"], 1, 1)[0] == ""


def test_what_was_counted_long_ago_and_never_came_is_counted_anew(server: redis.Redis) -> None:
    limits, key = Limits(server), ApiKey("bob", jobs=2)
    assert limits.reserve(key, ["a"], 1, 1)[0] == ""
    server.hset(keys.limits("bob"), "job:a", "0 1000.5 1")

    assert limits.reserve(key, ["a"], 1, 1) == ("", -1.0, 0, True)  # nothing limits its tokens
    enqueue(server, GenerationRequest((5,), max_new_tokens=1), Submission(job_id="a"))
    assert limits.reserve(key, ["b"], 1, 1)[0] == "jobs"


def test_a_job_of_a_batch_that_the_queue_refuses_counts_no_more(server: redis.Redis) -> None:
    limits, asked = Limits(server), NewBatch("bob", COMPLETIONS, "file-x", None, 3600, 2, 600, None)
    waiting = enqueue(server, GenerationRequest((5,), max_new_tokens=1), Submission())
    lines = [Line(1, "a", "openai", GenerationRequest((5, 6), max_new_tokens=3), None, "d", n=1)]
    pending = PendingJobs(server, Submission(max_queued=1), "", 4, admission=share_of(asked, limits))
    for each in lines:
        pending.add(each)

    pending.submit()

    assert pending.is_held_back
    assert server.hkeys(keys.limits("bob")) == [b"tokens", b"tokens_at"]
    assert float(server.hget(keys.limits("bob"), "tokens") or 0) == 600
    cancel(server, waiting)
    pending.submit()
    assert (pending.submitted, pending.is_held_back) == (1, False)
    assert float(server.hget(keys.limits("bob"), "tokens") or 0) == 598
