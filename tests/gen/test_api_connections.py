"""The server that the functions for programs ask, and that each closes whatever it opened, whoever leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import aclosing, closing

import pytest
import redis
from rq import scripts
from support.client_program import queued
from support.waiting import wait_until

import minilab_gen
from minilab_gen import EndEvent, TokenEvent
from minilab_gen.errors import RedisUnavailableError, RequestError, UnknownJobError
from minilab_gen.protocol import keys

NOWHERE = "redis://127.0.0.1:1"
"""Where no server can be: the port of a service that no machine runs."""


@pytest.fixture
def no_connection_left(server: redis.Redis) -> Iterator[None]:
    """Every connection that a test opens is closed again, and RQ keeps none."""
    kept = len(scripts._registered_scripts)
    yield
    wait_until(lambda: len(server.client_list()) == 1)
    assert len(scripts._registered_scripts) == kept


def test_a_server_is_named_by_argument_or_environment(
    server: redis.Redis, server_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINILAB_REDIS_URL", NOWHERE)

    job_id = minilab_gen.submit([5], redis_url=server_url)

    assert queued(server) == [job_id]
    assert minilab_gen.result(job_id, redis_url=server_url) is None
    assert minilab_gen.cancel(job_id, redis_url=server_url) == "queued"
    (end,) = minilab_gen.tail(job_id, redis_url=server_url)
    assert isinstance(end, EndEvent)
    with pytest.raises(RedisUnavailableError, match=r"no Redis answers at redis://127\.0\.0\.1:1"):
        minilab_gen.submit([5])


async def read_to_the_end(job_id: str) -> None:
    async for _ in minilab_gen.tail_async(job_id):
        pass


@pytest.mark.usefixtures("no_connection_left")
def test_each_function_closes_what_it_opened(server: redis.Redis) -> None:
    job_id = minilab_gen.submit([5, 6])
    minilab_gen.result(job_id)
    minilab_gen.cancel(job_id)
    list(minilab_gen.tail(job_id))
    asyncio.run(read_to_the_end(job_id))
    with pytest.raises(RequestError):
        minilab_gen.submit("")
    with pytest.raises(UnknownJobError):
        minilab_gen.result("nope")


def started(server: redis.Redis) -> str:
    """A job with one token."""
    job_id = minilab_gen.submit([5, 6])
    server.xadd(keys.token_stream(job_id), {"id": 5, "text": "a"}, id="1-0")
    return job_id


@pytest.mark.usefixtures("no_connection_left")
def test_a_reader_who_leaves_closes_what_it_opened(server: redis.Redis) -> None:
    with closing(minilab_gen.tail(started(server))) as events:
        assert next(events) == TokenEvent(1, 5, "a")


async def test_an_async_reader_who_leaves_has_closed_what_it_opened(server: redis.Redis) -> None:
    async with aclosing(minilab_gen.tail_async(started(server))) as events:
        assert await anext(events) == TokenEvent(1, 5, "a")

    await asyncio.to_thread(wait_until, lambda: len(server.client_list()) == 1)


async def test_an_event_loop_runs_on_while_its_reader_connects(server: redis.Redis) -> None:
    """A server that is away is asked for again and again, for a second or so."""
    reader = asyncio.create_task(anext(minilab_gen.tail_async("x", redis_url=NOWHERE)))

    turns = 0
    while not reader.done():
        await asyncio.sleep(0)
        turns += 1

    assert isinstance(reader.exception(), RedisUnavailableError)
    assert turns > 100
