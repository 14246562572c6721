"""How an ended job was submitted, read back from its record, also from one that others have written."""

from __future__ import annotations

import fakeredis
import pytest
import redis
from support.client_program import run

from minilab_gen.errors import RequestError
from minilab_gen.protocol import keys
from minilab_gen.protocol.jobs import fetch
from minilab_gen.protocol.original_request import original_request_of
from minilab_gen.protocol.submission import EXPIRES_AT, TTL


@pytest.fixture
def connection() -> redis.Redis:
    """An empty Redis."""
    return fakeredis.FakeRedis(server=fakeredis.FakeServer(), protocol=2, legacy_responses=True)


def ended_job(connection: redis.Redis, **meta: object) -> str:
    """A job that has ended, with these notes in its record."""
    run(connection, "x", ["a"])
    job = fetch(connection, "x")
    job.meta.update(meta)
    job.save_meta()
    return "x"


@pytest.mark.parametrize("ttl", [True, 0, -5, 1.5, "60", None])
def test_a_note_that_is_no_ttl_is_none(connection: redis.Redis, ttl: object) -> None:
    job_id = ended_job(connection, **{TTL: ttl})

    assert original_request_of(connection, job_id).submission.ttl is None


def test_a_ttl_is_no_longer_than_a_submission_may_ask(connection: redis.Redis) -> None:
    job_id = ended_job(connection, **{TTL: 10**15})

    assert original_request_of(connection, job_id).submission.ttl == keys.LONGEST_TIME


def test_a_job_that_only_notes_when_it_expires_may_wait_as_long_again(connection: redis.Redis) -> None:
    submitted = ended_job(connection)
    created = fetch(connection, submitted).created_at.timestamp()
    job = fetch(connection, submitted)
    job.meta[EXPIRES_AT] = created + 90
    job.save_meta()

    assert original_request_of(connection, submitted).submission.ttl == 90


@pytest.mark.parametrize(
    ("expires_at", "ttl"),
    [
        *(("soon", None), (True, None), (float("nan"), None)),
        *((0.0, 1), (float("-inf"), 1), (float("inf"), keys.LONGEST_TIME), (10**400, keys.LONGEST_TIME)),
    ],
)
def test_what_others_note_of_an_expiry_is_a_ttl_that_can_be_asked_or_none(
    connection: redis.Redis, expires_at: object, ttl: int | None
) -> None:
    job_id = ended_job(connection, **{EXPIRES_AT: expires_at})

    assert original_request_of(connection, job_id).submission.ttl == ttl


def test_a_job_of_a_queue_that_is_no_models_is_refused(connection: redis.Redis) -> None:
    job_id = ended_job(connection)
    connection.hset("rq:job:x", "origin", "mail")

    with pytest.raises(RequestError, match=r"queue must be one of a model, job x has 'mail'"):
        original_request_of(connection, job_id)
