"""Several streams read at once: every event of each in its order, as it comes, whatever becomes of the others."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest
import redis
from support.client_program import end, overdue, run, start, submit, write

from minilab_gen.errors import NotEndedError, StreamError, UnknownJobError
from minilab_gen.protocol import keys
from minilab_gen.protocol.events import EndEvent, TokenEvent
from minilab_gen.protocol.tail_together import tail_together


@pytest.fixture(autouse=True)
def short_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocking reads wait for a moment only."""
    monkeypatch.setattr("minilab_gen.protocol.tail_together.BLOCK_MS", 20)


def running(connection: redis.Redis, *job_ids: str) -> None:
    for job_id in job_ids:
        submit(connection, job_id)
        start(connection, job_id)


def texts(found: list[tuple[int, Any]], place: int) -> str:
    return "".join(event.text for at, event in found if at == place)


@pytest.mark.parametrize("page", [1, 7, 1000])
def test_each_stream_is_whole_and_in_order(connection: redis.Redis, monkeypatch: pytest.MonkeyPatch, page: int) -> None:
    monkeypatch.setattr("minilab_gen.protocol.tail_together.PAGE", page)
    for place, length in enumerate((10, 0, 25)):
        run(connection, f"x-{place}", [f"{place}.{n} " for n in range(length)])

    found = list(tail_together(connection, ["x-0", "x-1", "x-2"]))

    for place, length in enumerate((10, 0, 25)):
        assert texts(found, place) == "".join(f"{place}.{n} " for n in range(length))
        assert [isinstance(event, EndEvent) for at, event in found if at == place] == [False] * length + [True]


def test_events_come_as_they_are_written(connection: redis.Redis) -> None:
    running(connection, "x-0", "x-1")
    with closing(tail_together(connection, ["x-0", "x-1"])) as events:
        write(connection, "x-1", "late")
        assert next(events) == (1, TokenEvent(1, 101, "late"))
        write(connection, "x-0", "first")
        assert next(events) == (0, TokenEvent(1, 101, "first"))
        end(connection, "x-1", 1)
        place, last = next(events)
        assert (place, isinstance(last, EndEvent)) == (1, True)
        write(connection, "x-0", "more", after=1)
        assert next(events) == (0, TokenEvent(2, 102, "more"))
        end(connection, "x-0", 2)
        assert [at for at, _ in events] == [0]


def test_a_job_that_is_unknown_or_damaged_does_not_end_the_others(connection: redis.Redis) -> None:
    run(connection, "x-0", ["a"])
    run(connection, "x-2", ["a"])
    connection.xadd(keys.token_stream("x-3"), {"id": "7", "text": ""}, id="2-0")

    found = list(tail_together(connection, ["x-0", "x-1", "x-2", "x-3"]))

    kinds = {(place, type(event)) for place, event in found}
    assert {(1, UnknownJobError), (3, StreamError)} <= kinds
    assert [place for place, event in found if isinstance(event, EndEvent)] == [0, 2]


def test_a_job_that_waited_too_long_ends_while_another_has_tokens(connection: redis.Redis) -> None:
    running(connection, "x-0")
    overdue(connection, "x-1")
    ended: list[EndEvent] = []
    with closing(tail_together(connection, ["x-0", "x-1"])) as events:
        number = 0
        while not ended:
            write(connection, "x-0", "a", after=number)
            number += 1
            assert number < 1000
            place, event = next(events)
            if isinstance(event, EndEvent):
                assert place == 1
                ended.append(event)

    assert ended[0].reason == "timeout"


@pytest.mark.parametrize("page", [1, 1000])
def test_what_there_is_comes_before_the_time_is_up(
    connection: redis.Redis, monkeypatch: pytest.MonkeyPatch, page: int
) -> None:
    monkeypatch.setattr("minilab_gen.protocol.tail_together.PAGE", page)
    running(connection, "x-0", "x-1")
    write(connection, "x-0", "a")
    write(connection, "x-1", "b")
    end(connection, "x-1", 1)

    for seconds in (0, 0.1):
        events = tail_together(connection, ["x-0", "x-1"], wait=seconds)
        assert [next(events)[0] for _ in range(3)] == [0, 1, 1]
        with pytest.raises(NotEndedError, match=f"job x-0 has not ended within {seconds} s"):
            next(events)


def test_what_is_waited_for_is_told_of_the_first_that_has_not_ended(connection: redis.Redis) -> None:
    run(connection, "x-0", ["a"])
    submit(connection, "x-1")
    submit(connection, "x-2")
    told = []

    with pytest.raises(NotEndedError):
        list(tail_together(connection, ["x-0", "x-1", "x-2"], on_wait=lambda now: told.append(now.job_id), wait=0.2))

    assert set(told) == {"x-1"}
