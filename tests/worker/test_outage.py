"""Redis that comes late, goes away, comes back older, or is full: workers wait, and no token is missing or doubled."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from chaos.fleet import FAST_KERNELS
from chaos.server import BINARY
from rq.command import send_stop_job_command
from rq.serializers import JSONSerializer
from support.own_process import own_process
from support.own_service import LIMIT, LONG, OwnService
from support.waiting import wait_until

from minilab_gen.protocol.endings import cancel
from minilab_gen.request import GenerationRequest, SamplingSettings

pytestmark = pytest.mark.skipif(BINARY is None, reason="needs redis-server or valkey-server on the PATH")

_IMPATIENT = """
from minilab_worker import outage
outage.REDIS_LIMIT = 1.0
from minilab_worker.cli import main
main()
"""
"""``minilab-worker`` that waits one second instead of a minute."""


def some_requests(number: int) -> list[GenerationRequest]:
    return [
        GenerationRequest((number, 9), 10 + 5 * number, SamplingSettings(temperature=1.0, seed=number))
        for number in range(number)
    ]


@pytest.mark.parametrize("gently", [False, True], ids=["SIGKILL", "SIGTERM"])
def test_64_jobs_end_with_the_right_tokens_though_redis_is_restarted(own_service: OwnService, gently: bool) -> None:
    for _ in range(2):
        own_service.fleet.start()
    for worker in own_service.fleet.workers:
        own_service.fleet.wait_until_serving(worker)
    requests = some_requests(8) * 8
    jobs = [own_service.submit(request) for request in requests]
    time.sleep(2)  # longer than Redis, by its settings, keeps acknowledged writes in memory only
    wait_until(lambda: own_service.tokens(jobs[8]) > 0, LIMIT)

    if gently:
        own_service.server.terminate()
    else:
        own_service.server.kill()
    own_service.server.start()

    for job_id, request in zip(jobs, requests, strict=True):
        own_service.wait_for_status(job_id, "finished")
        own_service.assert_answered(job_id, request)
    own_service.fleet.stop_all()
    assert [worker.exit_code for worker in own_service.fleet.workers] == [0, 0]
    assert own_service.successes() == len(jobs)
    own_service.assert_nothing_is_left()


def test_a_worker_hears_commands_and_cancels_again_after_redis_was_restarted(own_service: OwnService) -> None:
    own_service.fleet.start_and_wait()
    own_service.server.terminate()
    own_service.server.start()
    wait_until(lambda: own_service.connection.pubsub_channels("rq:pubsub:*"), LIMIT)
    stopped, cancelled = own_service.submit(), own_service.submit()
    for job_id in (stopped, cancelled):
        own_service.wait_for_token(job_id, 3)

    send_stop_job_command(own_service.connection, stopped, serializer=JSONSerializer)
    cancel(own_service.connection, cancelled)

    for job_id in (stopped, cancelled):
        own_service.wait_for_status(job_id, "canceled")
        assert own_service.tokens(job_id) < LONG.max_new_tokens


def test_a_worker_that_is_there_before_redis_waits_and_then_works(own_service: OwnService) -> None:
    own_service.server.terminate()
    worker = own_service.fleet.start(kernels=FAST_KERNELS)
    wait_until(lambda: "waiting up to" in worker.said, LIMIT)

    own_service.server.start()
    own_service.fleet.wait_until_serving(worker)
    job_id = own_service.submit(GenerationRequest((1,), 3))

    own_service.wait_for_status(job_id, "finished")
    assert worker.said.count("waiting up to") == 1


@pytest.mark.parametrize("is_busy", [False, True], ids=["idle", "busy"])
def test_a_worker_gives_up_a_redis_that_stays_away_with_one_line(
    own_service: OwnService, slow_checkpoint: Path, is_busy: bool
) -> None:
    command = [sys.executable, "-c", _IMPATIENT, "--model", str(slow_checkpoint), "--redis-url", own_service.server.url]
    path = os.pathsep.join(sys.path)
    with own_process(
        [*command, "--name", "base", "--threads", "1", "--quiet"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    ) as worker:
        job_id = own_service.submit(LONG if is_busy else GenerationRequest((1,), 1))
        own_service.wait_for_token(job_id, 5 if is_busy else 1)
        if not is_busy:
            own_service.wait_for_status(job_id, "finished")

        own_service.server.kill()
        _, said = worker.communicate(timeout=LIMIT)

    assert worker.returncode == 4
    assert "Traceback" not in said
    (error,) = [line for line in said.splitlines() if line.startswith("error: ")]
    assert "Redis is unavailable" in error


@pytest.mark.parametrize(
    ("spoil", "mend"),
    [
        (("CONFIG", "SET", "maxmemory", "1"), ("CONFIG", "SET", "maxmemory", "0")),
        (("REPLICAOF", "127.0.0.1", "9"), ("REPLICAOF", "NO", "ONE")),
    ],
    ids=["full memory", "read-only"],
)
def test_a_redis_that_takes_no_writes_for_a_while_is_waited_for(
    own_service: OwnService, spoil: tuple[str, ...], mend: tuple[str, ...]
) -> None:
    worker = own_service.fleet.start_and_wait()
    job_id = own_service.submit()
    own_service.wait_for_token(job_id, 20)

    own_service.connection.execute_command(*spoil)
    wait_until(lambda: "refuses what is asked" in worker.said, LIMIT)
    own_service.connection.execute_command(*mend)

    own_service.wait_for_status(job_id, "finished")
    own_service.assert_answered(job_id)


def test_a_redis_that_comes_back_empty_gets_the_stream_written_whole_again(own_service: OwnService) -> None:
    own_service.fleet.start_and_wait()
    job_id = own_service.submit()
    own_service.wait_for_token(job_id, 20)

    own_service.connection.delete(f"minilab:tokens:{job_id}")

    wait_until(lambda: own_service.status(job_id) == "finished", LIMIT)
    own_service.assert_answered(job_id)
