"""Readers of a token stream, plain and async, and the job x that they read: a pytest plugin. It holds no test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, asynccontextmanager, contextmanager

import fakeredis
import pytest
import redis
import redis.asyncio
from rq.job import JobStatus

from minilab_gen.protocol import keys
from minilab_gen.protocol import tail as tails
from minilab_gen.protocol.connection import connect_async
from minilab_gen.protocol.events import EndEvent, Event, TokenEvent
from minilab_gen.protocol.jobs import fetch
from minilab_gen.protocol.streams import publish
from minilab_gen.protocol.tail import tail, tail_async
from support import client_program
from support.client_program import submit

STREAM = keys.token_stream("x")

ANSWER: list[Event] = [
    TokenEvent(1, 5, " é"),
    TokenEvent(2, 2047, ""),
    TokenEvent(3, 0, "\n"),
    TokenEvent(4, 7, "�"),
    EndEvent("length", tokens=4, prompt_tokens=3),
]

Read = Callable[[redis.Redis, str, int], list[Event]]


@pytest.fixture
def short_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A blocking read that finds nothing ends after milliseconds."""
    monkeypatch.setattr(tails, "BLOCK_MS", 20)


@asynccontextmanager
async def async_twin(connection: redis.Redis) -> AsyncIterator[redis.asyncio.Redis]:
    """A connection for asyncio to the same server, real or fake."""
    if isinstance(connection, fakeredis.FakeRedis):
        server = connection.connection_pool.connection_kwargs["server"]
        twin: redis.asyncio.Redis = fakeredis.FakeAsyncRedis(server=server, protocol=2, legacy_responses=True)
    else:
        twin = connect_async()
    async with aclosing(twin):
        yield twin


async def read_async(connection: redis.Redis, job_id: str, after: int) -> list[Event]:
    async with async_twin(connection) as twin:
        return [event async for event in tail_async(twin, connection, job_id, after)]


@pytest.fixture(params=["plain", "async"])
def read(request: pytest.FixtureRequest) -> Read:
    """Either of the two readers, to the end of the stream."""
    if request.param == "plain":
        return lambda connection, job_id, after: list(tail(connection, job_id, after))
    return lambda connection, job_id, after: asyncio.run(read_async(connection, job_id, after))


def start(connection: redis.Redis) -> None:
    """What a worker does first with a job, as far as readers see it."""
    submit(connection, "x")
    client_program.start(connection, "x")


def write(connection: redis.Redis, *events: Event) -> None:
    publish(connection, [("x", event) for event in events], running_ttl=600)


def run(connection: redis.Redis, *events: Event) -> None:
    """A whole job, from the queue to its end."""
    start(connection)
    write(connection, *events)
    fetch(connection, "x").set_status(JobStatus.FINISHED)


@contextmanager
def in_thread(work: Callable[[], object]) -> Iterator[None]:
    """Do the work beside; what it raised comes out at the end."""
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(work)
        yield
        done.result()
