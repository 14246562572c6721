"""Readers and their connections: left clean by whoever leaves, shared by many, and every shape of an answer is read."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, closing

import pytest
import redis
import redis.asyncio
from support.tail_readers import ANSWER, STREAM, async_twin, in_thread, run, start, write
from support.waiting import wait_until

from minilab_gen.protocol import jobs
from minilab_gen.protocol import tail as tails
from minilab_gen.protocol.connection import connect, connect_async
from minilab_gen.protocol.events import Event
from minilab_gen.protocol.streams import published_tokens
from minilab_gen.protocol.tail import Cursor, tail, tail_async

pytestmark = pytest.mark.usefixtures("short_blocks")

MANY = 150
"""Readers in one process: more than a connection pool of redis-py holds."""


def blocked(server: redis.Redis) -> int:
    """Clients that wait for an entry."""
    return int(server.info("clients")["blocked_clients"])


def test_a_reader_who_leaves_in_the_middle_leaves_the_connection_clean(server: redis.Redis) -> None:
    start(server)
    write(server, *ANSWER[:2])
    events = tail(server, "x")
    next(events)
    next(events)

    events.close()

    assert server.get("nothing") is None
    wait_until(lambda: blocked(server) == 0)
    wait_until(lambda: len(server.client_list()) == 1)


def test_ctrl_c_in_a_blocking_read_leaves_the_connection_clean(
    server: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tails, "BLOCK_MS", 60_000)
    start(server)
    main = threading.main_thread().ident
    assert main is not None

    def press() -> None:
        with redis.Redis.from_url(os.environ["MINILAB_REDIS_URL"]) as other:
            wait_until(lambda: blocked(other) == 1)
        signal.pthread_kill(main, signal.SIGINT)

    with in_thread(press), pytest.raises(KeyboardInterrupt):
        next(tail(server, "x"))

    write(server, ANSWER[0])
    assert server.get("nothing") is None
    assert jobs.view(server, "x").tokens == 1
    wait_until(lambda: blocked(server) == 0)


async def test_a_reader_cancelled_in_a_blocking_read_leaves_the_connection_clean(
    server: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tails, "BLOCK_MS", 60_000)
    start(server)
    async with async_twin(server) as twin:
        reader = asyncio.ensure_future(anext(tail_async(twin, server, "x")))
        await asyncio.to_thread(wait_until, lambda: blocked(server) == 1)

        reader.cancel()

        with pytest.raises(asyncio.CancelledError):
            await reader
        write(server, ANSWER[0])
        assert await twin.get("nothing") is None
        assert [await anext(tail_async(twin, server, "x"))] == ANSWER[:1]
    await asyncio.to_thread(wait_until, lambda: blocked(server) == 0)


def test_150_readers_share_one_process(server: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tails, "BLOCK_MS", 4000)
    start(server)
    with ThreadPoolExecutor(MANY) as pool:
        readers = [pool.submit(list, tail(server, "x")) for _ in range(MANY)]
        try:
            wait_until(lambda: blocked(server) == MANY)
        finally:  # or they would wait for ever
            write(server, *ANSWER)

        assert all(reader.result() == ANSWER for reader in readers)


async def test_150_readers_share_one_event_loop(server: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tails, "BLOCK_MS", 4000)
    start(server)
    async with async_twin(server) as twin:

        async def reader() -> list[Event]:
            return [event async for event in tail_async(twin, server, "x")]

        readers = [asyncio.create_task(reader()) for _ in range(MANY)]
        await asyncio.to_thread(wait_until, lambda: blocked(server) == MANY)

        write(server, *ANSWER)

        assert all(found == ANSWER for found in await asyncio.gather(*readers))


@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("legacy", [True, False])
def test_every_shape_of_an_answer_is_read(server: redis.Redis, server_url: str, protocol: int, legacy: bool) -> None:
    run(server, *ANSWER)
    with redis.Redis.from_url(server_url, protocol=protocol, legacy_responses=legacy) as connection:
        assert list(tail(connection, "x")) == ANSWER
        assert list(tail(connection, "x", 99)) == ANSWER[-1:]
        assert published_tokens(connection, "x") == (ANSWER[:-1], ANSWER[-1])


@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("legacy", [True, False])
async def test_every_shape_of_an_answer_is_read_by_asyncio_too(
    server: redis.Redis, server_url: str, protocol: int, legacy: bool
) -> None:
    run(server, *ANSWER)
    async with redis.asyncio.Redis.from_url(server_url, protocol=protocol, legacy_responses=legacy) as connection:
        assert [event async for event in tail_async(connection, server, "x")] == ANSWER
        assert [event async for event in tail_async(connection, server, "x", 99)] == ANSWER[-1:]


@pytest.mark.parametrize("answer", [None, [], {}])
def test_an_answer_without_entries_moves_no_cursor(answer: object) -> None:
    cursor = Cursor("x", 3)

    assert cursor.read(answer) == []
    assert (cursor.position, cursor.ended) == ({STREAM: "3-0"}, False)


async def test_an_address_that_asks_for_protocol_3_is_no_matter(server: redis.Redis, server_url: str) -> None:
    run(server, *ANSWER)
    address = f"{server_url}?protocol=3"

    with closing(connect(address)) as connection:
        assert list(tail(connection, "x")) == ANSWER
        async with aclosing(connect_async(address)) as other:
            assert [event async for event in tail_async(other, connection, "x")] == ANSWER
