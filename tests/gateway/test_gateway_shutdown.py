"""A gateway that is told to end: open answers end in time, go on elsewhere, or are told to come again."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from contextlib import closing, suppress
from typing import Any

import httpx2 as httpx
import pytest
import redis
from minilab_worker.worker import Worker
from support.engines import slow_engine, very_slow_engine
from support.waiting import wait_until

from gateway.conftest import StartGateway
from gateway.gateway_process import Gateway, events_in, stream_of
from gateway.test_http_failures import error_of
from minilab_gen.protocol.jobs import fetch

LONG: dict[str, Any] = {"model": "base", "prompt": [5, 6], "max_tokens": 60, "temperature": 0, "ignore_eos": True}


def test_a_gateway_that_is_told_to_end_lets_open_answers_end(
    start_gateway: StartGateway, start_worker: Callable[..., Worker], server: redis.Redis
) -> None:
    start_worker(engine=slow_engine)
    gateway = start_gateway()
    with gateway.http() as http, stream_of(http, "/v1/completions", LONG) as lines:
        next(lines)
        gateway.process.terminate()
        rest = list(lines)

    assert rest[-2] == "data: [DONE]"
    assert gateway.process.wait(30) in (0, -15)


def test_a_gateway_that_may_not_wait_leaves_the_jobs_to_be_gone_on_with(
    start_gateway: StartGateway, start_worker: Callable[..., Worker], server: redis.Redis
) -> None:
    start_worker(engine=very_slow_engine)
    gateway = start_gateway("--grace", "0")
    with gateway.http() as http, stream_of(http, "/v1/completions", {**LONG, "max_tokens": 20}) as lines:
        job_id = json.loads([next(lines) for _ in range(2)][1].removeprefix("data: "))["id"].removeprefix("cmpl-")
        gateway.process.terminate()
        gateway.process.wait(30)

    with closing(start_gateway().http()) as http:
        found = http.get(f"/v1/completions/{job_id}").json()
    assert found["usage"]["completion_tokens"] == 20
    assert fetch(server, job_id).get_status().value == "finished"


def test_a_gateway_that_may_not_wait_tells_plain_requests_to_come_again(
    start_gateway: StartGateway, start_worker: Callable[..., Worker], server: redis.Redis
) -> None:
    start_worker(engine=very_slow_engine)
    gateway = start_gateway("--grace", "0")
    answers: list[httpx.Response] = []

    def ask() -> None:
        with gateway.http() as http:
            answers.append(http.post("/v1/completions", json=LONG, headers={"Idempotency-Key": "k"}))

    with gateway.http() as http, stream_of(http, "/v1/completions", LONG) as lines:
        first = next(lines)
        asking = threading.Thread(target=ask)
        asking.start()
        wait_until(lambda: gateway.figure("minilab_gateway_readers") == 2)
        gateway.process.terminate()
        with suppress(httpx.RemoteProtocolError):
            assert "data: [DONE]" not in list(lines)
    asking.join()

    assert first
    assert error_of(answers[0]) == (503, "shutting_down")
    assert int(answers[0].headers["retry-after"]) >= 1
    assert gateway.process.wait(30) == 0
    assert "Traceback" not in gateway.said


BAD_FORMS: dict[str, dict[str, Any]] = {
    "grammar": {"structured_outputs": {"grammar": "start: nowhere"}},
    "regex": {"regex": "(a"},
    "guided": {"guided_regex": "[b"},
    "schema": {"response_format": {"type": "json_schema", "json_schema": {"schema": {"pattern": "(a"}}}},
}


@pytest.mark.parametrize("form", list(BAD_FORMS))
def test_a_form_that_only_the_worker_finds_wrong_is_the_requests_fault(gateway: Gateway, form: str) -> None:
    fields = BAD_FORMS[form]
    with gateway.http() as http:
        whole = http.post("/v1/completions", json={**LONG, **fields})
        streamed = events_in(http.post("/v1/completions", json={**LONG, **fields, "stream": True}).text)

    assert whole.status_code == 400, whole.text
    told = whole.json()["error"]
    assert (told["type"], told["param"]) == ("invalid_request_error", next(iter(fields)))
    assert told["message"]
    assert streamed[-1][1] == {"error": told}
