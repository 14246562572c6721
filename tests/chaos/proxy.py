"""A bad network between programs and Redis: it loses answers, holds questions and closes connections when told to."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, Self

_CHUNK: Final = 65536


class _Link:
    """One connection and its other half."""

    def __init__(
        self,
        near: asyncio.StreamWriter,
        far: asyncio.StreamWriter,
        is_trapped: Callable[[bytes], bool],
        held: Callable[[bytes], Awaitable[None]],
    ) -> None:
        self._near, self._far, self._is_trapped, self._held = near, far, is_trapped, held
        self.loses_next_answer = False

    def close(self) -> None:
        self._near.close()
        self._far.close()

    async def carry_answers(self, source: asyncio.StreamReader) -> None:
        while data := await _read(source):
            if self.loses_next_answer:
                break
            self._near.write(data)
            with contextlib.suppress(ConnectionError):
                await self._near.drain()
        self.close()

    async def carry_questions(self, source: asyncio.StreamReader) -> None:
        while data := await _read(source):
            self.loses_next_answer = self.loses_next_answer or self._is_trapped(data)
            await self._held(data)
            self._far.write(data)
            with contextlib.suppress(ConnectionError):
                await self._far.drain()
        self.close()


async def _read(source: asyncio.StreamReader) -> bytes:
    try:
        return await source.read(_CHUNK)
    except ConnectionError:
        return b""


class Proxy:
    """Listens on one unix socket and connects to another, in a thread of its own."""

    def __init__(self, socket: Path, server: Path, dice: random.Random) -> None:
        self.url = f"unix://{socket}"
        self._socket, self._server, self._dice = socket, server, dice
        self._links: list[_Link] = []
        self._trap: bytes | None = None
        self._to_hold: bytes | None = None
        self.is_holding = False
        """Whether the question to hold has come, and not gone on."""
        self._loop = asyncio.new_event_loop()
        self._listening = threading.Event()
        self._thread = threading.Thread(target=self._main, name="proxy")

    def __enter__(self) -> Self:
        self._thread.start()
        self._listening.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join()
        self._loop.close()

    def lose_an_answer(self) -> None:
        """Let Redis do what one connection asks next, and close that connection instead of answering."""
        self._loop.call_soon_threadsafe(self._lose_an_answer)

    def lose_the_answer_to(self, words: bytes) -> None:
        """The same to the next question that holds these words."""
        self._trap = words

    def hold_the_question_with(self, words: bytes) -> None:
        """Keep the next question that holds these words, until ``let_go``."""
        self._to_hold = words

    def let_go(self) -> None:
        """Have the question that is held go on to Redis."""
        self._loop.call_soon_threadsafe(self._let_go.set)

    def cut_all(self) -> None:
        """Close every connection."""
        self._loop.call_soon_threadsafe(self._cut_all)

    @property
    def is_sprung(self) -> bool:
        """Whether that question has come."""
        return self._trap is None

    def _is_trapped(self, question: bytes) -> bool:
        trapped = self._trap is not None and self._trap in question
        if trapped:
            self._trap = None
        return trapped

    async def _held(self, question: bytes) -> None:
        if self._to_hold is not None and self._to_hold in question:
            self._to_hold, self.is_holding = None, True
            await self._let_go.wait()
            self.is_holding = False

    def _lose_an_answer(self) -> None:
        if self._links:
            self._dice.choice(self._links).loses_next_answer = True

    def _cut_all(self) -> None:
        for link in list(self._links):
            link.close()

    def _main(self) -> None:
        self._loop.run_until_complete(self._serve())

    async def _serve(self) -> None:
        self._end, self._let_go = asyncio.Event(), asyncio.Event()
        listener = await asyncio.start_unix_server(self._connected, self._socket)
        self._listening.set()
        await self._end.wait()
        listener.close()
        self._let_go.set()
        self._cut_all()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.gather(*others, return_exceptions=True)

    async def _connected(self, questions: asyncio.StreamReader, near: asyncio.StreamWriter) -> None:
        try:
            answers, far = await asyncio.open_unix_connection(self._server)
        except OSError:
            near.close()
            return
        link = _Link(near, far, self._is_trapped, self._held)
        self._links.append(link)
        try:
            await asyncio.gather(link.carry_questions(questions), link.carry_answers(answers))
        finally:
            self._links.remove(link)
