"""Whatever becomes of ``minilab-client verify``, with a real worker or none, nothing of it stays in Redis."""

from __future__ import annotations

from typing import Any

import pytest
import redis
from support.client_process import Program
from support.client_program import client, queued, run, submit
from support.verification import REQUEST, StartWorker, alter, books, finished, nothing_is_left, rewrite
from support.waiting import wait_until

from minilab_gen.protocol import keys
from minilab_gen.protocol.events import EndEvent, TokenEvent
from minilab_gen.protocol.jobs import fetch, recorded_state
from minilab_gen.protocol.submission import Submission, enqueue
from minilab_gen.protocol.verification import AT_ONCE, verify
from minilab_gen.request import GenerationRequest

pytestmark = pytest.mark.slow


@pytest.fixture
def job(server: redis.Redis, start_worker: StartWorker) -> str:
    """A finished job, and a worker that can compute it again."""
    start_worker()
    (job_id,) = finished(server, [REQUEST])
    return job_id


def test_after_verifications_of_every_outcome_redis_holds_what_it_held_before(
    server: redis.Redis, start_worker: StartWorker
) -> None:
    requests = [GenerationRequest((5, 6, 7), 10), GenerationRequest((5, 6), 10)]
    start_worker()
    equal, other = finished(server, requests)
    (damaged,) = finished(server, [REQUEST])
    enqueue(server, REQUEST, Submission(job_id="low", priority="low"))  # so that RQ knows the queue of verifications
    enqueue(server, GenerationRequest((5, 1_000_000), 3), Submission(job_id="refused"))
    for job_id in ("low", "refused"):
        wait_until(lambda job_id=job_id: recorded_state(fetch(server, job_id)) in ("finished", "failed"))  # type: ignore[misc]
    rewrite(server, "refused", [TokenEvent(1, 7, "a"), EndEvent("length", 1, 2)])
    alter(server, other, 3, token_id=12)
    server.xdel(keys.token_stream(damaged), "17-0")
    before = books(server)

    result = client("verify", equal, other, damaged, "refused", "low")

    assert result.exit_code == 1
    assert [line.split("  ")[1].split(":")[0] for line in result.stdout.splitlines()] == [
        "equal", "token 3 differs", "the stream has a gap", "it could not be computed again", "equal",
    ]  # fmt: skip
    assert books(server) == before


def test_an_interrupt_leaves_redis_as_it_was(server: redis.Redis, server_url: str) -> None:
    for number in range(3):
        run(server, f"j{number}", ["a"])
    submit(server, "waits")
    enqueue(server, REQUEST, Submission(job_id="low", priority="low"))
    before = books(server)

    with Program(server_url, "verify", "j0", "j1", "j2") as verification:
        wait_until(lambda: server.llen("rq:queue:minilab.base.low") == 4)
        verification.interrupt()
        code, _ = verification.ended()

    assert code == 130
    assert books(server) == before


def test_an_interrupt_just_after_a_verification_is_queued_leaves_nothing_behind(
    server: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(server, "x", ["a"])

    def enqueue_and_press(*arguments: Any) -> str:
        enqueue(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr("minilab_gen.protocol.verification.enqueue", enqueue_and_press)
    with pytest.raises(KeyboardInterrupt):
        list(verify(server, ["x"], "low"))

    assert nothing_is_left(server)


def test_what_a_killed_client_leaves_has_a_time_to_live(
    server: redis.Redis, server_url: str, start_worker: StartWorker
) -> None:
    run(server, "x", ["a"])
    with Program(server_url, "verify", "x") as verification:
        wait_until(lambda: server.llen("rq:queue:minilab.base.low") == 1)
        verification.process.kill()
        verification.ended()
    (own_id,) = queued(server, "low")

    start_worker()

    wait_until(lambda: recorded_state(fetch(server, own_id)) == "finished")
    left = server.keys(f"*{own_id}*")
    assert len(left) >= 3, "of the job there are its record, its tokens and its result"
    assert all(0 < server.ttl(key) <= keys.RETENTION for key in left)


def test_few_jobs_are_computed_at_a_time(server: redis.Redis) -> None:
    job_ids = [f"j{n}" for n in range(AT_ONCE + 10)]
    for job_id in job_ids:
        run(server, job_id, ["a"])
    waiting = []

    def give_up(_: object) -> None:
        waiting.append(server.llen("rq:queue:minilab.base.low"))
        raise TimeoutError

    with pytest.raises(TimeoutError):
        next(verify(server, job_ids, "low", give_up))

    assert waiting == [AT_ONCE]
    assert nothing_is_left(server)


def test_stopping_in_the_middle_leaves_nothing_in_redis(
    server: redis.Redis, start_worker: StartWorker, job: str
) -> None:
    job_ids = finished(server, [REQUEST] * 20)
    outcomes = verify(server, job_ids, "low")
    next(outcomes)

    outcomes.close()

    assert nothing_is_left(server)


def test_a_verification_that_no_worker_takes_leaves_nothing_behind(server: redis.Redis) -> None:
    run(server, "x", ["a"])

    def press(_: object) -> None:
        assert server.llen("rq:queue:minilab.base.low") == 1
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(verify(server, ["x"], "low", press))

    assert nothing_is_left(server)
