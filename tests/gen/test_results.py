"""The result of a job: what its stream holds, once it has ended."""

from __future__ import annotations

import json

import pytest
import redis
from support.client_program import write
from support.one_job import REQUEST, X, end, fail, force, queue_of, start

from minilab_gen.errors import StreamError, UnknownJobError
from minilab_gen.protocol import keys
from minilab_gen.protocol.events import EndEvent
from minilab_gen.protocol.results import JobResult, result
from minilab_gen.protocol.submission import enqueue


def test_a_job_that_has_not_ended_has_no_result(connection: redis.Redis) -> None:
    enqueue(connection, REQUEST, X)
    assert result(connection, "x") is None
    start(connection)
    assert result(connection, "x") is None
    write(connection, "x", "a", "b")
    assert result(connection, "x") is None


def test_the_result_is_what_the_stream_holds(connection: redis.Redis) -> None:
    enqueue(connection, REQUEST, X)
    start(connection)
    write(connection, "x", " é", "", "\n")
    last = end(connection, 3, text="�")

    assert result(connection, "x") == JobResult("x", (101, 102, 103), " é\n�", last, seed=11)


def test_a_job_that_failed_or_was_cancelled_keeps_the_tokens_so_far(connection: redis.Redis) -> None:
    enqueue(connection, REQUEST, X)
    start(connection)
    write(connection, "x", "a", "b")
    last = end(connection, 2, "cancelled")

    assert result(connection, "x") == JobResult("x", (101, 102), "ab", last, seed=11)


def test_a_job_that_failed_unread_has_a_result_without_a_seed(connection: redis.Redis) -> None:
    force(connection, b"\x80\x04.")
    queue_of(connection).remove("x")
    fail(connection, "DeserializationError")

    found = result(connection, "x")

    assert found == JobResult("x", (), "", EndEvent("error", 0, 0, error="DeserializationError"), seed=None)
    assert found is not None
    assert json.loads(json.dumps(found.to_json(), allow_nan=False))["seed"] is None


def test_a_finished_job_whose_tokens_are_gone_has_no_result_but_an_error(connection: redis.Redis) -> None:
    enqueue(connection, REQUEST, X)
    start(connection)
    end(connection, 0)
    connection.delete(keys.token_stream("x"))

    with pytest.raises(UnknownJobError, match="x has finished, and its tokens have expired"):
        result(connection, "x")


def test_a_result_with_a_gap_is_no_result(connection: redis.Redis) -> None:
    enqueue(connection, REQUEST, X)
    start(connection)
    write(connection, "x", "a", "b")
    end(connection, 2)
    connection.xdel(keys.token_stream("x"), "1-0")

    with pytest.raises(StreamError, match="token 1 is missing"):
        result(connection, "x")
