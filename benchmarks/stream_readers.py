"""Clients in a process of their own that keep so many streams open: of OpenAI's API, and of Redis without it.

Both do as little as a client can, so that what is measured is what serves them. They time every token.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Final

from companion import companion, received

from minilab_gen.measurement import RunResult, TokenClock
from minilab_gen.protocol.connection import connect
from minilab_gen.protocol.events import TokenEvent
from minilab_gen.protocol.submission import Submission, enqueue
from minilab_gen.protocol.tail import Cursor, entries_by_stream
from minilab_gen.request import GenerationRequest

_IDS: Final = b'"token_ids":['
_NO_IDS: Final = b'"token_ids":[]'
"""In the chunks of what is left of the text, and of how an answer ended; every other one has one token."""
_LAST: Final = b"data: [DONE]"
_END: Final = b"0\r\n\r\n"
"""What ends a body that is sent in chunks."""
_BLOCK_MS: Final = 1000


@dataclass(frozen=True, slots=True)
class Load:
    """What is asked, and how much of it at once."""

    requests: Sequence[GenerationRequest]
    at_once: int
    port: int | None = None
    """Of a server that speaks OpenAI's API on this machine; None for Redis itself."""
    model: str = "base"


class Readers:
    """This side of the process."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    def read(self, load: Load) -> RunResult:
        """All answers: their tokens, from the first request to the last answer's end."""
        self._pipe.send(load)
        result: RunResult = received(self._pipe)
        return result


@contextmanager
def readers() -> Iterator[Readers]:
    """The process, stopped at the end."""
    with companion(_serve) as pipe:
        yield Readers(pipe)


def _serve(pipe: Connection) -> None:
    pipe.send("ready")
    while True:
        try:
            load = pipe.recv()
        except EOFError:
            return
        clock, start = TokenClock(), time.perf_counter()
        if load.port is None:
            _read_redis(load, clock)
        else:
            asyncio.run(_read_http(load, load.port, clock))
        pipe.send(RunResult(clock.tokens, time.perf_counter() - start, clock, None))


def _read_redis(load: Load, clock: TokenClock) -> None:
    """Submit to the queue and read all streams with one command, as a program would that waits for all answers."""
    with closing(connect()) as connection:
        waiting, cursors = list(reversed(load.requests)), dict[str, Cursor]()
        while waiting or cursors:
            while waiting and len(cursors) < load.at_once:
                asked = time.perf_counter()
                cursor = Cursor(enqueue(connection, waiting.pop(), Submission()), 0)
                cursors[cursor.key] = cursor
                clock.ask(cursor.key, asked)
            positions = {key: at for cursor in cursors.values() for key, at in cursor.position.items()}
            found = entries_by_stream(connection.xread(positions, block=_BLOCK_MS))
            now = time.perf_counter()
            for key, entries in found.items():
                for event in cursors[key].take(entries):
                    if isinstance(event, TokenEvent):
                        clock.take(key, now)
                if cursors[key].ended:
                    del cursors[key]


async def _read_http(load: Load, port: int, clock: TokenClock) -> None:
    waiting = list(reversed(list(enumerate(load.requests))))

    async def client() -> None:
        loop = asyncio.get_running_loop()
        transport, reader = await loop.create_connection(lambda: _Stream(clock), "127.0.0.1", port)
        try:
            while waiting:
                number, request = waiting.pop()
                await reader.ask(transport, f"{number}", _body(request, load.model))
        finally:
            transport.close()

    async with asyncio.TaskGroup() as group:
        for _ in range(load.at_once):
            group.create_task(client())


def _body(request: GenerationRequest, model: str) -> dict[str, Any]:
    return {
        "model": model,
        "prompt": list(request.prompt),
        "max_tokens": request.max_new_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
    }


class _Stream(asyncio.Protocol):
    """One connection, which asks for one stream after the other."""

    def __init__(self, clock: TokenClock) -> None:
        self._clock, self._name, self._rest, self._is_last = clock, "", b"", False
        self._end: asyncio.Future[None] | None = None

    async def ask(self, transport: asyncio.WriteTransport, name: str, body: dict[str, Any]) -> None:
        """Send a request and read its stream to the end. Raises ConnectionError for any other answer."""
        content = json.dumps(body).encode()
        head = "POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        self._name, self._rest, self._is_last = name, b"", False
        self._end = asyncio.get_running_loop().create_future()
        self._clock.ask(name, time.perf_counter())
        transport.write(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
        await self._end

    def data_received(self, data: bytes) -> None:
        end, now = self._end, time.perf_counter()
        if end is None or end.done():
            return
        whole, break_after, rest = (self._rest + data).rpartition(b"\n\n")
        self._rest = rest
        if whole.startswith(b"HTTP/1.1 ") and not whole.startswith(b"HTTP/1.1 200"):
            end.set_exception(ConnectionError(whole.decode(errors="replace")))
            return
        for _ in range(whole.count(_IDS) - whole.count(_NO_IDS)):
            self._clock.take(self._name, now)
        self._is_last |= bool(break_after) and whole.endswith(_LAST)
        if self._is_last and rest.endswith(_END):
            end.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        if self._end is not None and not self._end.done():
            self._end.set_exception(error or ConnectionError("the server closed a stream before its end"))
