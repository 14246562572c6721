"""A worker whose commands reach Redis and whose answers do not: no job is lost, and none is recorded twice."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import redis
from chaos.proxy import Proxy
from minilab_worker.serving import ServedModel
from support.reclaimed_jobs import (
    JOB,
    StartWorker,
    assert_answered_once,
    queue_of,
    results,
    status,
    workers_in_threads,
)
from support.waiting import wait_until

from minilab_gen.protocol import keys
from minilab_gen.protocol.submission import Submission, enqueue

pytestmark = pytest.mark.slow


@pytest.fixture
def proxy(server: redis.Redis, server_url: str) -> Iterator[Proxy]:
    """A way to the server on which answers get lost."""
    with TemporaryDirectory(prefix="ml-") as folder:
        socket = Path(server_url.removeprefix("unix://").partition("?")[0])
        with Proxy(Path(folder, "s"), socket, random.Random(1)) as proxy:
            yield proxy


@pytest.fixture
def start(served: ServedModel, proxy: Proxy) -> Iterator[StartWorker]:
    """Start workers in threads; all are stopped before the proxy."""
    with workers_in_threads(served) as start:
        yield start


@pytest.mark.parametrize(
    "words",
    [b"rq:queue:minilab.base:intermediate", b"\r\nnext\r\n", b"\r\nend\r\n", b"\r\nfinished\r\n"],
    ids=["claim", "token", "end", "record"],
)
def test_an_answer_that_gets_lost_changes_nothing(
    server: redis.Redis, served: ServedModel, start: StartWorker, proxy: Proxy, words: bytes
) -> None:
    job_id = enqueue(server, JOB, Submission())
    proxy.lose_the_answer_to(words)

    worker = start(proxy.url)

    assert_answered_once(server, served, job_id)
    assert proxy.is_sprung
    wait_until(lambda: worker.done >= 1)
    counted = server.hget(f"rq:worker:{worker.name}", "successful_job_count")
    assert counted == b"1"


def test_a_lost_answer_to_the_record_of_a_failure_does_not_record_it_twice(
    server: redis.Redis, start: StartWorker, proxy: Proxy
) -> None:
    start(proxy.url)
    proxy.lose_the_answer_to(b"\r\nfailed\r\n")

    job_id = queue_of(server).enqueue_call(keys.TASK, args=({"prompt": []},)).id

    wait_until(lambda: status(server, job_id) == "failed")
    wait_until(lambda: not server.keys("rq:execution*"))
    assert proxy.is_sprung
    assert results(server, job_id) == 1
