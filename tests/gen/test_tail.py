"""Reading a token stream while it grows: plain and async, on a fake and a real server, the same to the one end."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, asynccontextmanager, closing, contextmanager
from typing import Any

import fakeredis
import pytest
import redis
import redis.asyncio
from rq import Queue, SimpleWorker
from rq.job import JobStatus
from rq.serializers import JSONSerializer
from support.waiting import wait_until

from minilab_gen.errors import RequestError, StreamError, UnknownJobError
from minilab_gen.protocol import jobs, keys
from minilab_gen.protocol import tail as tails
from minilab_gen.protocol.connection import connect, connect_async
from minilab_gen.protocol.events import EndEvent, Event, TokenEvent
from minilab_gen.protocol.jobs import JobView, fetch
from minilab_gen.protocol.streams import publish, published_tokens
from minilab_gen.protocol.submission import EXPIRES_AT, Submission, enqueue
from minilab_gen.protocol.tail import Cursor, tail, tail_async
from minilab_gen.request import GenerationRequest

STREAM = keys.token_stream("x")
REQUEST = GenerationRequest((5, 12, 7), max_new_tokens=4)
ANSWER: list[Event] = [
    TokenEvent(1, 5, " é"),
    TokenEvent(2, 2047, ""),
    TokenEvent(3, 0, "\n"),
    TokenEvent(4, 7, "�"),
    EndEvent("length", tokens=4, prompt_tokens=3),
]
MANY = 150
"""Readers in one process: more than a connection pool of redis-py holds."""

Read = Callable[[redis.Redis, str, int], list[Event]]


@pytest.fixture(autouse=True)
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


def submit(connection: redis.Redis, ttl: int | None = None) -> str:
    return enqueue(connection, REQUEST, Submission(job_id="x", ttl=ttl))


def start(connection: redis.Redis) -> None:
    """What a worker does first with a job, as far as readers see it."""
    submit(connection)
    queue_of(connection).remove("x")
    fetch(connection, "x").set_status(JobStatus.STARTED)


def queue_of(connection: redis.Redis) -> Queue:
    return Queue(keys.queue_name("base"), connection=connection, serializer=JSONSerializer)


def write(connection: redis.Redis, *events: Event) -> None:
    publish(connection, [("x", event) for event in events], running_ttl=600)


def run(connection: redis.Redis, *events: Event) -> None:
    """A whole job, from the queue to its end."""
    start(connection)
    write(connection, *events)
    fetch(connection, "x").set_status(JobStatus.FINISHED)


def blocked(server: redis.Redis) -> int:
    """Clients that wait for an entry."""
    return int(server.info("clients")["blocked_clients"])


@contextmanager
def in_thread(work: Callable[[], object]) -> Iterator[None]:
    """Do the work beside; what it raised comes out at the end."""
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(work)
        yield
        done.result()


# from any token to the end


def test_a_job_that_ended_before_its_reader_came_is_read_whole(connection: redis.Redis, read: Read) -> None:
    run(connection, *ANSWER)

    assert read(connection, "x", 0) == ANSWER


def test_reading_begins_behind_the_token_that_was_seen_last(connection: redis.Redis, read: Read) -> None:
    run(connection, *ANSWER)

    assert [read(connection, "x", seen) for seen in range(len(ANSWER))] == [
        ANSWER[seen:] for seen in range(len(ANSWER))
    ]


@pytest.mark.parametrize("after", [5, 6, 99, 2**63 - 1])
def test_reading_from_behind_the_end_gives_the_end(connection: redis.Redis, read: Read, after: int) -> None:
    run(connection, *ANSWER)

    assert read(connection, "x", after) == ANSWER[-1:]


def test_reading_from_a_token_that_never_comes_gives_the_end(connection: redis.Redis, read: Read) -> None:
    start(connection)
    write(connection, *ANSWER[:2])
    waited = threading.Event()

    def finish() -> None:
        waited.wait()
        write(connection, *ANSWER[2:])

    with in_thread(finish):
        waited.set()
        assert read(connection, "x", 50) == ANSWER[-1:]


@pytest.mark.parametrize("page", [1, 7, 1000])
def test_100_tokens_of_one_moment_come_in_order_whatever_the_page(
    connection: redis.Redis, read: Read, monkeypatch: pytest.MonkeyPatch, page: int
) -> None:
    monkeypatch.setattr(tails, "_PAGE", page)
    run(connection, *(TokenEvent(n, n, "") for n in range(1, 101)), EndEvent("length", 100, 3))

    *tokens, end = read(connection, "x", 0)

    assert [event.number for event in tokens] == list(range(1, 101))
    assert isinstance(end, EndEvent)


def test_tokens_are_read_as_they_come(connection: redis.Redis) -> None:
    start(connection)
    events = tail(connection, "x")

    for event in ANSWER:
        write(connection, event)
        assert next(events) == event
    assert next(events, None) is None


async def test_tokens_are_read_as_they_come_by_asyncio_too(connection: redis.Redis) -> None:
    start(connection)
    async with async_twin(connection) as twin, aclosing(tail_async(twin, connection, "x")) as events:
        for event in ANSWER:
            write(connection, event)
            assert await anext(events) == event
        assert await anext(events, None) is None


def test_several_readers_at_once_read_the_same(connection: redis.Redis) -> None:
    start(connection)
    with ThreadPoolExecutor(5) as pool:
        readers = [pool.submit(list, tail(connection, "x", seen)) for seen in (0, 0, 0, 2, 4)]
        for event in ANSWER:
            write(connection, event)

        assert [reader.result() for reader in readers] == [ANSWER, ANSWER, ANSWER, ANSWER[2:], ANSWER[4:]]


def test_a_reader_is_told_how_its_job_stands_while_it_waits(connection: redis.Redis) -> None:
    start(connection)
    seen: list[JobView] = []

    def note(view: JobView) -> None:
        seen.append(view)
        if len(seen) == 2:
            write(connection, *ANSWER)

    assert list(tail(connection, "x", on_wait=note)) == ANSWER
    assert [(view.job_id, view.state, view.tokens) for view in seen] == [("x", "started", 0)] * 2


# what cannot be read


@pytest.mark.parametrize("after", [-1, 2**63, 10**30, True, 1.0, None, "1", "", "$", "1-", "5-5-5"])
def test_a_place_that_is_no_token_number_is_refused(connection: redis.Redis, read: Read, after: Any) -> None:
    run(connection, *ANSWER)

    with pytest.raises(RequestError, match="a stream is read from after token 0"):
        read(connection, "x", after)


@pytest.mark.parametrize("job_id", ["a:b", "a b", "ü", "", "x\n", "x" * 129, None, b"x"])
def test_an_id_that_is_none_is_refused(connection: redis.Redis, read: Read, job_id: Any) -> None:
    with pytest.raises(RequestError, match="a job id must be 1 to 128 letters"):
        read(connection, job_id, 0)


@pytest.mark.parametrize(
    ("after", "lost", "missing"), [(0, [1], "token 1 is"), (1, [2, 3], "tokens 2 to 3 are"), (2, [4], "token 4 is")]
)
def test_a_gap_is_named(connection: redis.Redis, read: Read, after: int, lost: list[int], missing: str) -> None:
    run(connection, *ANSWER)
    connection.xdel(STREAM, *(f"{number}-0" for number in lost))

    with pytest.raises(StreamError, match=f"the stream has a gap: {missing} missing"):
        read(connection, "x", after)


def test_a_gap_between_two_pages_is_named(connection: redis.Redis, read: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tails, "_PAGE", 2)
    run(connection, *ANSWER)
    connection.xdel(STREAM, "3-0")

    with pytest.raises(StreamError, match="token 3 is missing"):
        read(connection, "x", 0)


@pytest.mark.parametrize(("entry_id", "fields"), [("1-1", {"id": 5, "text": ""}), ("1-0", {"message": "hello"})])
def test_an_alien_entry_is_refused(connection: redis.Redis, read: Read, entry_id: str, fields: dict[Any, Any]) -> None:
    start(connection)
    connection.xadd(STREAM, fields, id=entry_id)

    with pytest.raises(StreamError):
        read(connection, "x", 0)


def test_an_unknown_job_is_told(connection: redis.Redis, read: Read) -> None:
    with pytest.raises(UnknownJobError, match="unknown or expired job: nope"):
        read(connection, "nope", 0)


def test_a_stream_whose_job_is_forgotten_is_read(connection: redis.Redis, read: Read) -> None:
    run(connection, *ANSWER)
    fetch(connection, "x").delete()

    assert read(connection, "x", 1) == ANSWER[1:]


def test_a_job_whose_tokens_have_expired_is_unknown(connection: redis.Redis, read: Read) -> None:
    run(connection, *ANSWER)
    connection.delete(STREAM)

    with pytest.raises(UnknownJobError, match="x has finished, and its tokens have expired"):
        read(connection, "x", 0)


def test_a_job_that_expires_while_it_is_read_ends_its_reader(connection: redis.Redis) -> None:
    start(connection)
    write(connection, *ANSWER[:2])
    events = tail(connection, "x")
    assert [next(events), next(events)] == ANSWER[:2]

    connection.delete(STREAM)
    fetch(connection, "x").delete()

    with pytest.raises(UnknownJobError):
        next(events)


# ends that no worker writes


def overdue(connection: redis.Redis) -> None:
    """A job in the queue that has waited longer than it may."""
    submit(connection, ttl=1)
    job = fetch(connection, "x")
    job.meta[EXPIRES_AT] = 0.0
    job.save_meta()


TOO_LATE = EndEvent("timeout", 0, prompt_tokens=3, phase="waiting")


def test_a_job_that_waits_longer_than_its_ttl_ends_as_timed_out(connection: redis.Redis, read: Read) -> None:
    overdue(connection)

    assert read(connection, "x", 0) == [TOO_LATE]
    assert queue_of(connection).count == 0
    view = jobs.view(connection, "x")
    assert (view.state, view.error) == ("failed", "the job waited longer than its ttl")


def test_a_job_within_its_ttl_is_waited_for(connection: redis.Redis) -> None:
    submit(connection, ttl=1000)

    def run_it(view: JobView) -> None:
        write(connection, *ANSWER)

    assert list(tail(connection, "x", on_wait=run_it)) == ANSWER


def test_readers_who_find_a_job_too_late_at_once_write_one_end(connection: redis.Redis) -> None:
    overdue(connection)
    together = threading.Barrier(8)

    def reader() -> list[Event]:
        together.wait()
        return list(tail(connection, "x"))

    with ThreadPoolExecutor(8) as pool:
        found = [pool.submit(reader) for _ in range(8)]

    assert [read.result() for read in found] == [[TOO_LATE]] * 8
    assert connection.xlen(STREAM) == 1
    assert queue_of(connection).failed_job_registry.get_job_ids() == ["x"]


def test_a_job_that_rq_failed_before_it_ran_ends_in_error(connection: redis.Redis, read: Read) -> None:
    """A worker of another serializer cannot read the job; nothing of ours is ever called."""
    submit(connection)
    with signals_kept():
        SimpleWorker([keys.queue_name("base")], connection=connection).work(burst=True)

    (end,) = read(connection, "x", 0)

    assert isinstance(end, EndEvent)
    assert (end.reason, end.tokens) == ("error", 0)
    assert "DeserializationError" in (end.error or "")
    assert read(connection, "x", 0) == [end]


@contextmanager
def signals_kept() -> Iterator[None]:
    """RQ's worker takes the signals of its process and does not give them back."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_a_job_that_failed_in_the_middle_keeps_its_tokens(connection: redis.Redis, read: Read) -> None:
    start(connection)
    write(connection, *ANSWER[:2])
    fetch(connection, "x").set_status(JobStatus.FAILED)

    *tokens, end = read(connection, "x", 0)

    assert tokens == ANSWER[:2]
    assert end == EndEvent("error", 2, prompt_tokens=3, error="no reason was recorded")


def test_a_waiting_job_that_rq_cancelled_ends_as_cancelled(connection: redis.Redis, read: Read) -> None:
    submit(connection)
    fetch(connection, "x").cancel()

    assert read(connection, "x", 0) == [EndEvent("cancelled", 0, prompt_tokens=3)]


# connections


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
