"""One blocking read for all readers of a process: each gets its own events, in order, to the one end."""

from __future__ import annotations

import asyncio
import time
import tracemalloc
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager, closing
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import redis
from chaos.server import Server
from minilab_gateway import stream_hub
from minilab_gateway.stream_hub import StreamHub
from support.tail_readers import ANSWER, run, start, write

from minilab_gen.errors import RequestError, StreamError, UnknownJobError
from minilab_gen.protocol import keys
from minilab_gen.protocol.connection import connect_async
from minilab_gen.protocol.endings import settle
from minilab_gen.protocol.events import EndEvent, Event, TokenEvent
from minilab_gen.protocol.streams import publish

pytestmark = pytest.mark.usefixtures("server")


@asynccontextmanager
async def hub_of(connection: redis.Redis, url: str | None = None) -> AsyncIterator[StreamHub]:
    def look_after(job_id: str) -> None:
        if not job_id.startswith("idle"):
            settle(connection, job_id)

    async with aclosing(connect_async(url)) as own, StreamHub(own, look_after) as hub:
        yield hub


async def read(hub: StreamHub, job_id: str = "x", after: int = 0) -> list[Event]:
    return [event async for events in hub.follow(job_id, after) for event in events]


@asynccontextmanager
async def idle(hub: StreamHub, *job_ids: str) -> AsyncIterator[None]:
    """Readers of streams to which nothing comes, gone at the end."""
    tasks = [asyncio.create_task(read(hub, job_id)) for job_id in job_ids]
    await until(lambda: hub.readers == len(job_ids))
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def until(condition: Callable[[], object], limit: float = 20.0) -> None:
    give_up = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < give_up
        await asyncio.sleep(0.005)


async def test_many_readers_of_one_stream_read_the_same_whenever_they_come(server: redis.Redis) -> None:
    start(server)
    async with hub_of(server) as hub:
        early = [asyncio.create_task(read(hub)) for _ in range(5)]
        await until(lambda: hub.readers == 5)
        write(server, *ANSWER[:2])
        middle = [asyncio.create_task(read(hub)) for _ in range(5)]
        await until(lambda: hub.readers == 10)
        write(server, *ANSWER[2:])
        late = [asyncio.create_task(read(hub)) for _ in range(5)]

        assert await asyncio.gather(*early, *middle, *late) == 15 * [ANSWER]
        assert hub.readers == 0


async def test_readers_of_one_stream_may_begin_behind_different_tokens(server: redis.Redis) -> None:
    start(server)
    async with hub_of(server) as hub:
        readers = [asyncio.create_task(read(hub, after=seen)) for seen in range(5)]
        await until(lambda: hub.readers == 5)
        for event in ANSWER:
            write(server, event)

        assert await asyncio.gather(*readers) == [ANSWER[seen:] for seen in range(5)]


@pytest.mark.parametrize("after", [5, 6, 99])
async def test_reading_from_behind_the_end_gives_the_end(server: redis.Redis, after: int) -> None:
    run(server, *ANSWER)
    async with hub_of(server) as hub:
        assert await read(hub, after=after) == ANSWER[-1:]


async def test_reading_from_a_token_that_never_comes_gives_the_end(server: redis.Redis) -> None:
    start(server)
    async with hub_of(server) as hub:
        reader = asyncio.create_task(read(hub, after=50))
        await until(lambda: hub.readers == 1)
        write(server, *ANSWER)

        assert await reader == ANSWER[-1:]


async def test_a_new_reader_ends_the_wait_of_the_others(server: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_hub, "BLOCK_MS", 8_000)
    publish(server, [("idle", TokenEvent(1, 1, ""))], running_ttl=60)
    run(server, *ANSWER)
    async with hub_of(server) as hub, idle(hub, "idle"):
        await until(lambda: server.info("clients")["blocked_clients"])
        began = time.monotonic()

        assert await read(hub) == ANSWER
        assert time.monotonic() - began < 4


async def test_where_redis_forbids_to_end_a_wait_new_readers_wait_a_moment(
    server: redis.Redis, server_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_hub, "BLOCK_MS", 8_000)
    server.acl_setuser("gateway", enabled=True, nopass=True, keys=["*"], commands=["+@all", "-client|unblock"])
    separator = "&" if "?" in server_url else "?"
    run(server, *ANSWER)
    restricted = f"{server_url}{separator}username=gateway&password=any"
    async with hub_of(server, restricted) as hub, idle(hub, "idle"):
        await until(lambda: server.info("clients")["blocked_clients"])
        assert await read(hub) == ANSWER  # after the one wait that had begun before it was known
        began = time.monotonic()
        assert await read(hub) == ANSWER
        assert time.monotonic() - began < 4
    server.acl_deluser("gateway")


async def test_a_gap_is_told_to_the_readers_of_that_stream_alone(server: redis.Redis) -> None:
    run(server, *ANSWER)
    publish(server, [("gap", TokenEvent(1, 1, "")), ("gap", TokenEvent(3, 1, ""))], running_ttl=60)
    async with hub_of(server) as hub:
        with pytest.raises(StreamError, match="token 2 is missing"):
            await read(hub, "gap")
        assert await read(hub) == ANSWER


async def test_a_key_that_is_no_stream_fails_its_reader_alone(server: redis.Redis) -> None:
    start(server)
    async with hub_of(server) as hub:
        whole = asyncio.create_task(read(hub))
        early = asyncio.create_task(read(hub, "late-wrong"))
        await until(lambda: hub.readers == 2)
        server.set(keys.token_stream("wrong"), "no stream")
        server.set(keys.token_stream("late-wrong"), "no stream")
        with pytest.raises(redis.ResponseError):
            await read(hub, "wrong")
        with pytest.raises(redis.ResponseError):
            await early
        write(server, *ANSWER)

        assert await whole == ANSWER


async def test_an_id_that_is_none_is_refused(server: redis.Redis) -> None:
    async with hub_of(server) as hub:
        with pytest.raises(RequestError):
            await read(hub, "../x")
        with pytest.raises(RequestError):
            await read(hub, "x", -1)


async def test_a_job_that_has_expired_ends_its_reader(server: redis.Redis) -> None:
    async with hub_of(server) as hub:
        with pytest.raises(UnknownJobError):
            await read(hub, "nobody")


async def test_a_quiet_stream_is_looked_after_while_another_is_busy(server: redis.Redis) -> None:
    async with hub_of(server) as hub:
        quiet = asyncio.create_task(read(hub, "nobody"))
        start(server)
        busy = asyncio.create_task(read(hub))
        number = 0
        while not quiet.done():
            number += 1
            write(server, TokenEvent(number, 1, ""))
            await asyncio.sleep(0.05)
        with pytest.raises(UnknownJobError):
            await quiet
        write(server, EndEvent("length", number, 3))
        assert len(await busy) == number + 1


async def test_readers_go_on_after_redis_was_killed_and_started_again() -> None:
    with TemporaryDirectory(prefix="ml-") as name, Server(Path(name)) as own, closing(own.connect()) as connection:
        start(connection)
        async with hub_of(connection, own.url) as hub:
            reader = asyncio.create_task(read(hub))
            write(connection, *ANSWER[:2])
            await until(lambda: hub.readers == 1)
            own.terminate()
            await asyncio.sleep(0.1)
            own.start()
            write(connection, *ANSWER[2:])

            assert await reader == ANSWER


async def test_a_reader_that_goes_away_leaves_nothing_behind(server: redis.Redis) -> None:
    start(server)
    before = asyncio.all_tasks()
    async with hub_of(server) as hub:
        events = hub.follow("x")
        write(server, ANSWER[0])
        assert await anext(events) == [ANSWER[0]]
        await events.aclose()
        assert hub.readers == 0
        waiting = asyncio.create_task(read(hub))
        await until(lambda: hub.readers == 1)
        waiting.cancel()
        await until(lambda: hub.readers == 0)
    assert asyncio.all_tasks() - {waiting} == before
    assert server.info("clients")["blocked_clients"] == 0


async def test_a_hub_that_ends_ends_its_readers(server: redis.Redis) -> None:
    start(server)
    async with hub_of(server) as hub:
        reader = asyncio.create_task(read(hub))
        await until(lambda: hub.readers == 1)
    with pytest.raises(ConnectionError, match="shutting down"):
        await reader


async def test_1000_idle_streams_need_one_waiting_connection_and_little_memory(server: redis.Redis) -> None:
    start(server)
    publish(server, [(f"idle-{n}", TokenEvent(1, 1, "")) for n in range(1000)], running_ttl=60)
    tracemalloc.start()
    async with hub_of(server) as hub, idle(hub, *(f"idle-{n}" for n in range(1000))):
        write(server, *ANSWER)
        assert await read(hub) == ANSWER
        await until(lambda: server.info("clients")["blocked_clients"] == 1)
        assert tracemalloc.get_traced_memory()[0] < 50_000_000
    tracemalloc.stop()
