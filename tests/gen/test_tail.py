"""Reading a token stream while it grows: plain and async, on a fake and a real server, the same to the one end."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from typing import Any

import pytest
import redis
from support.tail_readers import ANSWER, STREAM, Read, async_twin, in_thread, run, start, write

from minilab_gen.errors import RequestError, StreamError, UnknownJobError
from minilab_gen.protocol import tail as tails
from minilab_gen.protocol.events import EndEvent, TokenEvent
from minilab_gen.protocol.jobs import JobView, fetch
from minilab_gen.protocol.tail import tail, tail_async

pytestmark = pytest.mark.usefixtures("short_blocks")

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
    monkeypatch.setattr(tails, "PAGE", page)
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
    monkeypatch.setattr(tails, "PAGE", 2)
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
