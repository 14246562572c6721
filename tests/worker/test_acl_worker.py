"""The worker's user of Redis that docs/security.md gives: it can do all that a worker does, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace

import pytest
import redis
from minilab_worker.rq import RqJobStore
from minilab_worker.serving import ServedModel
from minilab_worker.worker import Worker
from rq.command import send_stop_job_command
from support.redis_users import CLIENT, LEASE, LONG, WORKER, Urls, denials
from support.references import ids_of, reference_ids
from support.waiting import wait_until

import minilab_gen
from minilab_gen.protocol import keys
from minilab_gen.protocol.connection import connect
from minilab_gen.protocol.events import TokenEvent
from minilab_gen.protocol.jobs import fetch, queue_of, recorded_state
from minilab_gen.protocol.streams import publish, stream_length
from minilab_gen.protocol.submission import Submission, enqueue


def test_the_workers_user_cannot_cancel(user_urls: Urls) -> None:
    with closing(connect(user_urls[WORKER])) as connection, pytest.raises(redis.exceptions.NoPermissionError):
        connection.set(keys.cancel_flag("a"), 1)


def dies_with_a_job(user_urls: Urls, server: redis.Redis, served: ServedModel) -> None:
    """What is left of a worker that was killed after two tokens."""
    connection = connect(user_urls[WORKER])
    store = RqJobStore(connection, keys.queue_names(keys.DEFAULT_MODEL), LEASE, served.card.fingerprint)
    store.open(ignore)
    (claim,) = store.claim(1, 0)
    tokens = [TokenEvent(n, token_id, "") for n, token_id in enumerate(reference_ids(served, LONG)[:2], start=1)]
    publish(connection, [(claim.job.job_id, token) for token in tokens], running_ttl=600)
    store.close()
    requeue_is_due = {claim.job.worker} - store.alive({claim.job.worker})
    assert requeue_is_due, "its lease has expired, and its job is still started"


def ignore(job_id: str) -> None:
    """No job is stopped here."""


def test_a_worker_takes_over_as_the_workers_user(
    server: redis.Redis, user_urls: Urls, start_restricted: Callable[..., Worker], served: ServedModel
) -> None:
    job_id = enqueue(server, LONG, Submission())
    dies_with_a_job(user_urls, server, served)

    worker = start_restricted()

    wait_until(lambda: worker.done)
    assert worker.counters.taken_over == 1
    assert ids_of(list(minilab_gen.tail(job_id))) == reference_ids(served, LONG)
    assert denials(server) == []


def test_a_worker_ends_every_kind_of_job_as_the_workers_user(
    server: redis.Redis, user_urls: Urls, start_restricted: Callable[..., Worker]
) -> None:
    queue = queue_of(server, keys.queue_name(keys.DEFAULT_MODEL))
    finished, late, cancelled = (enqueue(server, LONG, Submission(ttl=1000)) for _ in range(3))
    job = fetch(server, late)
    job.meta["expires_at"] = 0.0
    job.save_meta()
    server.set(keys.cancel_flag(cancelled), 1, ex=60)
    alien = queue.enqueue_call("os.getcwd").id
    followed = fetch(server, finished)
    follower = queue.enqueue_call(keys.TASK, args=(LONG.to_payload(),), depends_on=followed).id
    server.rpush(queue.key, "missing")

    worker = start_restricted()

    wait_until(lambda: worker.done == 5)
    states = {job_id: recorded_state(fetch(server, job_id)) for job_id in (finished, late, cancelled, alien, follower)}
    assert list(states.values()) == ["finished", "failed", "cancelled", "failed", "finished"]
    assert denials(server) == []


def test_logprobs_of_a_prompt_are_written_and_read_by_the_users_that_may_have_the_stream(
    server: redis.Redis, user_urls: Urls, start_restricted: Callable[..., Worker]
) -> None:
    job_id = enqueue(server, replace(LONG, logprobs=1, prompt_logprobs=1), Submission())

    worker = start_restricted()

    wait_until(lambda: worker.done == 1)
    found = minilab_gen.result(job_id, redis_url=user_urls[CLIENT])
    assert found is not None
    assert found.prompt_logprobs is not None
    assert len(found.prompt_logprobs) == len(LONG.prompt)
    assert denials(server) == []


def test_a_worker_gives_back_what_it_cannot_finish_as_the_workers_user(
    server: redis.Redis, user_urls: Urls, start_restricted: Callable[..., Worker]
) -> None:
    worker = start_restricted(grace=0, slow=True)
    job_id = enqueue(server, LONG, Submission())
    wait_until(lambda: stream_length(server, job_id)[0])

    worker.stop()

    wait_until(lambda: recorded_state(fetch(server, job_id)) == "queued")
    wait_until(lambda: not server.exists(keys.worker_lease(worker.name)))
    assert denials(server) == []


def test_rqs_stop_command_reaches_a_worker_of_the_workers_user(
    server: redis.Redis, user_urls: Urls, start_restricted: Callable[..., Worker]
) -> None:
    worker = start_restricted(slow=True)
    job_id = enqueue(server, LONG, Submission())
    wait_until(lambda: stream_length(server, job_id)[0])

    send_stop_job_command(server, job_id)

    wait_until(lambda: worker.done)
    assert recorded_state(fetch(server, job_id)) == "cancelled"
    assert denials(server) == []
