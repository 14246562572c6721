"""Batches that outlive gateways, workers and Redis. Each gateway that is there may take over: none is shared."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import redis
from minilab_worker.worker import Worker
from support.engines import slow_engine
from support.own_service import LIMIT, OwnService
from support.waiting import wait_until

from gateway.batch_files import COMPLETIONS, begin, ended, jobs_in, jsonl, line, long_lines, outcomes, wait_for_answers
from gateway.conftest import StartGateway
from gateway.gateway_process import Gateway
from minilab_gen.protocol import keys


@pytest.mark.parametrize("moment", ["taken", "under way"])
def test_another_gateway_goes_on_with_a_batch_whose_gateway_was_killed(
    start_gateway: StartGateway, start_worker: Callable[..., Worker], server: redis.Redis, moment: str
) -> None:
    start_worker(2, engine=slow_engine)
    gateways = [start_gateway(), start_gateway()]
    client = gateways[0].client()
    batch = begin(client, jsonl(long_lines(24, temperature=1)))
    wait_until(lambda: any(f"{batch.id} is driven here" in gateway.said for gateway in gateways), LIMIT)
    if moment == "under way":
        wait_for_answers(client, batch, 3)
    (first,) = (gateway for gateway in gateways if f"{batch.id} is driven here" in gateway.said)
    (second,) = (gateway for gateway in gateways if gateway is not first)
    first.kill()
    if moment == "taken":
        server.delete(keys.batch_driver(batch.id))  # as its lease would expire, later
    client = second.client()
    assert client.batches.retrieve(batch.id).status != "completed"

    batch = ended(client, batch)

    assert batch.status == "completed"
    answers, errors = outcomes(client, batch)
    assert (len(answers), errors) == (24, {})
    assert len(jobs_in(server)) == 24  # none of them twice
    assert f"batch {batch.id} is driven here" in second.said


def test_a_gateway_that_ends_hands_its_batches_over(
    start_gateway: StartGateway, start_worker: Callable[..., Worker], server: redis.Redis
) -> None:
    start_worker(4, engine=slow_engine)
    first = start_gateway()
    batch = begin(first.client(), jsonl(long_lines(24)))
    wait_for_answers(first.client(), batch, 3)
    client = start_gateway().client()

    first.process.terminate()
    first.process.wait(LIMIT)
    batch = ended(client, batch)

    assert len(outcomes(client, batch)[0]) == 24
    assert len(jobs_in(server)) == 24


def test_a_gateway_that_stood_still_writes_nothing_behind_its_successor(
    start_gateway: StartGateway, start_worker: Callable[..., Worker], server: redis.Redis
) -> None:
    start_worker(4, engine=slow_engine)
    first = start_gateway()
    batch = begin(first.client(), jsonl(long_lines(30)))
    wait_for_answers(first.client(), batch, 3)
    second = start_gateway()
    client = second.client()

    first.process.send_signal(signal.SIGSTOP)
    server.delete(keys.batch_driver(batch.id))  # as its lease would expire, later
    try:
        batch = ended(client, batch)
    finally:
        first.process.send_signal(signal.SIGCONT)
    wait_until(lambda: "driven by another gateway" in first.said or "has ended" in first.said, LIMIT)

    answers, errors = outcomes(client, batch)
    assert (len(answers), errors) == (30, {})
    assert len(jobs_in(server)) == 30


def test_a_batch_goes_on_through_the_kill_of_its_worker_its_gateway_and_of_redis(
    own_service: OwnService, tmp_path: Path
) -> None:
    own_service.fleet.start_and_wait()
    asked = [line(f"n{number}", prompt=[5, number], max_tokens=40, ignore_eos=True) for number in range(40)]
    with (
        Gateway(own_service.server.url, tmp_path / "first", "--batch-jobs", "8") as first,
        Gateway(own_service.server.url, tmp_path / "second", "--batch-jobs", "8") as second,
    ):
        client = second.client(max_retries=5)
        batch = begin(client, jsonl(asked))
        wait_for_answers(client, batch, 7)
        for worker in own_service.fleet.workers:
            worker.kill()
        own_service.fleet.start_and_wait()
        wait_for_answers(client, batch, 15)
        own_service.server.terminate()
        own_service.server.start()
        wait_for_answers(client, batch, 20)
        first.kill()
        batch = ended(client, batch, LIMIT)

        answers, errors = outcomes(client, batch)
        assert (len(answers), errors) == (40, {})
        for each in asked[:5]:
            with second.http() as http:
                direct = http.post(COMPLETIONS, json=each["body"]).json()
            assert answers[each["custom_id"]]["response"]["body"]["choices"] == direct["choices"]
    assert len(jobs_in(own_service.connection)) >= 40
