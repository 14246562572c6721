"""SIGTERM: a worker finishes what it can, gives the rest back in order, and leaves with exit code 0."""

from __future__ import annotations

from pathlib import Path

import pytest
from chaos.fleet import FAST_KERNELS
from chaos.server import BINARY
from support.own_service import LIMIT, LONG, OwnService
from support.waiting import wait_until

from minilab_gen.protocol import keys

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(BINARY is None, reason="needs redis-server or valkey-server on the PATH"),
]


def all_run(service: OwnService, job_ids: list[str]) -> bool:
    return all(service.tokens(job_id) >= 2 for job_id in job_ids)


def test_running_jobs_are_finished_and_no_other_is_begun(own_service: OwnService) -> None:
    worker = own_service.fleet.start_and_wait("--grace", "100")
    running = [own_service.submit() for _ in range(4)]
    wait_until(lambda: all_run(own_service, running), LIMIT)

    worker.terminate()
    wait_until(lambda: "no new jobs" in worker.said, LIMIT)
    late = own_service.submit()

    assert worker.wait() == 0
    for job_id in running:
        own_service.assert_answered(job_id)
    assert (own_service.status(late), own_service.queue.get_job_ids()) == ("queued", [late])


def test_what_is_not_finished_in_the_grace_time_goes_back_to_the_head_of_the_queue(own_service: OwnService) -> None:
    worker = own_service.fleet.start_and_wait("--grace", "0.1")
    jobs = [own_service.submit() for _ in range(10)]  # two more than there are slots
    running, waiting = jobs[:8], jobs[8:]
    wait_until(lambda: all_run(own_service, running), LIMIT)

    worker.terminate()
    assert worker.wait() == 0

    assert own_service.queue.get_job_ids() == running + waiting
    assert {own_service.status(job_id) for job_id in jobs} == {"queued"}
    assert own_service.connection.exists(*map(keys.expired_leases, running)) == 0, "none has expired"
    assert own_service.connection.keys("rq:execution*") == []
    own_service.fleet.start(kernels=FAST_KERNELS)
    for job_id in jobs:
        own_service.wait_for_status(job_id, "finished")
        own_service.assert_answered(job_id)
    own_service.assert_nothing_is_left()


def test_a_second_sigterm_ends_it_at_once_without_loss(own_service: OwnService) -> None:
    worker = own_service.fleet.start_and_wait("--grace", "100")
    running = [own_service.submit() for _ in range(8)]
    wait_until(lambda: all_run(own_service, running), LIMIT)

    worker.terminate()
    wait_until(lambda: "no new jobs" in worker.said, LIMIT)
    worker.terminate()
    assert worker.wait() == 0

    unfinished = [job_id for job_id in running if own_service.status(job_id) != "finished"]
    assert own_service.queue.get_job_ids() == unfinished
    assert unfinished, "the jobs must last longer than that"
    own_service.fleet.start(kernels=FAST_KERNELS)
    for job_id in running:
        own_service.wait_for_status(job_id, "finished")
        own_service.assert_answered(job_id)


def test_sigterm_while_the_model_is_loaded_ends_it(own_service: OwnService) -> None:
    """As process 1 of a container it would ignore a signal for which it has not asked."""
    worker = own_service.fleet.start()
    wait_until(lambda: has_asked_for_sigterm(worker.pid), LIMIT)

    worker.terminate()

    assert worker.wait() == 0
    assert "Traceback" not in worker.said
    assert not worker.is_serving


def has_asked_for_sigterm(pid: int) -> bool:
    """Whether a process handles SIGTERM itself, by Linux's account."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    caught = next(line for line in status if line.startswith("SigCgt:")).split()[1]
    return bool(int(caught, 16) & 1 << (15 - 1))


def test_a_job_that_is_returned_has_a_line_and_keeps_its_tokens(own_service: OwnService) -> None:
    worker = own_service.fleet.start_and_wait("--grace", "0")
    job_id = own_service.submit(LONG)
    own_service.wait_for_token(job_id, 20)

    worker.terminate()
    assert worker.wait() == 0
    kept = own_service.stream(job_id)
    assert f"{job_id}: returned after token {len(kept)}" in worker.said
    assert " exits: 0 jobs ended, 1 requeued" in worker.said
    own_service.fleet.start(kernels=FAST_KERNELS)
    own_service.wait_for_status(job_id, "finished")

    assert own_service.stream(job_id)[: len(kept)] == kept
    own_service.assert_answered(job_id)
