"""What a gateway writes about the lines of a batch arrives late, or its answer is lost: each line is there once."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import pytest
import redis
from chaos.proxy import Proxy
from minilab_worker.worker import Worker
from support.engines import slow_engine
from support.own_service import LIMIT
from support.waiting import wait_until

from gateway.batch_files import begin, ended, jobs_in, jsonl, long_lines, outcomes
from gateway.conftest import StartGateway

RECORD: Final = b"call('SADD'"
"""Of the script that writes about a line."""


@pytest.fixture
def proxy(server: redis.Redis, server_url: str) -> Iterator[Proxy]:
    with TemporaryDirectory(prefix="ml-") as folder:
        socket = Path(server_url.removeprefix("unix://").partition("?")[0])
        with Proxy(Path(folder, "s"), socket, random.Random(1)) as proxy:
            yield proxy


def test_what_a_gateway_wrote_before_it_stood_still_for_its_lease_arrives_too_late(
    start_gateway: StartGateway, start_worker: Callable[..., Worker], server: redis.Redis, proxy: Proxy
) -> None:
    start_worker(4, engine=slow_engine)
    first = start_gateway(url=proxy.url)
    proxy.hold_the_question_with(RECORD)
    batch = begin(first.client(), jsonl(long_lines(10)))
    wait_until(lambda: proxy.is_holding, LIMIT)

    first.process.send_signal(signal.SIGSTOP)
    try:
        client = start_gateway().client()
        batch = ended(client, batch)
        assert batch.output_file_id is not None
        written = client.files.content(batch.output_file_id).read()
        proxy.let_go()
        wait_until(lambda: not proxy.is_holding)
    finally:
        first.process.send_signal(signal.SIGCONT)
    wait_until(lambda: "driven by another gateway" in first.said or "has ended" in first.said, LIMIT)

    assert client.files.content(batch.output_file_id).read() == written
    answers, errors = outcomes(client, batch)
    assert (len(answers), errors) == (10, {})
    assert len(jobs_in(server)) == 10


def test_a_line_whose_record_is_sent_again_as_its_answer_was_lost_is_written_once(
    start_gateway: StartGateway, start_worker: Callable[..., Worker], server: redis.Redis, proxy: Proxy
) -> None:
    start_worker(4, engine=slow_engine)
    client = start_gateway(url=proxy.url).client()
    proxy.lose_the_answer_to(RECORD)

    batch = ended(client, begin(client, jsonl(long_lines(10))))

    assert proxy.is_sprung
    answers, errors = outcomes(client, batch)
    assert (len(answers), errors) == (10, {})
    assert batch.request_counts is not None
    assert batch.request_counts.completed == 10
