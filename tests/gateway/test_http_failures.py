"""What a client is told when something is missing, full, late or broken."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx2 as httpx
import openai
import pytest
import redis
from chaos.server import Server
from minilab_worker.worker import Worker
from support.engines import very_slow_engine
from support.waiting import wait_until

from gateway.conftest import StartGateway
from gateway.gateway_process import Gateway, events_in, stream_of
from minilab_gen.protocol import keys
from minilab_gen.protocol.events import EndEvent, TokenEvent
from minilab_gen.protocol.jobs import queue_of
from minilab_gen.protocol.streams import publish

LONG: dict[str, Any] = {"model": "base", "prompt": [5, 6], "max_tokens": 60, "temperature": 0, "ignore_eos": True}


def error_of(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


def test_without_a_worker_a_request_waits_for_one_and_is_then_refused(
    shared_gateway: Gateway, server: redis.Redis
) -> None:
    began = time.monotonic()
    with shared_gateway.http() as http:
        refused = http.post("/v1/completions", json={**LONG, "stream": True})

    assert error_of(refused) == (503, "no_worker")
    assert int(refused.headers["retry-after"]) >= 1
    assert time.monotonic() - began >= 0.5
    assert queue_of(server, keys.queue_name("base")).count == 0


def test_a_worker_that_comes_in_time_answers(start_gateway: StartGateway, start_worker: Callable[..., Worker]) -> None:
    gateway = start_gateway("--queue-wait", "60")
    late = threading.Timer(0.5, start_worker)
    late.start()

    assert gateway.complete(model="base", prompt=[5], max_tokens=2).choices
    late.join()


def test_a_full_queue_refuses_before_any_stream_begins(
    start_gateway: StartGateway, start_worker: Callable[..., Worker], server: redis.Redis
) -> None:
    start_worker(1, engine=very_slow_engine)
    gateway = start_gateway("--max-queued", "1")
    with gateway.http() as http, stream_of(http, "/v1/completions", LONG) as running:
        next(running)
        with stream_of(http, "/v1/completions", LONG):
            wait_until(lambda: queue_of(server, keys.queue_name("base")).count == 1)
            refused = http.post("/v1/completions", json={**LONG, "stream": True})

            assert error_of(refused) == (429, "queue_full")
            assert int(refused.headers["retry-after"]) >= 1
            assert queue_of(server, keys.queue_name("base")).count == 1


def test_without_redis_requests_are_told_to_come_again_and_health_is_well(tmp_path: Path) -> None:
    with (
        TemporaryDirectory(prefix="ml-") as name,
        Server(Path(name)) as own,
        Gateway(own.url, tmp_path / "log") as gateway,
        gateway.http() as http,
    ):
        assert http.get("/ready").status_code == 200
        own.terminate()
        away = http.get("/ready")
        refused = http.post("/v1/completions", json=LONG)
        assert http.get("/health").status_code == 200
        own.start()
        wait_until(lambda: http.get("/ready").status_code == 200)

    assert error_of(away) == error_of(refused) == (503, "redis_unavailable")
    assert int(refused.headers["retry-after"]) >= 1


def end_job(server: redis.Redis, job_id: str, end: EndEvent) -> None:
    publish(server, [(job_id, end)], running_ttl=60)


def test_a_job_that_fails_in_a_stream_is_told_by_one_error_and_nothing_more(
    shared_gateway: Gateway, server: redis.Redis, by_hand: Callable[[], str]
) -> None:
    body = {**LONG, "prompt": [5, 6]}
    with shared_gateway.http() as http, stream_of(http, "/v1/completions", body) as lines:
        end_job(server, by_hand(), EndEvent("error", 0, 2, error="the logits are not finite"))
        data = [line for line in lines if line.startswith("data: ")]

    (only,) = data
    assert json.loads(only.removeprefix("data: "))["error"] == {
        "message": "the job failed after 0 tokens: the logits are not finite",
        "type": "server_error",
        "param": None,
        "code": "job_failed",
    }


def test_openais_client_raises_what_a_stream_tells(
    shared_gateway: Gateway, server: redis.Redis, by_hand: Callable[[], str]
) -> None:
    create: Any = shared_gateway.client().completions.create
    stream = create(model="base", prompt=[5, 6], stream=True)
    end_job(server, by_hand(), EndEvent("error", 0, 2, error="broken"))

    with pytest.raises(openai.APIError, match="the job failed after 0 tokens: broken"):
        list(stream)


def test_a_job_that_fails_gives_a_plain_request_a_500(
    shared_gateway: Gateway, server: redis.Redis, by_hand: Callable[[], str]
) -> None:
    answers: list[httpx.Response] = []

    def ask() -> None:
        with shared_gateway.http() as http:
            answers.append(http.post("/v1/completions", json=LONG))

    asking = threading.Thread(target=ask)
    asking.start()
    end_job(server, by_hand(), EndEvent("error", 0, 2, error="broken"))
    asking.join()

    assert error_of(answers[0]) == (500, "job_failed")


@pytest.mark.parametrize("streams", [False, True])
def test_what_ran_out_of_time_is_given_with_its_reason(
    start_gateway: StartGateway, start_worker: Callable[..., Worker], streams: bool
) -> None:
    start_worker(engine=very_slow_engine)
    gateway = start_gateway("--timeout", "1")
    with gateway.http() as http:
        answer = http.post("/v1/completions", json={**LONG, "stream": streams})

    choice = answer.json()["choices"][0] if not streams else events_in(answer.text)[-2][1]["choices"][0]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("length", "timeout")


def test_a_silent_stream_sends_comments_that_clients_do_not_see(
    start_gateway: StartGateway, server: redis.Redis, by_hand: Callable[[], str]
) -> None:
    gateway = start_gateway("--ping", "0.2")
    began = time.monotonic()
    with gateway.http() as http, stream_of(http, "/v1/completions", LONG) as lines:
        assert time.monotonic() - began < 2  # the headers do not wait for a token
        job_id = by_hand()
        first = [next(lines) for _ in range(4)]
        assert first == [":"] * 4
        end_job(server, job_id, EndEvent("length", 0, 2))
        rest = list(lines)
    create: Any = gateway.client().completions.create
    stream = create(model="base", prompt=[5, 6], stream=True)
    job_id = by_hand()
    publish(server, [(job_id, TokenEvent(1, 7, "a"))], running_ttl=60)
    time.sleep(0.5)
    end_job(server, job_id, EndEvent("length", 1, 2))

    assert [line for line in rest if line.startswith("data:")][-1] == "data: [DONE]"
    assert all(line != "data: " for line in rest)
    assert [chunk.choices[0].finish_reason for chunk in stream] == [None, "length"]


def test_all_lines_of_a_stream_end_alike_so_that_it_can_be_split_at_empty_ones(
    start_gateway: StartGateway, server: redis.Redis, by_hand: Callable[[], str]
) -> None:
    gateway = start_gateway("--ping", "0.1")
    raw = b""
    with gateway.http() as http, http.stream("POST", "/v1/completions", json={**LONG, "stream": True}) as response:
        job_id = by_hand()
        pieces = response.iter_raw()
        raw += next(pieces)
        end_job(server, job_id, EndEvent("length", 0, 2))
        raw += b"".join(pieces)

    assert raw.startswith(b":\n")
    assert b"\r" not in raw


def test_each_token_arrives_alone_as_it_comes(
    shared_gateway: Gateway, start_worker: Callable[..., Worker], server: redis.Redis
) -> None:
    start_worker(engine=very_slow_engine)
    with shared_gateway.http() as http, stream_of(http, "/v1/completions", {**LONG, "max_tokens": 8}) as lines:
        times = [time.monotonic() for line in lines if line.startswith("data: {")]

    gaps = [later - earlier for earlier, later in pairwise(times[:8])]
    assert min(gaps) > 0.04


def test_a_request_that_fits_no_more_is_told_its_field(
    shared_gateway: Gateway, server: redis.Redis, by_hand: Callable[[], str]
) -> None:
    with shared_gateway.http() as http, stream_of(http, "/v1/completions", {**LONG, "prompt": [5, 6]}) as lines:
        end_job(server, by_hand(), EndEvent("error", 0, 2, error="prompt must hold less", refused=True))
        (only,) = [line for line in lines if line.startswith("data: ")]

    error = json.loads(only.removeprefix("data: "))["error"]
    assert (error["message"], error["type"], error["param"]) == (
        "prompt must hold less",
        "invalid_request_error",
        "prompt",
    )
