"""Follows all live token streams of a process with one blocking read, and hands each reader its events.

One task asks Redis for everything behind the cursors of all readers at once, so a thousand of them need one connection.
A reader that comes while that task waits has the wait ended (``CLIENT UNBLOCK``), and is asked for with the others;
where Redis allows no such command, waits are short instead.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, Callable
from typing import Any, Final, Self

import redis
import redis.asyncio
from redis.exceptions import RedisError, ResponseError

from minilab_gen.errors import MiniLabError
from minilab_gen.protocol.connection import BLOCK_MS
from minilab_gen.protocol.events import Event, RawEntry, entry_id, entry_number
from minilab_gen.protocol.tail import Cursor, entries_by_stream

_log = logging.getLogger(__name__)

_PAGE: Final = 1000
"""Entries of one stream in one read."""

_SHORT_BLOCK_MS: Final = 50
"""Milliseconds of a wait that nothing can end early: what a new reader then waits at most."""

_REST: Final = 4
"""Times as long as handing tokens over took does the next read wait: what comes meanwhile goes out in one piece, and
the processors are left to whoever makes tokens. A lone stream is held up for a millisecond, many are for some."""

_SHORTEST_REST: Final = 0.001
"""Seconds: an event loop cannot wait less."""

_LONGEST_REST: Final = 0.02
"""Seconds, which nobody sees."""

_PAUSE_SECONDS: Final = 0.2
"""Between attempts while Redis does not answer."""

_QUIET_SECONDS: Final = 2.0
"""After so long without an entry a job is looked after: it may have ended in the queue."""

_SETTLED_A_SECOND: Final = 50
"""Quiet jobs that are looked after in a second; each takes a millisecond of Redis and of this process."""

Settle = Callable[[str], None]
"""What is done about a job whose stream stays quiet. It is called in a thread, and may raise, which ends reading."""


class _Reader:
    """One reader of one stream: how far it is, and what it has not taken yet."""

    def __init__(self, job_id: str, after: int) -> None:
        self.job_id, self.cursor = job_id, Cursor(job_id, after)
        self.ready: asyncio.Queue[list[Event] | BaseException] = asyncio.Queue()
        self.is_asked_for = False
        """Whether a read that is under way would find its events."""
        self.heard_at = time.monotonic()

    def take(self, entries: list[RawEntry]) -> None:
        """Keep what is behind the cursor; another reader of the same stream may be further behind."""
        if entries and entry_number(entries[0][0]) <= self.cursor.after:
            entries = [entry for entry in entries if entry_number(entry[0]) > self.cursor.after]
        events = self.cursor.take(entries)
        if events:
            self.heard_at = time.monotonic()
            self.ready.put_nowait(events)

    def take_end(self, last: Any) -> None:
        """Keep the end of a stream that has nothing behind the cursor any more."""
        if events := self.cursor.read_last(last):
            self.ready.put_nowait(events)


class StreamHub:
    """All readers of one process. Use it as an async context manager."""

    def __init__(self, connection: redis.asyncio.Redis, settle: Settle) -> None:
        """``connection`` gives two of its pool's connections, for waiting and for all else."""
        self.connection, self._settle = connection, settle
        self._readers: set[_Reader] = set()
        self._arrived = asyncio.Event()
        self._waker = asyncio.Lock()
        self._client_id: int | None = None
        """Of the connection that waits, while it does."""
        self._can_wake = True
        self._is_suspicious = False
        """Whether a read has failed since all keys were looked at."""
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        jobs = {"stream hub": self._serve(), "quiet streams": self._look_after_quiet_ones()}
        self._tasks = [asyncio.create_task(job, name=name) for name, job in jobs.items()]
        return self

    async def __aexit__(self, *_exception: object) -> None:
        running = set(self._tasks)
        while running:  # redis-py loses a cancellation that comes together with an answer
            for task in running:
                task.cancel()
            _done, running = await asyncio.wait(running, timeout=0.1)
        for reader in list(self._readers):
            self._end(reader, ConnectionError("the gateway is shutting down"))

    @property
    def readers(self) -> int:
        """How many wait for what is to come."""
        return len(self._readers)

    async def follow(self, job_id: str, after: int = 0) -> AsyncGenerator[list[Event], None]:
        """Yield the events of a job behind token ``after``, those that are there together, to the terminal one.

        Raises RequestError at the first step for a bad id or number; UnknownJobError and StreamError as they are found.
        An outage of Redis is waited for: what can be read then follows.
        """
        reader = _Reader(job_id, after)
        self._readers.add(reader)
        try:
            await self._wake(reader)
            while not reader.cursor.ended or not reader.ready.empty():
                found = await reader.ready.get()
                if isinstance(found, BaseException):
                    raise found
                yield found
        finally:
            self._readers.discard(reader)

    async def _wake(self, reader: _Reader) -> None:
        """Have a wait end that does not know a new reader."""
        self._arrived.set()
        async with self._waker:  # those that come together need it once
            while self._can_wake and self._client_id is not None and not reader.is_asked_for:
                try:
                    ended = await self.connection.client_unblock(self._client_id)
                except ResponseError as error:
                    _log.warning(
                        "Redis refuses CLIENT UNBLOCK: new readers wait up to %d ms: %s", _SHORT_BLOCK_MS, error
                    )
                    self._can_wake = False
                except RedisError:
                    return  # the wait will end, too, and the new reader is asked for in the next
                else:
                    if ended:
                        return
                    await asyncio.sleep(0.001)  # the command that waits has not reached Redis yet

    async def _serve(self) -> None:
        while True:
            try:
                async with self.connection.client() as own:  # one connection, whose waits can be ended by its id
                    await self._read_all(own, int(await self._id_of(own)))
            except RedisError as error:
                _log.warning("token streams cannot be read: %s", _first_line(error))
            except Exception:  # noqa: BLE001 - the readers wait on, and the log says for what
                _log.exception("token streams cannot be read")
            self._client_id, self._is_suspicious = None, True
            for reader in self._readers:
                reader.is_asked_for = False
            await asyncio.sleep(_PAUSE_SECONDS)

    async def _id_of(self, own: redis.asyncio.Redis) -> int:
        try:
            return int(await own.client_id())
        except ResponseError:  # a user that may not ask for it may not use it, either
            self._can_wake = False
            return 0

    async def _read_all(self, own: redis.asyncio.Redis, client_id: int) -> None:
        while True:
            self._arrived.clear()
            readers = list(self._readers)
            if not readers:
                await self._arrived.wait()
                continue
            if self._is_suspicious:  # a key that is no stream fails the read of all
                await self._find_ended(own, readers)
                self._is_suspicious = False
            for reader in readers:
                reader.is_asked_for = True
            waiting = [reader for reader in readers if reader in self._readers]
            if waiting:
                await self._read_once(own, client_id, waiting)

    async def _read_once(self, own: redis.asyncio.Redis, client_id: int, readers: list[_Reader]) -> None:
        """One read for all of them, which waits until there is something for one."""
        self._client_id = client_id
        try:
            block = BLOCK_MS if self._can_wake else _SHORT_BLOCK_MS
            answer = await own.xread(_earliest(readers), count=_PAGE, block=block)
        finally:
            self._client_id = None
        began = time.monotonic()
        found = entries_by_stream(answer)
        for reader in readers:
            if reader.cursor.key in found:
                self._hand_over(reader, found[reader.cursor.key])
        await asyncio.sleep(0)  # behind the readers, who send now what they were given
        rest = _REST * (time.monotonic() - began)
        if rest >= _SHORTEST_REST:
            await asyncio.sleep(min(rest, _LONGEST_REST))

    async def _find_ended(self, own: redis.asyncio.Redis, readers: list[_Reader]) -> None:
        """Give readers the end of a stream behind which they began, where no read would find anything.

        A reader whose key is no stream is ended, so that the others go on.
        """
        async with own.pipeline(transaction=False) as pipeline:
            for reader in readers:
                pipeline.xrevrange(reader.cursor.key, count=1)
            lasts = await pipeline.execute(raise_on_error=False)
        for reader, last in zip(readers, lasts, strict=True):
            if isinstance(last, ResponseError):
                self._end(reader, last)
                continue
            if isinstance(last, Exception):
                raise last
            self._guarded(reader, lambda reader=reader, last=last: reader.take_end(last))  # type: ignore[misc]

    def _hand_over(self, reader: _Reader, entries: list[RawEntry]) -> None:
        self._guarded(reader, lambda: reader.take(entries))

    def _guarded(self, reader: _Reader, take: Callable[[], None]) -> None:
        try:
            take()
        except MiniLabError as error:
            self._end(reader, error)
        if reader.cursor.ended:
            self._readers.discard(reader)

    def _end(self, reader: _Reader, error: BaseException) -> None:
        reader.ready.put_nowait(error)
        self._readers.discard(reader)

    async def _look_after_quiet_ones(self) -> None:
        while True:
            await asyncio.sleep(_QUIET_SECONDS / 4)
            latest = time.monotonic() - _QUIET_SECONDS
            quiet = sorted((r for r in self._readers if r.heard_at <= latest), key=lambda r: r.heard_at)
            for job_id in dict.fromkeys(r.job_id for r in quiet[: int(_SETTLED_A_SECOND * _QUIET_SECONDS / 4)]):
                await self._look_after(job_id)

    async def _look_after(self, job_id: str) -> None:
        error: BaseException | None = None
        try:
            await asyncio.to_thread(self._settle, job_id)
        except RedisError:
            pass  # whoever reads the streams says so
        except Exception as found:  # noqa: BLE001 - it is told to the readers of this job
            error = found
        for reader in [reader for reader in self._readers if reader.job_id == job_id]:
            reader.heard_at = time.monotonic()
            if error is not None:
                self._end(reader, error)
            else:
                await self._end_where_nothing_will_come(reader)

    async def _end_where_nothing_will_come(self, reader: _Reader) -> None:
        """A reader that began behind a token which never came is given the end that came before it."""
        with contextlib.suppress(RedisError):
            last = await self.connection.xrevrange(reader.cursor.key, count=1)
            self._guarded(reader, lambda: reader.take_end(last))


def _earliest(readers: list[_Reader]) -> dict[Any, Any]:
    """Where each stream is to be read from: behind the cursor of its last reader."""
    after: dict[str, int] = {}
    for reader in readers:
        key = reader.cursor.key
        after[key] = min(after.get(key, reader.cursor.after), reader.cursor.after)
    return {key: entry_id(number) for key, number in after.items()}


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
