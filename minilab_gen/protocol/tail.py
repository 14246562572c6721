"""Reading token streams as they grow: from any token, by any number of readers, to the one end.

What there is to decide lies in :class:`Cursor`, which does no input or output; the
plain and the async reader feed it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Generator
from typing import Any

import redis
import redis.asyncio

from minilab_gen.errors import NotEndedError, RequestError
from minilab_gen.protocol import keys
from minilab_gen.protocol.connection import BLOCK_MS
from minilab_gen.protocol.endings import settle
from minilab_gen.protocol.events import EndEvent, Event, RawEntry, decode_entry, entry_id
from minilab_gen.protocol.jobs import JobView, view
from minilab_gen.protocol.streams import check_unbroken

PAGE = 1000
"""Entries in one read: a long answer comes in a few round trips, each small."""

Tail = Generator[Event, None, None]
AsyncTail = AsyncGenerator[Event, None]
"""Generators and not only iterators: to close one gives its connection back at once."""

_LAST_NUMBER = 2**63 - 1
"""The largest number that every part of Redis counts to."""

OnWait = Callable[[JobView], None]
"""Called each time that a while passed without a new entry."""


class Cursor:
    """How far a reader has come in a stream, and what to make of what it finds."""

    def __init__(self, job_id: str, after: int) -> None:
        if type(after) is not int or not 0 <= after <= _LAST_NUMBER:
            raise RequestError(f"a stream is read from after token 0 to {_LAST_NUMBER}, got {after!r}")
        self.key = keys.token_stream(keys.check_job_id(job_id))
        self._after = after
        self.ended = False

    @property
    def position(self) -> dict[Any, Any]:
        """What XREAD is to be asked for."""
        return {self.key: entry_id(self._after)}

    def read(self, answer: Any) -> list[Event]:
        """The events in XREAD's answer. Raises StreamError where a token is missing."""
        return self.take(entries_by_stream(answer).get(self.key, []))

    def take(self, entries: list[RawEntry]) -> list[Event]:
        """The events in the entries that follow. Raises StreamError where a token is missing."""
        events = [decode_entry(entry) for entry in entries]
        check_unbroken(events, self._after)
        self._after += len(events)
        self.ended = bool(events) and isinstance(events[-1], EndEvent)
        return events

    def read_last(self, answer: Any) -> list[Event]:
        """The end, if the last entry is one and lies at or before the cursor: nothing more will come."""
        last = decode_entry(answer[0]) if answer else None
        self.ended = isinstance(last, EndEvent) and last.number <= self._after
        return [last] if last is not None and self.ended else []


def tail(
    connection: redis.Redis, job_id: str, after: int = 0, *, on_wait: OnWait | None = None, wait: float | None = None
) -> Tail:
    """Yield the events of a job after token ``after``, waiting for those to come, to the terminal one.

    After ``wait`` seconds, where it is given, what there is by then is yielded, and NotEndedError raised.

    Reads on a connection of its own, dropped at the end, so that a reader that stops in the middle leaves no answer
    behind for the next command. Raises RequestError at once for a bad id or number; UnknownJobError, StreamError and
    what redis-py raises while it reads.
    """
    return _tail(connection, Cursor(job_id, after), job_id, on_wait, wait)


def _tail(connection: redis.Redis, cursor: Cursor, job_id: str, on_wait: OnWait | None, wait: float | None) -> Tail:
    until = None if wait is None else time.monotonic() + wait
    own = connection_of_its_own(connection)
    block: int | None = None  # the first read asks only for what is there
    try:
        while True:
            events = cursor.read(own.xread(cursor.position, count=PAGE, block=block))
            if not events:
                events = cursor.read_last(own.xrevrange(cursor.key, count=1))
            yield from events
            if cursor.ended:
                return
            if not events:
                settle(own, job_id)
                if on_wait and block:
                    on_wait(view(own, job_id))
            is_all = block is None and len(events) < PAGE  # that there is by now
            if until is not None and is_all and time.monotonic() >= until:
                raise NotEndedError(f"job {job_id} has not ended within {wait:g} s")
            block = BLOCK_MS if until is None else block_until(until)
    finally:
        own.close()
        own.connection_pool.disconnect()


def connection_of_its_own(connection: redis.Redis) -> redis.Redis:
    """A connection to the same server, for a reader that blocks, to be closed with its pool."""
    pool = connection.connection_pool
    return redis.Redis(
        connection_pool=redis.ConnectionPool(pool.connection_class, max_connections=1, **pool.connection_kwargs)
    )


def block_until(moment: float) -> int | None:
    """Milliseconds for which the next read may wait; None, for one that takes what is there, where time is up."""
    left = int(1000 * (moment - time.monotonic()))
    return min(BLOCK_MS, left) if left > 0 else None


async def tail_async(connection: redis.asyncio.Redis, records: redis.Redis, job_id: str, after: int = 0) -> AsyncTail:
    """The async :func:`tail`; the same events and errors.

    ``records`` is a plain connection to the same server: RQ's records of jobs are read with it, in a thread.
    """
    cursor = Cursor(job_id, after)
    pool = connection.connection_pool
    own = redis.asyncio.Redis(
        connection_pool=redis.asyncio.ConnectionPool(pool.connection_class, max_connections=1, **pool.connection_kwargs)
    )
    block: int | None = None
    try:
        while not cursor.ended:
            events = cursor.read(await own.xread(cursor.position, count=PAGE, block=block))
            if not events:
                events = cursor.read_last(await own.xrevrange(cursor.key, count=1))
            for event in events:
                yield event
            if not events:
                await asyncio.to_thread(settle, records, job_id)
            block = BLOCK_MS
    finally:
        await own.aclose()
        await own.connection_pool.disconnect()


def entries_by_stream(answer: Any) -> dict[str, list[RawEntry]]:
    """The entries in XREAD's answer, by the key of their stream, whichever protocol version gave its shape."""
    if not answer:
        return {}
    found = {}
    for name, entries in answer.items() if isinstance(answer, dict) else answer:
        is_nested = isinstance(answer, dict) and entries and isinstance(entries[0], list)
        found[name.decode()] = list(entries[0]) if is_nested else list(entries)
    return found
