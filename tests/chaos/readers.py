"""Clients that tail: some from the beginning, some late, some that leave in the middle and come back where they were.

What they read is compared at the end.
"""

from __future__ import annotations

import random
import threading
from typing import Final

import redis

from minilab_gen.errors import MiniLabError, StreamError, UnknownJobError
from minilab_gen.protocol.connection import connect
from minilab_gen.protocol.events import EndEvent, Event
from minilab_gen.protocol.tail import tail

_RETRY_PAUSE: Final = 0.1  # seconds until a reader whose connection broke comes back


class Reader:
    """Reads one job's stream to its end, whatever happens to its connection."""

    def __init__(self, url: str, job_id: str, dice: random.Random) -> None:
        self.job_id = job_id
        self.events: list[Event] = []
        self.failure: MiniLabError | None = None
        self._url = url
        self._leaves_after = dice.choice([None, None, dice.randint(1, 60)])
        self._stays_away = dice.uniform(0.1, 2.0)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._read, name=f"reader of {job_id}")
        self._thread.start()

    @property
    def has_ended(self) -> bool:
        return bool(self.events) and isinstance(self.events[-1], EndEvent)

    def stop(self) -> None:
        """Read no further than the next event, or the read that waits for one."""
        self._stopped.set()

    def close(self) -> None:
        """Stop, and wait until it has."""
        self.stop()
        self._thread.join()

    def _read(self) -> None:
        while not (self.has_ended or self._stopped.is_set() or self.failure):
            try:
                with connect(self._url) as connection:
                    self._read_on(connection)
            except StreamError as error:
                self.failure = error
            except (redis.RedisError, MiniLabError):
                self._stopped.wait(_RETRY_PAUSE)

    def _read_on(self, connection: redis.Redis) -> None:
        after = self.events[-1].number if self.events else 0
        for event in tail(connection, self.job_id, after, on_wait=lambda view: self._check_patience()):
            self.events.append(event)
            if self._leaves_after is not None and event.number >= self._leaves_after:
                self._leaves_after = None
                self._stopped.wait(self._stays_away)
                return
            self._check_patience()

    def _check_patience(self) -> None:
        if self._stopped.is_set():
            raise UnknownJobError(f"gave up on {self.job_id}")
