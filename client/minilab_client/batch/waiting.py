"""Says why no job of a batch ends, where that can be seen from outside. It must not know what the jobs are."""

from __future__ import annotations

import time
from typing import Final

import redis

from minilab_client.batch.flights import Flights
from minilab_client.batch.outages import through_outages
from minilab_client.output import say
from minilab_gen.protocol import keys
from minilab_gen.protocol.cards import start_command
from minilab_gen.protocol.jobs import workers_alive

QUIET_SECONDS: Final = 5.0
"""Seconds without an end after which it is looked at: most answers of a small model take less."""


class WaitingNotes:
    """One note for each reason, until it changes."""

    def __init__(self, connection: redis.Redis, queue: str, *, quiet: bool) -> None:
        self._connection, self._queue, self._quiet = connection, queue, quiet
        self._next = 0.0  # at once: that nobody serves the queue is known before anything can end
        self._said: str | None = None

    def look(self, flights: Flights, *, have_landed: bool) -> None:
        """Say what holds the batch up, if it has been held up for a while."""
        if not have_landed and (flights.are_over or time.monotonic() < self._next):
            return
        self._next = time.monotonic() + QUIET_SECONDS
        reason = None if have_landed else through_outages(lambda: self._reason(flights))
        if reason and reason != self._said and not self._quiet:
            say(f"waiting: {reason}")
        self._said = reason

    def _reason(self, flights: Flights) -> str | None:
        if not workers_alive(self._connection, self._queue):
            model, _ = keys.queue_parts(self._queue) or (keys.DEFAULT_MODEL, "normal")
            return f"no worker serves the queue {self._queue}; start one in another terminal: {start_command(model)}"
        if flights.is_held_back:
            return "the queue holds as many jobs as --max-queued allows, or more"
        return None
