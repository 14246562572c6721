"""A completion is cancelled by its id: what there is of it stays, and another key's is unknown."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis
from minilab_worker.worker import Worker
from support.engines import slow_engine
from support.waiting import wait_until

from gateway.conftest import StartGateway
from gateway.gateway_process import Gateway, events_in
from gateway.test_access import bearer, write_keys
from minilab_gen.protocol.streams import end_of

LONG: dict[str, Any] = {"model": "base", "prompt": [5, 6], "max_tokens": 60, "temperature": 0, "ignore_eos": True}


def test_a_cancelled_completion_stops_and_what_there_is_of_it_stays(slow_gateway: Gateway, server: redis.Redis) -> None:
    with slow_gateway.http() as http:
        with http.stream("POST", "/v1/completions", json={**LONG, "stream": True, "store": True}) as response:
            lines = response.iter_lines()
            name = events_in(next(line for line in lines if line.startswith("data: ")))[0][1]["id"]
            told = http.post(f"/v1/completions/{name}/cancel")
            rest = [line for line in lines if line.startswith("data: ")]
        again = http.get(f"/v1/completions/{name}").json()
        once_more = http.post(f"/v1/completions/{name}/cancel")

    end = end_of(server, name.removeprefix("cmpl-"))
    assert end is not None
    assert (told.status_code, told.json()["id"]) == (202, name)
    assert (end.reason, end.tokens < 40) == ("cancelled", True)
    assert rest[-1] == "data: [DONE]"
    assert again["usage"]["completion_tokens"] == end.tokens
    assert once_more.status_code == 202


@pytest.mark.parametrize("name", ["nobody", "..%2Fx", "%00"])
def test_what_is_unknown_cannot_be_cancelled(shared_gateway: Gateway, server: redis.Redis, name: str) -> None:
    with shared_gateway.http() as http:
        assert http.post(f"/v1/completions/{name}/cancel").status_code == 404


def test_the_completion_of_another_key_is_unknown(
    start_gateway: StartGateway, start_worker: Callable[..., Worker], server: redis.Redis, tmp_path: Path
) -> None:
    start_worker(engine=slow_engine)
    gateway = start_gateway("--api-keys", str(write_keys(tmp_path / "keys", "alice", "bob")))
    with gateway.http() as http:
        with http.stream(
            "POST", "/v1/completions", json={**LONG, "stream": True, "store": True}, headers=bearer("alice")
        ) as response:
            name = events_in(next(line for line in response.iter_lines() if line.startswith("data: ")))[0][1]["id"]
        refused = http.post(f"/v1/completions/{name}/cancel", headers=bearer("bob"))
        without = http.post(f"/v1/completions/{name}/cancel")
        wait_until(lambda: end_of(server, name.removeprefix("cmpl-")))

    end = end_of(server, name.removeprefix("cmpl-"))
    assert end is not None
    assert (refused.status_code, without.status_code, end.reason) == (404, 401, "length")
