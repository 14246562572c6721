"""Token streams in Redis: each entry once, in order, never without an expiry; what is not ours is told as such."""

from __future__ import annotations

from typing import Any, cast

import pytest
import redis

from minilab_gen.errors import StreamError
from minilab_gen.protocol import keys
from minilab_gen.protocol.events import END_REASONS, EndEvent, Event, TokenEvent, decode_entry
from minilab_gen.protocol.streams import publish, published_tokens, read_stream

STREAM = keys.token_stream("x")
TTL = 600
"""Seconds of life of a running job's stream: longer than any test."""
ANSWER: list[Event] = [
    TokenEvent(1, 5, " é"),
    TokenEvent(2, 2047, ""),
    TokenEvent(3, 0, "😀\x00\r\n"),
    TokenEvent(4, 7, "�"),
    EndEvent("length", tokens=4, prompt_tokens=3),
]


def write(connection: redis.Redis, *events: Event, job_id: str = "x") -> None:
    publish(connection, [(job_id, event) for event in events], running_ttl=TTL)


def stored(connection: redis.Redis) -> list[tuple[bytes, dict[bytes, bytes]]]:
    """The raw entries of the stream."""
    entries: Any = connection.xrange(STREAM)
    return list(entries)


def test_token_n_is_the_entry_n_0_with_its_id_and_its_text(connection: redis.Redis) -> None:
    write(connection, TokenEvent(1, 12, " é"), TokenEvent(2, 0, ""))

    assert stored(connection) == [
        (b"1-0", {b"id": b"12", b"text": " é".encode()}),
        (b"2-0", {b"id": b"0", b"text": b""}),
    ]


@pytest.mark.parametrize(
    ("end", "fields"),
    [
        (EndEvent("stop", 2, 3, stop_id=0), {b"end": b"stop", b"stop_id": b"0"}),
        (EndEvent("length", 2, 3, text="�"), {b"end": b"length", b"text": "�".encode()}),
        (EndEvent("context", 2, 3), {b"end": b"context"}),
        (EndEvent("cancelled", 2, 3), {b"end": b"cancelled"}),
        (EndEvent("timeout", 2, 3, phase="running"), {b"end": b"timeout", b"phase": b"running"}),
        (EndEvent("error", 2, 3, error="non-finite\nlogits"), {b"end": b"error", b"error": b"non-finite\nlogits"}),
    ],
    ids=END_REASONS,
)
def test_the_terminal_entry_follows_with_its_reason_and_counts(
    connection: redis.Redis, end: EndEvent, fields: dict[bytes, bytes]
) -> None:
    write(connection, TokenEvent(1, 12, " é"), TokenEvent(2, 0, ""), end)

    assert stored(connection)[2:] == [(b"3-0", fields | {b"tokens": b"2", b"prompt_tokens": b"3"})]
    assert published_tokens(connection, "x")[1] == end


def test_a_job_that_ends_before_its_first_token_has_only_the_terminal_entry(connection: redis.Redis) -> None:
    end = EndEvent("timeout", 0, 3, phase="waiting")

    write(connection, end)

    assert [entry_id for entry_id, _ in stored(connection)] == [b"1-0"]
    assert published_tokens(connection, "x") == ([], end)


def test_what_is_read_is_what_was_written(connection: redis.Redis) -> None:
    write(connection, *ANSWER)

    assert read_stream(connection, "x") == ANSWER


def test_an_entry_that_is_sent_again_is_stored_once(connection: redis.Redis) -> None:
    for event in ANSWER:
        write(connection, event)
        write(connection, event)

    assert read_stream(connection, "x") == ANSWER


def test_what_stands_in_a_stream_is_not_changed_by_a_late_writer(connection: redis.Redis) -> None:
    write(connection, *ANSWER)

    write(connection, TokenEvent(2, 99, "late"), EndEvent("cancelled", tokens=2, prompt_tokens=3))

    assert read_stream(connection, "x") == ANSWER


def test_entries_sent_again_do_not_hold_up_those_behind_them(connection: redis.Redis) -> None:
    write(connection, *ANSWER[:3])

    write(connection, *ANSWER)

    assert read_stream(connection, "x") == ANSWER


def test_one_call_serves_many_streams(connection: redis.Redis) -> None:
    names = [f"job-{number}" for number in range(50)]

    for event in ANSWER:
        publish(connection, [(name, event) for name in names], running_ttl=TTL)

    assert [read_stream(connection, name) for name in names] == [ANSWER] * len(names)


def test_a_stream_has_an_expiry_at_all_times(connection: redis.Redis) -> None:
    for event in ANSWER[:-1]:
        write(connection, event)
        assert 0 < connection.ttl(STREAM) <= TTL
    write(connection, ANSWER[-1])

    assert keys.RETENTION - 60 < connection.ttl(STREAM) <= keys.RETENTION


def test_a_stream_that_was_lost_in_the_middle_has_an_expiry_again(connection: redis.Redis) -> None:
    write(connection, *ANSWER[:2])
    connection.delete(STREAM)

    write(connection, ANSWER[2])

    assert 0 < connection.ttl(STREAM) <= TTL


def test_the_first_entry_and_its_expiry_cannot_be_parted(server: redis.Redis) -> None:
    with server.monitor() as monitor:
        write(server, ANSWER[0])
        seen = [monitor.next_command()["command"].split()[0]]
        while seen[-1] != "EXEC":
            seen.append(monitor.next_command()["command"].split()[0])

    assert seen[seen.index("MULTI") :] == ["MULTI", "XADD", "EXPIRE", "EXEC"]


@pytest.mark.parametrize(
    ("lost", "missing"),
    [
        ([1], "token 1 is missing"),
        ([2], "token 2 is missing"),
        ([1, 2, 3], "tokens 1 to 3 are missing"),
        ([3, 4], "tokens 3 to 4 are missing"),
    ],
)
def test_a_gap_is_named(connection: redis.Redis, lost: list[int], missing: str) -> None:
    write(connection, *ANSWER)
    connection.xdel(STREAM, *(f"{number}-0" for number in lost))

    with pytest.raises(StreamError, match=f"the stream has a gap: {missing}"):
        read_stream(connection, "x")


def test_nothing_follows_an_end(connection: redis.Redis) -> None:
    """A worker that stood still may wake with more tokens, or with another end."""
    write(connection, TokenEvent(1, 5, "a"), EndEvent("cancelled", 1, 3))

    write(connection, TokenEvent(3, 6, "b"), EndEvent("timeout", 3, 3, phase="running"))

    assert read_stream(connection, "x") == [TokenEvent(1, 5, "a"), EndEvent("cancelled", 1, 3)]
    assert connection.xlen(STREAM) == 2


def test_an_end_that_comes_too_late_does_not_seal_the_stream(connection: redis.Redis) -> None:
    write(connection, TokenEvent(1, 5, "a"), TokenEvent(2, 6, "b"))

    write(connection, EndEvent("cancelled", 1, 3))
    write(connection, TokenEvent(3, 7, "c"))

    assert [event.number for event in read_stream(connection, "x")] == [1, 2, 3]


def test_a_stream_that_goes_on_after_its_end_is_refused(connection: redis.Redis) -> None:
    for event in (TokenEvent(1, 5, "a"), EndEvent("cancelled", 1, 3), TokenEvent(3, 6, "b")):
        connection.xadd(STREAM, cast(dict[Any, Any], event.to_fields()), id=f"{event.number}-0")

    with pytest.raises(StreamError, match="the stream goes on after its end at 2"):
        read_stream(connection, "x")


@pytest.mark.parametrize("entry_id", ["1-1", "1-5", "0-1", "1700000000000-1"])
def test_an_entry_with_an_id_that_is_not_ours_is_refused(connection: redis.Redis, entry_id: str) -> None:
    connection.xadd(STREAM, {"id": 5, "text": ""}, id=entry_id)

    with pytest.raises(StreamError, match=f"a token stream's entry ids must be n-0, got {entry_id}"):
        read_stream(connection, "x")


ALIEN_FIELDS: list[dict[Any, Any]] = [
    {"id": "5"},
    {"text": "a"},
    {"id": "five", "text": "a"},
    {"id": "", "text": "a"},
    {"message": "hello"},
    {b"\xff": "a"},
    {"end": "finished", "tokens": 0, "prompt_tokens": 3},
    {"end": "length", "tokens": "none", "prompt_tokens": 3},
    {"end": "length", "tokens": 0},
    {"end": "length"},
    {"end": "stop", "tokens": 0, "prompt_tokens": 3, "stop_id": "x"},
]


@pytest.mark.parametrize("fields", ALIEN_FIELDS, ids=str)
def test_an_entry_that_is_neither_a_token_nor_an_end_is_refused(
    connection: redis.Redis, fields: dict[Any, Any]
) -> None:
    connection.xadd(STREAM, fields, id="1-0")

    with pytest.raises(StreamError, match="entry 1 is neither a token nor an end"):
        read_stream(connection, "x")


def test_an_end_whose_count_is_not_its_place_is_refused(connection: redis.Redis) -> None:
    """Else tokens could be lost before it and the rest would pass for the whole."""
    connection.xadd(STREAM, EndEvent("length", tokens=0, prompt_tokens=3).to_fields(), id="5-0")  # type: ignore[arg-type]

    with pytest.raises(StreamError, match="entry 5 is neither a token nor an end"):
        read_stream(connection, "x")


def test_text_that_is_no_utf_8_is_shown_as_replaced() -> None:
    event = decode_entry((b"1-0", {b"id": b"5", b"text": b"\xff"}))

    assert event == TokenEvent(1, 5, "�")


def test_a_key_that_holds_something_else_is_no_stream_to_write_to(connection: redis.Redis) -> None:
    connection.set(STREAM, "text")

    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        write(connection, ANSWER[0])


def test_a_token_costs_less_than_100_bytes(server: redis.Redis) -> None:
    write(server, *(TokenEvent(number, 2000, " was") for number in range(1, 1001)))

    size = server.memory_usage(STREAM, samples=0)
    assert size is not None
    assert size < 100 * 1000
