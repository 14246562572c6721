"""Puts a step's events into their streams in one round trip, sent before the next step and answered after it.

It must not know about models or RQ. It speaks to Redis on a connection of its own and packs the commands itself: a
step's 64 entries cost a tenth of a millisecond so, and more than one through a pipeline of redis-py, during which no
token could be computed.

Nothing is lost with a connection. A run keeps its events, and :meth:`Publisher.recover` looks at what each stream
really holds and sends on from there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Final

import redis

from minilab_gen.protocol import keys
from minilab_gen.protocol.events import EndEvent, Event, entry_number
from minilab_worker.run import Run

_REFUSED_REPEAT: Final = "equal or smaller"
"""Part of Redis's answer to an entry that its stream already holds."""

_OnAnswer = Callable[[Any], None]


class Publisher:
    """Writes the streams of all runs, and reads their cancel flags on the way."""

    def __init__(self, connection: redis.Redis) -> None:
        self._pool = connection.connection_pool
        self._wire: Any = None  # a redis-py Connection
        self._awaited: list[_OnAnswer] = []
        self._sent: list[tuple[Run, int]] = []
        self.refused: list[Run] = []
        """Runs whose entries the stream held already: another worker writes them too."""

    def take_refused(self) -> list[Run]:
        """The refused runs, once each, to be looked at."""
        refused, self.refused = list(dict.fromkeys(self.refused)), []
        return refused

    def send(self, events: Iterable[tuple[Run, Event]], watched: Sequence[Run], flagged: list[Run]) -> None:
        """Send events, and ask for the cancel flags of ``watched``; those set are put into ``flagged`` by collect.

        Raises redis.ConnectionError; then :meth:`recover` must follow.
        """
        assert not self._awaited, "the answers to one step must be collected before the next is sent"
        packed: list[bytes] = []
        for run, event in events:
            self._pack_event(packed, run, event)
            self._sent.append((run, event.number))
        if watched:
            packed.append(_command("MGET", *(keys.cancel_flag(run.job_id) for run in watched)))
            self._awaited.append(lambda answer: flagged.extend(_set_ones(watched, answer)))
        if packed:
            if self._wire is None:
                self._wire = self._pool.get_connection()
            self._wire.send_packed_command([b"".join(packed)])

    def collect(self) -> None:
        """Read the answers to what was sent and note what is confirmed. Raises what Redis answers, unless a repeat."""
        awaited, self._awaited = self._awaited, []
        for on_answer in awaited:
            try:
                on_answer(self._wire.read_response())
            except redis.ResponseError as error:
                on_answer(error)
        for run, number in self._sent:
            run.confirmed = number
        self._sent = []

    def recover(self, runs: Iterable[Run]) -> None:
        """Start afresh on a new connection: look at each run's stream and send what it lacks. Raises redis.RedisError.

        A stream that has a hole, since Redis came back without its beginning, is written anew.
        """
        self.disconnect()
        pending = [run for run in runs if run.events]
        self._wire = self._pool.get_connection()
        asked: list[bytes] = []
        for run in pending:
            key = keys.token_stream(run.job_id)
            asked += [_command("XLEN", key), _command("XREVRANGE", key, "+", "-", "COUNT", "1")]
        self._wire.send_packed_command([b"".join(asked)])
        answers = [self._wire.read_response() for _ in asked]
        lacking = []
        for run, length, last in zip(pending, answers[::2], answers[1::2], strict=True):
            run.confirmed = entry_number(last[0][0]) if last else 0
            if length != run.confirmed:
                self._wire.send_packed_command([_command("DEL", keys.token_stream(run.job_id))])
                _expect(self._wire.read_response())
                run.confirmed = 0
            lacking += [(run, event) for event in run.events[run.confirmed :]]
        self.send(lacking, (), [])
        self.collect()

    def disconnect(self) -> None:
        """Drop the connection with whatever was under way."""
        self._awaited, self._sent = [], []
        if self._wire is not None:
            self._wire.disconnect()
            self._pool.release(self._wire)
            self._wire = None

    def _pack_event(self, packed: list[bytes], run: Run, event: Event) -> None:
        """An XADD; with the first entry and the last, an EXPIRE in the same transaction.

        So a worker that dies between the two leaves no stream that stays for ever.
        """
        fields = [part for pair in event.to_fields().items() for part in pair]
        key = keys.token_stream(run.job_id)
        add = _command("XADD", key, f"{event.number}-0", *fields)
        seconds = keys.RETENTION if isinstance(event, EndEvent) else run.running_ttl if event.number == 1 else None
        if seconds is None:
            packed.append(add)
            self._awaited.append(partial(self._expect_entry, run))
            return
        packed += [_command("MULTI"), add, _command("EXPIRE", key, str(seconds)), _command("EXEC")]
        self._awaited += [_expect, _expect, _expect, partial(self._expect_transaction, run)]

    def _expect_entry(self, run: Run, answer: Any) -> None:
        if not isinstance(answer, Exception):
            return
        if _REFUSED_REPEAT not in str(answer):
            raise answer
        self.refused.append(run)

    def _expect_transaction(self, run: Run, answer: Any) -> None:
        _expect(answer)
        entry, expiry = answer
        self._expect_entry(run, entry)
        _expect(expiry)


def _command(*words: str) -> bytes:
    """A command as Redis reads it: the number of words, then each with its length in bytes."""
    encoded = [word.encode() for word in words]
    return b"*%d\r\n" % len(encoded) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in encoded)


def _expect(answer: Any) -> None:
    if isinstance(answer, Exception):
        raise answer


def _set_ones(watched: Sequence[Run], answer: Any) -> list[Run]:
    _expect(answer)
    return [run for run, flag in zip(watched, answer, strict=True) if flag is not None]
