"""Batches that are cancelled, that run out of time, and that outlive gateways, workers and Redis."""

from __future__ import annotations

import hashlib
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import openai
import pytest
import redis
from minilab_worker.worker import Worker
from openai.types import Batch
from rq.job import Job
from support.engines import slow_engine, very_slow_engine
from support.own_service import LIMIT, OwnService
from support.waiting import wait_until

from gateway.batch_files import COMPLETIONS, begin, ended, errors_of, jsonl, line, outcomes
from gateway.conftest import StartGateway
from gateway.gateway_process import Gateway
from minilab_gen.protocol import keys
from minilab_gen.protocol.jobs import queue_of
from minilab_gen.protocol.streams import end_of

LONG: dict[str, Any] = {"max_tokens": 60, "ignore_eos": True}


def long_lines(count: int, **more: Any) -> list[dict[str, Any]]:
    return [line(f"n{number}", prompt=[5, number], **LONG, **more) for number in range(count)]


def counts(client: openai.OpenAI, batch: Batch) -> dict[str, int]:
    found = client.batches.retrieve(batch.id).request_counts
    assert found is not None
    return {"total": found.total, "completed": found.completed, "failed": found.failed}


def wait_for_answers(client: openai.OpenAI, batch: Batch, count: int) -> None:
    wait_until(lambda: counts(client, batch)["completed"] >= count, LIMIT)


def jobs_in(connection: redis.Redis) -> list[str]:
    prefix = Job.key_for("")
    found: list[bytes] = list(connection.scan_iter(match=f"{prefix}*"))
    return [key.decode().removeprefix(prefix) for key in found]


# cancelled, and out of time


def test_a_cancelled_batch_keeps_what_has_finished(
    shared_gateway: Gateway, start_worker: Callable[..., Worker]
) -> None:
    start_worker(2, engine=slow_engine)
    client = shared_gateway.client()
    batch = begin(client, jsonl(long_lines(40)))
    wait_for_answers(client, batch, 5)

    cancelling = client.batches.cancel(batch.id)
    assert cancelling.status in ("cancelling", "cancelled")
    batch = ended(client, batch)

    assert batch.status == "cancelled"
    assert batch.cancelling_at is not None
    assert batch.cancelled_at is not None
    answers, errors = outcomes(client, batch)
    assert {*answers, *errors} == {f"n{number}" for number in range(40)}
    assert 5 <= len(answers) < 40
    assert {each["error"]["code"] for each in errors.values()} == {"batch_cancelled"}
    assert {each["response"] for each in errors.values()} == {None}
    assert counts(client, batch) == {"total": 40, "completed": len(answers), "failed": len(errors)}
    with pytest.raises(openai.ConflictError):
        client.batches.cancel(batch.id)


def test_what_runs_as_a_batch_is_cancelled_stops_in_its_middle(
    shared_gateway: Gateway, start_worker: Callable[..., Worker], server: redis.Redis
) -> None:
    start_worker(2, engine=very_slow_engine)
    client = shared_gateway.client()
    batch = begin(client, jsonl(long_lines(10, n=2)))
    wait_until(lambda: len(list(server.scan_iter(match=keys.token_stream("*")))) >= 2)

    client.batches.cancel(batch.id)
    assert ended(client, batch).status == "cancelled"

    found = [end_of(server, job_id) for job_id in jobs_in(server)]
    assert len(found) == 20
    for end in found:
        assert end is not None
        assert end.reason == "cancelled"
        assert end.tokens < 60
    assert queue_of(server, keys.queue_name("base", "low")).job_ids == []


def test_a_batch_that_is_cancelled_at_once_ends(shared_gateway: Gateway, start_worker: Callable[..., Worker]) -> None:
    start_worker(2, engine=slow_engine)
    client = shared_gateway.client()
    batch = begin(client, jsonl(long_lines(20)))
    client.batches.cancel(batch.id)

    batch = ended(client, batch)

    assert batch.status == "cancelled"
    answers, errors = outcomes(client, batch)
    assert len(answers) + len(errors) == counts(client, batch)["total"]


@pytest.mark.parametrize("has_worker", [True, False])
def test_a_batch_whose_window_is_over_keeps_what_has_finished(
    start_gateway: StartGateway, start_worker: Callable[..., Worker], server: redis.Redis, has_worker: bool
) -> None:
    worker = start_worker(1, engine=slow_engine)
    if not has_worker:
        worker.stop()
    client = start_gateway("--batch-window", "3").client()

    batch = ended(client, begin(client, jsonl(long_lines(60))))

    assert batch.status == "expired"
    assert batch.expired_at is not None
    answers, errors = outcomes(client, batch)
    assert {*answers, *errors} == {f"n{number}" for number in range(60)}
    assert len(errors) > 0
    assert bool(answers) == has_worker
    assert {each["error"]["code"] for each in errors.values()} == {"batch_expired"}
    assert queue_of(server, keys.queue_name("base", "low")).job_ids == []


def test_a_batch_whose_input_is_lost_fails(
    shared_gateway: Gateway, start_worker: Callable[..., Worker], server: redis.Redis
) -> None:
    start_worker(1, engine=slow_engine)
    client = shared_gateway.client()
    batch = begin(client, jsonl(long_lines(300)))
    wait_for_answers(client, batch, 1)

    server.delete(keys.file_parts(batch.input_file_id))
    server.delete(keys.batch_driver(batch.id))
    server.set(keys.batch_driver(batch.id), "another gateway, which is then killed", px=100)
    batch = ended(client, batch)

    assert batch.status == "failed"
    assert errors_of(batch) == [("input_file_lost", None)]
    assert len(outcomes(client, batch)[0]) >= 1


# what a key may do, and what others wait for


@contextmanager
def locked(
    start_gateway: StartGateway, folder: Path, options: str = ""
) -> Iterator[tuple[openai.OpenAI, openai.OpenAI]]:
    """The clients of two keys, of which the first has options."""
    hashes = [hashlib.sha256(name.encode()).hexdigest() for name in ("alice", "bob")]
    file = folder / "keys"
    file.write_text(f"alice sha256:{hashes[0]} {options}\nbob sha256:{hashes[1]}\n")
    gateway = start_gateway("--api-keys", str(file))
    yield gateway.client("alice"), gateway.client("bob")


def test_a_key_finds_only_its_own_files_and_batches(
    start_gateway: StartGateway, start_worker: Callable[..., Worker], tmp_path: Path
) -> None:
    start_worker()
    with locked(start_gateway, tmp_path) as (hers, his):
        batch = ended(hers, begin(hers, jsonl([line("a")])))
        assert batch.output_file_id is not None
        calls: list[tuple[Any, str]] = [
            (call, file_id)
            for file_id in (batch.input_file_id, batch.output_file_id)
            for call in (his.files.retrieve, his.files.content, his.files.delete)
        ]
        for call, name in [*calls, (his.batches.retrieve, batch.id), (his.batches.cancel, batch.id)]:
            with pytest.raises(openai.NotFoundError):
                call(name)
        with pytest.raises(openai.NotFoundError):
            his.batches.create(input_file_id=batch.input_file_id, endpoint=COMPLETIONS, completion_window="24h")
        assert (his.files.list().data, his.batches.list().data) == ([], [])
        assert len(hers.files.list().data) == 2
        assert [each.id for each in hers.batches.list()] == [batch.id]


def test_the_limits_of_a_key_hold_for_its_batches(
    start_gateway: StartGateway, start_worker: Callable[..., Worker], server: redis.Redis, tmp_path: Path
) -> None:
    start_worker(8, engine=slow_engine)
    most = 0
    with locked(start_gateway, tmp_path, "jobs=3 models=base") as (hers, _):
        other = ended(hers, begin(hers, jsonl([line("a", model="other")])))
        batches = [begin(hers, jsonl(long_lines(12))) for _ in range(2)]
        while any(hers.batches.retrieve(batch.id).status != "completed" for batch in batches):
            open_jobs = [job_id for job_id in jobs_in(server) if end_of(server, job_id) is None]
            most = max(most, len(open_jobs))

    assert errors_of(other) == [("model_not_found", 1)]
    assert 1 <= most <= 3


def test_whoever_waits_for_an_answer_comes_before_a_batch(
    start_gateway: StartGateway, start_worker: Callable[..., Worker], server: redis.Redis
) -> None:
    start_worker(2, engine=slow_engine)
    gateway = start_gateway("--batch-jobs", "16")
    client = gateway.client()
    batch = begin(client, jsonl(long_lines(60)))
    wait_for_answers(client, batch, 1)

    assert len(queue_of(server, keys.queue_name("base", "low")).job_ids) <= 16
    gateway.complete(model="base", prompt=[7], max_tokens=2)
    assert counts(client, batch)["completed"] < 30
    client.batches.cancel(batch.id)
    ended(client, batch)


# killed


@pytest.mark.parametrize("seconds_on", ["uploaded", "under way"])
def test_another_gateway_goes_on_with_a_batch_whose_gateway_was_killed(
    start_gateway: StartGateway, start_worker: Callable[..., Worker], server: redis.Redis, seconds_on: str
) -> None:
    start_worker(4, engine=slow_engine)
    first = start_gateway()
    batch = begin(first.client(), jsonl(long_lines(40, temperature=1)))
    second = start_gateway()
    if seconds_on == "under way":
        wait_for_answers(first.client(), batch, 5)
    first.kill()
    client = second.client()

    batch = ended(client, batch)

    assert batch.status == "completed"
    answers, errors = outcomes(client, batch)
    assert (len(answers), errors) == (40, {})
    assert len(jobs_in(server)) == 40  # none of them twice
    assert f"batch {batch.id} is driven here" in second.said


def test_a_gateway_that_ends_hands_its_batches_over(
    start_gateway: StartGateway, start_worker: Callable[..., Worker], server: redis.Redis
) -> None:
    start_worker(4, engine=slow_engine)
    first = start_gateway()
    batch = begin(first.client(), jsonl(long_lines(40)))
    wait_for_answers(first.client(), batch, 3)
    client = start_gateway().client()

    first.process.terminate()
    first.process.wait(LIMIT)
    batch = ended(client, batch)

    assert len(outcomes(client, batch)[0]) == 40
    assert len(jobs_in(server)) == 40


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
            direct = second.complete(**{**each["body"], "model": "base"}).to_dict()
            assert answers[each["custom_id"]]["response"]["body"]["choices"] == direct["choices"]
    assert len(jobs_in(own_service.connection)) >= 40
