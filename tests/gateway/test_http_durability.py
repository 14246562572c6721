"""A completion outlives its client, its worker and its gateway, and can be picked up at any token."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2 as httpx
import openai
import pytest
import redis
from minilab_worker.worker import Worker
from support.engines import slow_engine, very_slow_engine
from support.own_service import LIMIT, OwnService
from support.waiting import wait_until

from gateway.conftest import StartGateway
from gateway.gateway_process import Gateway, events_in, stream_of
from minilab_gen.protocol import keys
from minilab_gen.protocol.jobs import fetch, queue_of
from minilab_gen.protocol.streams import end_of, stream_length

LONG: dict[str, Any] = {"model": "base", "prompt": [5, 6], "max_tokens": 60, "temperature": 0, "ignore_eos": True}


def job_of(line: str) -> str:
    """The id of the job of a stream, by one of its lines."""
    return str(json.loads(line.removeprefix("data: "))["id"]).removeprefix("cmpl-")


def first_data(lines: Iterator[str]) -> str:
    return next(line for line in lines if line.startswith("data: "))


def queued_jobs(connection: redis.Redis) -> list[str]:
    return queue_of(connection, keys.queue_name("base")).job_ids


def streamed_jobs(connection: redis.Redis) -> list[str]:
    """The jobs that have a token stream."""
    prefix = keys.token_stream("")
    found: list[bytes] = list(connection.scan_iter(match=f"{prefix}*"))
    return [key.decode().removeprefix(prefix) for key in found]


# a client that goes away


def test_a_stream_whose_client_goes_away_is_cancelled(slow_gateway: Gateway, server: redis.Redis) -> None:
    with slow_gateway.http() as http, stream_of(http, "/v1/completions", LONG) as lines:
        job_id = job_of(first_data(lines))

    wait_until(lambda: end_of(server, job_id))
    end = end_of(server, job_id)
    assert end is not None
    assert end.reason == "cancelled"
    assert end.tokens < 30


def test_a_plain_request_whose_client_goes_away_is_cancelled(slow_gateway: Gateway, server: redis.Redis) -> None:
    with pytest.raises(openai.APITimeoutError):
        slow_gateway.client(timeout=0.2).completions.create(
            model="base", prompt=[5, 6], max_tokens=60, temperature=0, extra_body={"ignore_eos": True}
        )

    (job_id,) = streamed_jobs(server)
    wait_until(lambda: end_of(server, job_id))
    end = end_of(server, job_id)
    assert end is not None
    assert (end.reason, end.tokens < 60) == ("cancelled", True)


@pytest.mark.parametrize("n", [1, 3])
def test_what_still_waits_in_the_queue_is_cancelled_without_a_token(
    shared_gateway: Gateway, start_worker: Callable[..., Worker], server: redis.Redis, n: int
) -> None:
    start_worker(1, engine=very_slow_engine)
    with shared_gateway.http() as http, stream_of(http, "/v1/completions", LONG) as lines:
        first_data(lines)  # the only slot is taken
        with stream_of(http, "/v1/completions", {**LONG, "n": n}):
            wait_until(lambda: len(queued_jobs(server)) == n)
            waiting = queued_jobs(server)
        wait_until(lambda: all(end_of(server, job_id) for job_id in waiting))

    for job_id in waiting:
        end = end_of(server, job_id)
        assert end is not None
        assert (end.reason, end.tokens) == ("cancelled", 0)


@pytest.mark.parametrize(("fields", "headers"), [({"store": True}, {}), ({}, {"Idempotency-Key": "one"})], ids=str)
def test_what_is_to_stay_goes_on_without_its_client(
    slow_gateway: Gateway, server: redis.Redis, fields: dict[str, Any], headers: dict[str, str]
) -> None:
    with (
        slow_gateway.http() as http,
        stream_of(http, "/v1/completions", {**LONG, **fields}, headers=headers) as lines,
    ):
        job_id = job_of(first_data(lines))

    wait_until(lambda: end_of(server, job_id))
    end = end_of(server, job_id)
    assert end is not None
    assert (end.reason, end.tokens) == ("length", 60)
    with slow_gateway.http() as http:
        found = http.get(f"/v1/completions/cmpl-{job_id}").json()
        same = http.get(f"/v1/completions/{job_id}").json()
    assert found == same
    assert found["usage"]["completion_tokens"] == 60


def read_until_killed(gateway: Gateway, http: httpx.Client) -> list[str]:
    """The lines of a stream whose gateway is killed in the middle."""
    seen: list[str] = []
    with suppress(httpx.TransportError), stream_of(http, "/v1/completions", LONG) as lines:
        for line in lines:
            seen.append(line)
            if len(seen) == 30:
                gateway.kill()
    assert 30 <= len(seen) < 150
    return seen


# resuming


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("usage", [False, True])
def test_a_stream_goes_on_behind_any_event_with_the_same_bytes(gateway: Gateway, n: int, usage: bool) -> None:
    body: dict[str, Any] = {**LONG, "max_tokens": 6, "n": n, "temperature": 1, "seed": 3, "stream": True, "logprobs": 1}
    body["stream_options"] = {"include_usage": usage}
    with gateway.http() as http:
        whole = http.post("/v1/completions", json=body).text
        name = events_in(whole)[0][1]["id"]
        blocks = [block + "\n\n" for block in whole.split("\n\n") if block]
        again = http.get(f"/v1/completions/{name}", params={"stream": "true"}).text
        if n == 1:
            assert again == whole
        for number, (event_id, _) in enumerate(events_in(whole)):
            if event_id is None:
                continue
            rest = http.get(f"/v1/completions/{name}", params={"stream": "true", "starting_after": event_id}).text
            by_header = http.get(
                f"/v1/completions/{name}", params={"stream": "true"}, headers={"Last-Event-ID": event_id}
            ).text
            if n == 1:
                assert rest == by_header
                assert rest == "".join(blocks[number + 1 :])
            else:  # those of several answers may come in another order
                assert len(events_in(rest)) == len(events_in(by_header)) == len(blocks) - number - 1


@pytest.mark.parametrize("usage", [False, True])
def test_the_text_that_is_left_at_an_end_has_a_number_of_its_own(gateway: Gateway, usage: bool) -> None:
    body: dict[str, Any] = {**LONG, "max_tokens": 6, "stream_options": {"include_usage": usage}, "stream": True}
    text = gateway.complete(model="base", prompt=[5, 6], max_tokens=6, temperature=0).choices[0].text
    body["stop"] = text[-1] + "\x01"  # which does not come, so that a letter is held back and then given
    with gateway.http() as http:
        whole = http.post("/v1/completions", json=body).text
        blocks = [block + "\n\n" for block in whole.split("\n\n") if block]
        events = events_in(whole)
        name = events[0][1]["id"]
        rests = [
            http.get(f"/v1/completions/{name}", params={"stream": "true", "starting_after": str(event_id)}).text
            for event_id, _ in events[:-1]
        ]
        late = http.get(f"/v1/completions/{name}", params={"stream": "true", "starting_after": str(len(blocks))})

    assert [event_id for event_id, _ in events] == [*map(str, range(1, len(blocks))), None]
    assert "".join(data["choices"][0]["text"] for _, data in events[:8]) == text
    assert events[6][1]["choices"][0] == {
        "index": 0, "text": text[-1], "logprobs": None, "finish_reason": None, "token_ids": []
    }  # fmt: skip
    assert rests == ["".join(blocks[number + 1 :]) for number in range(len(blocks) - 1)]
    assert late.status_code == (400 if usage else 200)


@pytest.mark.parametrize("given", ["-1", "abc", "", "99", "1.2", "1e3", "٣"])
def test_a_position_that_cannot_have_been_seen_is_refused(gateway: Gateway, given: str) -> None:
    answer = gateway.complete(model="base", prompt=[5], max_tokens=3)
    with gateway.http() as http:
        refused = http.get(f"/v1/completions/{answer.id}", params={"stream": "true", "starting_after": given})

    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "starting_after")


@pytest.mark.parametrize("name", ["nobody", "cmpl-nobody", "..%2Fx", "x" * 10_000, "%00"])
def test_an_unknown_completion_is_not_found(shared_gateway: Gateway, server: redis.Redis, name: str) -> None:
    with shared_gateway.http() as http:
        answer = http.get(f"/v1/completions/{name}")

    assert answer.status_code == 404
    assert answer.json()["error"]["code"] in ("completion_not_found", None)


def test_another_gateway_goes_on_where_a_killed_one_was(
    start_gateway: StartGateway, start_worker: Callable[..., Worker], server: redis.Redis
) -> None:
    start_worker(engine=slow_engine)
    first, second = start_gateway(), start_gateway()
    with first.http() as http:
        seen = read_until_killed(first, http)
    before = events_in("\n".join(seen[: -(len(seen) % 3) or None]) + "\n")
    name, last = before[0][1]["id"], before[-1][0]

    with second.http() as http:
        rest = http.get(f"/v1/completions/{name}", params={"stream": "true", "starting_after": str(last)}).text
        whole = http.get(f"/v1/completions/{name}", params={"stream": "true"}).text

    assert before + events_in(rest) == events_in(whole)
    assert [event_id for event_id, _ in events_in(whole)] == [*map(str, range(1, 62)), None]


def test_a_stream_goes_on_through_the_kill_of_its_worker_and_of_redis(own_service: OwnService, tmp_path: Path) -> None:
    own_service.fleet.start_and_wait()
    body = {**LONG, "max_tokens": 100}
    with (
        Gateway(own_service.server.url, tmp_path / "log") as gateway,
        gateway.http() as http,
        stream_of(http, "/v1/completions", body) as lines,
    ):
        seen = [next(lines) for _ in range(30)]
        job_id = job_of(seen[1])
        own_service.holder(job_id).kill()
        own_service.fleet.start_and_wait()
        own_service.wait_for_token(job_id, 15)
        own_service.server.terminate()
        own_service.server.start()
        seen += lines
    events = events_in("\n".join(seen))
    assert [event_id for event_id, _ in events] == [*map(str, range(1, len(events))), None]
    ids = [token for _, data in events[:-1] for token in data["choices"][0]["token_ids"]]
    assert len(ids) == 100
    wait_until(lambda: stream_length(own_service.connection, job_id)[1], LIMIT)
    assert [event.to_json()["id"] for event in own_service.stream(job_id)[:-1]] == ids


# retries


def test_a_retry_with_the_same_key_attaches_to_the_first_job(slow_gateway: Gateway, server: redis.Redis) -> None:
    headers = {"Idempotency-Key": "k"}
    with slow_gateway.http() as http:
        with stream_of(http, "/v1/completions", LONG, headers=headers) as lines:
            first = job_of(first_data(lines))
        again = http.post("/v1/completions", json={**LONG, "stream": True}, headers=headers).text
        other_body = http.post("/v1/completions", json={**LONG, "max_tokens": 5}, headers=headers)
        late = http.post("/v1/completions", json={**LONG, "stream": True}, headers=headers).text

    assert events_in(again)[0][1]["id"] == f"cmpl-{first}"
    assert late == again
    assert (other_body.status_code, other_body.json()["error"]["code"]) == (409, "idempotency_key_in_use")
    assert len(streamed_jobs(server)) == 1


def test_requests_with_one_key_that_come_together_run_once(slow_gateway: Gateway, server: redis.Redis) -> None:
    def ask(_: int) -> str:
        with slow_gateway.http() as http:
            answer = http.post("/v1/completions", json={**LONG, "n": 2}, headers={"Idempotency-Key": "k"})
            return str(answer.json()["id"])

    with ThreadPoolExecutor(6) as pool:
        names = set(pool.map(ask, range(6)))

    assert len(names) == 1
    assert len(streamed_jobs(server)) == 2


def test_the_id_of_a_completion_is_that_of_its_job(gateway: Gateway, server: redis.Redis) -> None:
    answer = gateway.complete(model="base", prompt=[5], max_tokens=2)

    wait_until(lambda: fetch(server, answer.id.removeprefix("cmpl-")).get_status().value == "finished")
