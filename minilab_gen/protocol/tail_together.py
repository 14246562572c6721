"""Reading the token streams of several jobs at once, each event as it comes."""

from __future__ import annotations

import math
import time
from collections.abc import Generator, Sequence
from contextlib import suppress
from typing import Any

import redis

from minilab_gen.errors import MiniLabError, NotEndedError, StreamError, UnknownJobError
from minilab_gen.protocol.connection import BLOCK_MS
from minilab_gen.protocol.endings import settle
from minilab_gen.protocol.events import Event, RawEntry
from minilab_gen.protocol.jobs import view
from minilab_gen.protocol.tail import PAGE, Cursor, OnWait, block_until, connection_of_its_own, entries_by_stream

TailTogether = Generator[tuple[int, Event | MiniLabError], None, None]
"""The place of a job among those that are read, and its next event, or why there is none."""


def tail_together(
    connection: redis.Redis, job_ids: Sequence[str], *, on_wait: OnWait | None = None, wait: float | None = None
) -> TailTogether:
    """Yield the events of jobs from the first token on, whichever come first, until each has ended.

    A job that is unknown or damaged gets its error in place of an event, and the others are read on. After ``wait``
    seconds, where it is given, what there is by then is yielded, and NotEndedError raised. Reads on a connection of its
    own, as :func:`tail` does. Raises what redis-py raises.
    """
    until = None if wait is None else time.monotonic() + wait
    readers = [_Reader(place, job_id) for place, job_id in enumerate(job_ids)]
    own = connection_of_its_own(connection)
    block: int | None = None  # the first read asks only for what is there
    try:
        while readers:
            positions = {name: at for reader in readers for name, at in reader.cursor.position.items()}
            found = entries_by_stream(own.xread(positions, count=PAGE, block=block))
            for reader in readers:
                for event in reader.read(own, found.get(reader.cursor.key, [])):
                    yield reader.place, event
            is_all = block is None and all(len(entries) < PAGE for entries in found.values())  # that there is by now
            readers = [reader for reader in readers if not reader.is_done]
            if readers and not found and on_wait and block:
                with suppress(UnknownJobError):  # which is found out as it is read
                    on_wait(view(own, readers[0].job_id))
            if readers and until is not None and is_all and time.monotonic() >= until:
                raise NotEndedError(f"job {readers[0].job_id} has not ended within {wait:g} s")
            block = BLOCK_MS if until is None else block_until(until)
    finally:
        own.close()
        own.connection_pool.disconnect()


class _Reader:
    """One of the jobs."""

    def __init__(self, place: int, job_id: str) -> None:
        self.place, self.job_id, self.cursor = place, job_id, Cursor(job_id, 0)
        self.is_done = False
        self._looked_at = -math.inf  # by the monotonic clock: when it had an event, or nothing that keeps it from one

    def read(self, connection: redis.Redis, entries: list[RawEntry]) -> list[Any]:
        """What to yield for these new entries; where there are none for long, what no worker does is done."""
        try:
            events = self.cursor.take(entries)
            if not events and time.monotonic() - self._looked_at > BLOCK_MS / 1000:
                settle(connection, self.job_id)
                self._looked_at = time.monotonic()
        except (UnknownJobError, StreamError) as error:
            self.is_done = True
            return [error]
        if events:
            self._looked_at = time.monotonic()
        self.is_done = self.cursor.ended
        return list(events)
