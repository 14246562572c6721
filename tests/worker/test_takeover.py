"""Workers that are killed or paused, as processes: another continues their jobs, and readers notice a pause at most."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import timedelta

import pytest
from chaos.fleet import FAST_KERNELS, LEASE
from chaos.server import BINARY
from rq.executions import Execution
from rq.registry import StartedJobRegistry
from rq.utils import now
from support.own_process import own_process
from support.own_service import LIMIT, LONG, OwnService
from support.waiting import wait_until

from minilab_gen.protocol import keys
from minilab_gen.protocol.events import EndEvent, TokenEvent
from minilab_gen.protocol.jobs import fetch
from minilab_gen.protocol.tail import tail
from minilab_gen.request import GenerationRequest, SamplingSettings

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(BINARY is None, reason="needs redis-server or valkey-server on the PATH"),
]

SAMPLED = replace(
    LONG,
    settings=SamplingSettings(
        temperature=0.9, top_k=50, top_p=0.95, seed=7, min_p=0.01, repetition_penalty=1.2, frequency_penalty=0.3
    ),
)
"""With settings that count what was said before."""

SLOW_MACHINE = 20.0
"""Seconds beyond what is promised that a loaded machine may take."""


def tail_program(service: OwnService, job_id: str) -> AbstractContextManager[subprocess.Popen[str]]:
    """``minilab-client tail``, which ends with the job."""
    return own_process(
        [sys.executable, "-m", "minilab_client", "tail", job_id],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        env={**os.environ, "MINILAB_REDIS_URL": service.server.url, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


def test_a_reader_gets_one_unbroken_text_when_the_only_worker_is_killed(own_service: OwnService) -> None:
    worker = own_service.fleet.start_and_wait()
    job_id = own_service.submit()
    with tail_program(own_service, job_id) as reader:
        own_service.wait_for_token(job_id, 20)

        worker.kill()
        seen = own_service.tokens(job_id)
        own_service.fleet.start(kernels=FAST_KERNELS)
        printed, complaints = reader.communicate(timeout=LIMIT)

    assert 20 <= seen < LONG.max_new_tokens
    own_service.assert_answered(job_id)
    text = "".join(event.text for event in own_service.stream(job_id))
    assert printed.rstrip("\n") == text.rstrip("\n")
    assert (reader.returncode, "Traceback" in complaints) == (0, False)


def test_a_worker_with_other_kernels_goes_on_with_the_same_bits(own_service: OwnService) -> None:
    """As on another kind of processor: equal fingerprints, whatever computes."""
    plain = own_service.fleet.start_and_wait(kernels="plain")
    job_id = own_service.submit(SAMPLED)
    own_service.wait_for_token(job_id, 20)

    plain.kill()
    seen = own_service.tokens(job_id)
    own_service.fleet.start(kernels=FAST_KERNELS)
    own_service.wait_for_status(job_id, "finished")

    assert 20 <= seen < SAMPLED.max_new_tokens
    own_service.assert_answered(job_id, SAMPLED)


def test_another_worker_goes_on_within_the_lease(own_service: OwnService, capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):
        own_service.fleet.start()
    for worker in own_service.fleet.workers:
        own_service.fleet.wait_until_serving(worker)
    job_id = own_service.submit()
    own_service.wait_for_token(job_id, 20)

    own_service.holder(job_id).kill()
    killed, seen = time.monotonic(), own_service.tokens(job_id)
    own_service.wait_for_token(job_id, seen + 1)
    pause = time.monotonic() - killed

    with capsys.disabled():
        print(f" [{pause:.1f} s from kill -9 to the next token, lease {LEASE} s]", end="")
    assert pause < LEASE + 2 + SLOW_MACHINE
    own_service.wait_for_status(job_id, "finished")
    own_service.assert_answered(job_id)
    own_service.assert_nothing_is_left()


def test_a_worker_that_slept_through_its_lease_changes_nothing(own_service: OwnService) -> None:
    for _ in range(2):
        own_service.fleet.start()
    for worker in own_service.fleet.workers:
        own_service.fleet.wait_until_serving(worker)
    job_id = own_service.submit()
    own_service.wait_for_token(job_id, 20)

    sleeper = own_service.holder(job_id)
    sleeper.sleep()
    assert own_service.tokens(job_id) < LONG.max_new_tokens, "the job must last longer than that"
    own_service.wait_for_status(job_id, "finished")
    whole = own_service.stream(job_id)
    sleeper.wake()
    wait_until(lambda: "another worker has taken the job over" in sleeper.said, LIMIT)
    own_service.fleet.stop_all()

    assert own_service.stream(job_id) == whole
    own_service.assert_answered(job_id)
    assert own_service.successes() == 1
    assert [worker.exit_code for worker in own_service.fleet.workers] == [0, 0]
    assert own_service.connection.get(keys.expired_leases(job_id)) == b"0", "a worker that only slept is not counted"


def test_a_job_that_kills_its_worker_three_times_is_failed(own_service: OwnService) -> None:
    job_id = own_service.submit()
    for _ in range(3):
        worker = own_service.fleet.start_and_wait()
        own_service.wait_for_holder(job_id, worker)
        worker.kill()
        own_service.connection.delete(keys.worker_lease(name_of_holder(own_service, job_id)))  # its end is not awaited
    own_service.fleet.start(kernels=FAST_KERNELS)
    *_, end = tail(own_service.connection, job_id)

    assert isinstance(end, EndEvent)
    assert (end.reason, end.error) == ("error", "3 workers lost their lease while they ran this job")
    own_service.wait_for_status(job_id, "failed")
    own_service.assert_nothing_is_left()


def name_of_holder(service: OwnService, job_id: str) -> str:
    return str(fetch(service.connection, job_id).worker_name)


def test_a_killed_worker_starts_again_at_once_on_the_same_host(own_service: OwnService) -> None:
    own_service.fleet.start_and_wait().kill()

    own_service.fleet.start_and_wait(kernels=FAST_KERNELS)
    job_id = own_service.submit(GenerationRequest((1,), 3))

    own_service.wait_for_status(job_id, "finished")
    own_service.assert_nothing_is_left()


def test_a_job_that_was_claimed_and_never_started_goes_back_to_its_queue(own_service: OwnService) -> None:
    job_id = own_service.submit()
    queue = own_service.queue
    own_service.connection.lmove(queue.key, queue.intermediate_queue_key)  # what a worker does before it is killed

    worker = own_service.fleet.start_and_wait(kernels=FAST_KERNELS)
    own_service.wait_for_status(job_id, "finished")

    own_service.assert_answered(job_id)
    assert f"{job_id}: claimed and never started" in worker.said
    own_service.assert_nothing_is_left()


def test_a_job_of_a_dead_ordinary_rq_worker_is_taken_over(own_service: OwnService) -> None:
    job_id = own_service.submit()
    job = fetch(own_service.connection, job_id)
    with own_service.connection.pipeline() as pipeline:  # what rq.SimpleWorker does before it is killed
        Execution.create(job, 1, pipeline, worker_name="host.4711")
        job.prepare_for_execution("host.4711", pipeline)
        own_service.queue.remove(job, pipeline=pipeline)
        pipeline.execute()

    own_service.fleet.start(kernels=FAST_KERNELS)
    own_service.wait_for_status(job_id, "finished")

    own_service.assert_answered(job_id)
    own_service.assert_nothing_is_left()


def test_rq_does_not_fail_the_job_of_a_dead_worker_while_no_other_is_up(own_service: OwnService) -> None:
    """RQ looks for jobs without a heartbeat whenever a program looks at its registry, ``rq info`` for instance."""
    worker = own_service.fleet.start_and_wait()
    job_id = own_service.submit()
    own_service.wait_for_token(job_id, 5)
    worker.kill()

    later = now() + timedelta(hours=12)
    StartedJobRegistry(queue=own_service.queue).cleanup(int(later.timestamp()))

    assert own_service.status(job_id) == "started"
    own_service.fleet.start(kernels=FAST_KERNELS)
    own_service.wait_for_status(job_id, "finished")
    own_service.assert_answered(job_id)


def test_a_reader_who_resumes_after_a_takeover_misses_nothing(own_service: OwnService) -> None:
    worker = own_service.fleet.start_and_wait()
    job_id = own_service.submit()
    first = []
    for event in tail(own_service.connection, job_id):
        first.append(event)
        if event.number == 20:
            break
    worker.kill()
    own_service.fleet.start(kernels=FAST_KERNELS)

    rest = list(tail(own_service.connection, job_id, after=20))

    assert first + rest == own_service.stream(job_id)
    assert all(isinstance(event, TokenEvent) for event in first)
