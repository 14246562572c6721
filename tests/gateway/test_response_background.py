"""Responses without their clients: those that are cancelled as one goes away, and those that go on."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import httpx2 as httpx
import pytest
import redis
from minilab_worker.worker import Worker
from support.engines import slow_engine
from support.waiting import wait_until

from gateway.gateway_process import Gateway, stream_of
from gateway.test_response_streams import LONG
from minilab_gen.protocol.streams import end_of


def test_a_client_that_goes_away_cancels_unless_it_said_that_the_response_stays(
    slow_chat_gateway: Gateway, server: redis.Redis
) -> None:
    asked: list[tuple[str, dict[str, Any], dict[str, str]]] = [
        ("cancelled", {}, {}),
        ("cancelled", {"store": False}, {}),
        ("length", {"store": True}, {}),
        ("length", {"background": True}, {}),
        ("length", {}, {"Idempotency-Key": "k"}),
    ]
    for reason, fields, headers in asked:
        with slow_chat_gateway.http() as http:
            with stream_of(http, "/v1/responses", {**LONG, **fields}, headers=headers) as lines:
                seen = [next(lines) for _ in range(25)]
            job_id = re.findall(r"resp_(\w+)", seen[2])[0]
            wait_until(lambda job_id=job_id: end_of(server, job_id))  # type: ignore[misc]
            end = end_of(server, job_id)
            assert end is not None
            assert (end.reason, end.tokens < 50) == (reason, reason == "cancelled"), (fields, headers)


def test_a_plain_request_whose_client_goes_away_is_cancelled_and_found(
    slow_chat_gateway: Gateway, server: redis.Redis
) -> None:
    def cancelled() -> list[str]:
        return re.findall(r"completion (resp_\w+) is cancelled: its client went away", slow_chat_gateway.said)

    before = cancelled()
    with slow_chat_gateway.http() as http:
        with pytest.raises(httpx.ReadTimeout):
            http.post("/v1/responses", json=LONG, timeout=0.3)
        wait_until(lambda: len(cancelled()) > len(before))
        name = cancelled()[-1]
        wait_until(lambda: http.get(f"/v1/responses/{name}").json()["status"] == "cancelled")


@pytest.fixture
def slow_worker(start_worker: Callable[..., Worker]) -> None:
    start_worker(engine=slow_engine)


@pytest.mark.usefixtures("slow_worker")
def test_a_response_in_the_background_is_answered_at_once_and_runs_to_its_end(
    shared_gateway: Gateway, server: redis.Redis
) -> None:
    body = {**LONG, "background": True, "max_output_tokens": 60}
    seen: list[dict[str, Any]] = []
    with shared_gateway.http() as http:
        created = http.post("/v1/responses", json=body).json()
        path = f"/v1/responses/{created['id']}"

        def is_over() -> bool:
            seen.append(http.get(path).json())
            return seen[-1]["status"] not in ("queued", "in_progress")

        wait_until(is_over)

    assert created["status"] in ("queued", "in_progress")
    assert (seen[-1]["status"], seen[-1]["usage"]["output_tokens"]) == ("incomplete", 60)
    partial = [found["output"][0] for found in seen if found["status"] == "in_progress" and found["output"]]
    assert partial
    whole = seen[-1]["output"][0]["content"][0]["text"]
    assert all(whole.startswith(item["content"][0]["text"]) for item in partial)
    assert {item["status"] for item in partial} == {"in_progress"}
