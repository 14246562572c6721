"""Batches that are cancelled or run out of time, and what those of other keys and requests see of them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import openai
import pytest
import redis
from minilab_worker.worker import Worker
from support.engines import slow_engine, very_slow_engine
from support.waiting import wait_until

from gateway.batch_files import (
    COMPLETIONS,
    begin,
    counts,
    ended,
    errors_of,
    jobs_in,
    jsonl,
    line,
    long_lines,
    outcomes,
    wait_for_answers,
)
from gateway.conftest import StartGateway
from gateway.gateway_process import Gateway
from minilab_gen.protocol import keys
from minilab_gen.protocol.jobs import queue_of
from minilab_gen.protocol.streams import end_of

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
        assert end.tokens < 30
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
    start_gateway: StartGateway, start_worker: Callable[..., Worker], server: redis.Redis
) -> None:
    start_worker(2, engine=slow_engine)
    client = start_gateway("--batch-jobs", "4").client()
    batch = begin(client, jsonl(long_lines(100)))
    wait_for_answers(client, batch, 1)

    server.delete(keys.file_parts(batch.input_file_id))
    server.set(keys.batch_driver(batch.id), "another gateway, which is then killed", px=2000)
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
    gateway = start_gateway("--batch-jobs", "50")
    client = gateway.client()
    batch = begin(client, jsonl(long_lines(80)))
    wait_for_answers(client, batch, 1)

    assert 0 < len(queue_of(server, keys.queue_name("base", "low")).job_ids) <= 50
    gateway.complete(model="base", prompt=[7], max_tokens=2)
    assert counts(client, batch)["completed"] < 30
    client.batches.cancel(batch.id)
    ended(client, batch)
