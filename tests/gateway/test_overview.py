"""``/service`` and ``/service/jobs``: how workers and queues stand, and what a key's own jobs are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import redis
from minilab_worker.worker import Worker
from support.engines import slow_engine
from support.waiting import wait_until

from gateway.conftest import StartGateway
from gateway.gateway_process import Gateway
from gateway.test_access import ASKED, KEYS, bearer, write_keys
from minilab_gen.protocol import keys
from minilab_gen.protocol.submission import Submission, enqueue
from minilab_gen.request import GenerationRequest


def test_workers_are_shown_with_their_slots_and_speed(
    shared_gateway: Gateway, start_worker: Callable[..., Worker], server: redis.Redis
) -> None:
    start_worker(max_batch=1, engine=slow_engine)
    for _ in range(20):
        enqueue(server, GenerationRequest((5, 6), max_new_tokens=110), Submission())
    with shared_gateway.http() as http:
        wait_until(lambda: (http.get("/service").json()["workers"] or [{"used": 0}])[0]["used"] == 1)
        wait_until(lambda: http.get("/service").json()["workers"][0]["tokens_per_second"] > 0)
        seen = http.get("/service").json()

    (worker,) = seen["workers"]
    assert (worker["model"], worker["state"], worker["slots"]) == ("base", "up", 1)
    assert worker["tokens"] > 0
    (model,) = seen["models"]
    assert (model["id"], model["running"]) == ("base", 1)
    assert 0 < model["queued"] < 20


def test_jobs_are_listed_with_their_progress_newest_first(gateway: Gateway) -> None:
    first = gateway.complete(**ASKED)
    many = gateway.complete(**ASKED, n=3)
    with gateway.http() as http:
        listed = http.get("/service/jobs").json()["data"]
        one = http.get("/service/jobs", params={"limit": 1}).json()["data"]
        again = http.get(f"/v1/completions/{listed[0]['id']}").json()

    assert [job["id"] for job in listed] == [many.id, first.id]
    assert one == listed[:1]
    assert {name: listed[0][name] for name in ("route", "state", "end", "answers", "tokens", "max_tokens")} == {
        "route": "text",
        "state": "finished",
        "end": "length",
        "answers": 3,
        "tokens": 9,
        "max_tokens": 9,
    }
    assert [choice["text"] for choice in again["choices"]] == [choice.text for choice in many.choices]


def test_a_key_sees_its_own_jobs_and_its_models_workers_only(
    start_gateway: StartGateway, start_worker: Callable[..., Worker], server: redis.Redis, tmp_path: Path
) -> None:
    start_worker()
    file = write_keys(tmp_path / "keys", "alice", "bob")
    file.write_text(
        "\n".join(f"{line} models=other" if "bob" in line else line for line in file.read_text().split("\n"))
    )
    gateway = start_gateway("--api-keys", str(file))
    enqueue(server, GenerationRequest((5, 6), max_new_tokens=2), Submission())
    with gateway.http() as http:
        made = http.post("/v1/completions", json=ASKED, headers=bearer("alice")).json()
        jobs = {name: http.get("/service/jobs", headers=bearer(name)).json()["data"] for name in KEYS}
        wait_until(lambda: http.get("/service", headers=bearer("alice")).json()["workers"])
        foreign = http.get("/service", headers=bearer("bob")).json()

    assert {name: [job["id"] for job in listed] for name, listed in jobs.items()} == {"alice": [made["id"]], "bob": []}
    assert (foreign["workers"], foreign["models"]) == ([], [])


@pytest.mark.parametrize("limit", ["0", "101", "x", "-1", "9" * 5000])
def test_a_limit_that_breaks_the_rule_is_refused(shared_gateway: Gateway, server: redis.Redis, limit: str) -> None:
    with shared_gateway.http() as http:
        answer = http.get("/service/jobs", params={"limit": limit})

    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "limit")


def test_a_worker_whose_lease_has_expired_is_shown_as_lost(
    shared_gateway: Gateway, start_worker: Callable[..., Worker], server: redis.Redis
) -> None:
    start_worker()
    with shared_gateway.http() as http:
        wait_until(lambda: [worker["state"] for worker in http.get("/service").json()["workers"]] == ["up"])
        name = http.get("/service").json()["workers"][0]["name"]
        server.sadd("rq:workers", "rq:worker:minilab-lost")
        server.hset("rq:worker:minilab-lost", "queues", keys.queue_name("base"))
        wait_until(lambda: len(http.get("/service").json()["workers"]) == 2)
        states = {worker["name"]: worker["state"] for worker in http.get("/service").json()["workers"]}

    assert states == {name: "up", "minilab-lost": "lost"}
