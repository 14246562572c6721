"""Which worker holds a job and for how long: a live lease keeps it, a lost one lets it go to others soon."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import pytest
import redis
from minilab_worker.job_run import JobRun, JobState, JobTable
from minilab_worker.job_store import Claim, StartedJob
from minilab_worker.rq.store import RqJobStore
from minilab_worker.takeover import Takeover
from minilab_worker.telemetry.counters import Counters
from redis.client import Pipeline
from support.client_process import environment
from support.own_service import LIMIT, OwnService
from support.waiting import wait_until

from minilab_gen.protocol import keys
from minilab_gen.protocol.connection import connect
from minilab_gen.protocol.events import EndEvent
from minilab_gen.protocol.jobs import fetch
from minilab_gen.protocol.submission import Submission, enqueue
from minilab_gen.request import GenerationRequest

LEASE = 30
"""Seconds: no lease runs out in a test of itself."""

SWEPT_WITHIN = 5.0
"""Seconds in which a job whose lease has expired must be found: five sweeps, on a machine that may be loaded."""

REQUEST = GenerationRequest((5, 6, 7), max_new_tokens=20)

MakeStore = Callable[[], RqJobStore]


@pytest.fixture
def make_store(server: redis.Redis, server_url: str) -> Iterator[MakeStore]:
    """Workers as RQ's records show them."""
    with ExitStack() as stack:

        def make() -> RqJobStore:
            store = RqJobStore(connect(server_url), keys.queue_names(keys.DEFAULT_MODEL), LEASE, "a-model")
            store.open(on_stop=lambda job_id: None)
            stack.callback(store.close)
            return store

        yield make


def claimed(connection: redis.Redis, store: RqJobStore) -> Claim:
    enqueue(connection, REQUEST, Submission())
    (claim,) = store.claim(1, 0.0)
    return claim


def only_started(store: RqJobStore) -> StartedJob:
    (job,) = store.started()
    return job


class Unheard:
    """An observer for tables whose jobs do not move."""

    def on_moved(self, runs: Sequence[JobRun], state: JobState) -> None:
        raise AssertionError(f"no job moves here, got {state}")


def takeover_by(store: RqJobStore) -> Takeover:
    return Takeover(store, JobTable(1, Unheard()), LEASE, Counters())


def status(connection: redis.Redis, job_id: str) -> str:
    return str(fetch(connection, job_id).get_status().value)


def test_a_job_is_not_taken_from_a_worker_that_holds_its_lease(server: redis.Redis, make_store: MakeStore) -> None:
    holder, other = make_store(), make_store()
    claim = claimed(server, holder)

    assert not other.requeue(only_started(other), if_expired=True)

    assert status(server, claim.job.job_id) == "started"
    assert not server.exists(keys.expired_leases(claim.job.job_id))


def test_a_job_is_not_taken_from_a_worker_that_renews_its_lease_at_that_moment(
    server: redis.Redis, make_store: MakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look at its lease and the transaction that takes the job away."""
    holder, other = make_store(), make_store()
    claim = claimed(server, holder)
    job = only_started(other)
    server.delete(keys.worker_lease(holder.worker))

    def renew_first(pipeline: Any) -> None:
        server.set(keys.worker_lease(holder.worker), 1, ex=LEASE)
        multi(pipeline)

    multi = Pipeline.multi
    monkeypatch.setattr(Pipeline, "multi", renew_first)

    assert not other.requeue(job, if_expired=True)

    assert status(server, claim.job.job_id) == "started"


def test_a_claim_renews_the_lease_of_a_worker_that_stood_still(server: redis.Redis, make_store: MakeStore) -> None:
    """Else the jobs that it starts would count as those of an expired lease."""
    sleeper, other = make_store(), make_store()
    server.delete(keys.worker_lease(sleeper.worker))

    claim = claimed(server, sleeper)

    assert LEASE - 5 < server.ttl(keys.worker_lease(sleeper.worker)) <= LEASE
    takeover_by(other).sweep_if_due()
    assert status(server, claim.job.job_id) == "started"


def test_a_job_of_a_dead_worker_is_found_soon_after_its_lease(server: redis.Redis, make_store: MakeStore) -> None:
    expired, other = make_store(), make_store()
    claim = claimed(server, expired)
    takeover = takeover_by(other)
    takeover.sweep_if_due()
    assert status(server, claim.job.job_id) == "started"
    began = time.monotonic()

    server.delete(keys.worker_lease(expired.worker))
    while status(server, claim.job.job_id) != "queued" and time.monotonic() - began < 2 * SWEPT_WITHIN:
        takeover.sweep_if_due()

    assert time.monotonic() - began < SWEPT_WITHIN
    assert server.get(keys.expired_leases(claim.job.job_id)) == b"1"


def test_timeout_ends_a_job_of_a_real_worker_and_no_other(own_service: OwnService) -> None:
    """The worker stands still over the end of the time, though not over that of its lease."""
    worker = own_service.fleet.start_and_wait()
    patient = own_service.submit()
    hasty = submitted_by_client(own_service, "--timeout", "1")
    own_service.wait_for_holder(hasty, worker)
    started = own_service.connection.time()
    worker.sleep()
    wait_until(lambda: seconds_between(started, own_service.connection.time()) > 1)
    worker.wake()

    own_service.wait_for_status(hasty, "failed")

    *tokens, end = own_service.stream(hasty)
    cut = end.text  # of a character that the time cut, where it cut one
    assert end == EndEvent("timeout", len(tokens), prompt_tokens=3, text=cut, phase="running")
    assert cut in ("", "\ufffd")
    own_service.wait_for_status(patient, "finished")
    own_service.assert_answered(patient)


def submitted_by_client(service: OwnService, *options: str) -> str:
    command = [sys.executable, "-m", "minilab_client", "submit", "--ids", "5,6,7", "--max-new-tokens", "1000", *options]
    done = subprocess.run(
        command, env=environment(service.server.url), check=True, capture_output=True, text=True, timeout=LIMIT
    )
    return done.stdout.strip()


def seconds_between(earlier: Any, later: Any) -> float:
    return float(later[0] - earlier[0] + (later[1] - earlier[1]) / 1e6)
