"""A client in a process of its own that follows token streams and notes when tokens come.

``time.perf_counter`` is one clock for all processes of a machine.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from multiprocessing.connection import Connection
from typing import Any, Final

import redis
from companion import companion, received

from minilab_gen.measurement import TokenClock
from minilab_gen.protocol import keys
from minilab_gen.protocol.connection import connect
from minilab_gen.protocol.events import EndEvent, decode_entry, entry_id

_READ_MS: Final = 2
"""What one read waits at most for a token, so that a newcomer's stream is soon read, too."""


class Follower:
    """This side of it."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    def follow(self, job_id: str, asked: float) -> None:
        """Follow a job's stream to its end; ``asked`` is when its submitter was done."""
        self._pipe.send((job_id, asked))

    def collect(self) -> TokenClock:
        """The times of all tokens since the last call, once every stream has ended."""
        self._pipe.send(None)
        clock: TokenClock = received(self._pipe)
        return clock


@contextmanager
def follower() -> Iterator[Follower]:
    """A follower, stopped at the end."""
    with companion(_follow) as pipe:
        yield Follower(pipe)


def _follow(pipe: Connection) -> None:
    """The other side: reads until the pipe is closed."""
    with closing(connect()) as connection:
        pipe.send("ready")
        streams, is_last = _Streams(connection), False
        while True:
            while pipe.poll(None if streams.are_over and not is_last else 0):
                try:
                    told = pipe.recv()
                except EOFError:
                    return
                is_last = told is None
                if told is not None:
                    streams.add(*told)
            if not streams.are_over:
                streams.read()
            elif is_last:
                pipe.send(streams.clock)
                streams, is_last = _Streams(connection), False


class _Streams:
    """Those that have not ended, and how far each is read."""

    def __init__(self, connection: redis.Redis) -> None:
        self._connection = connection
        self._positions: dict[str, str] = {}
        self.clock = TokenClock()

    @property
    def are_over(self) -> bool:
        return not self._positions

    def add(self, job_id: str, asked: float) -> None:
        stream = keys.token_stream(job_id)
        self._positions[stream] = entry_id(0)
        self.clock.ask(stream, asked)

    def read(self) -> None:
        positions: Any = self._positions
        answer: Any = self._connection.xread(positions, block=_READ_MS)
        now = time.perf_counter()
        for raw_stream, entries in answer or ():
            stream = raw_stream.decode()
            for entry in entries:
                event = decode_entry(entry)
                if isinstance(event, EndEvent):
                    del self._positions[stream]
                else:
                    self._positions[stream] = entry_id(event.number)
                    self.clock.take(stream, now)
