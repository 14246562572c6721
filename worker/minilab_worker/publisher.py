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

from minilab_gen.errors import StreamError
from minilab_gen.protocol import keys
from minilab_gen.protocol.events import EndEvent, Event, decode_entry
from minilab_gen.protocol.streams import END_SCRIPT, NOT_HELD, REFUSED_REPEAT, check_unbroken
from minilab_worker.run import Run

_OnAnswer = Callable[[Any], None]

_REFUSALS: Final = (REFUSED_REPEAT, NOT_HELD)


class Publisher:
    """Writes the streams of all runs, and reads their cancel flags on the way."""

    def __init__(self, connection: redis.Redis) -> None:
        self._pool = connection.connection_pool
        self._wire: Any = None  # a redis-py Connection
        self._awaited: list[_OnAnswer] = []
        self._sent: list[tuple[Run, int]] = []
        self._refused: list[Run] = []

    def send(self, runs: Iterable[Run], watched: Sequence[Run], flagged: list[Run]) -> None:
        """Send what the runs have not sent yet, and ask for the cancel flags of ``watched``.

        Those whose flag is set are put into ``flagged`` by collect. Raises redis.RedisError; then :meth:`recover` must
        follow.
        """
        assert not self._awaited, "the answers to one step must be collected before the next is sent"
        packed: list[bytes] = []
        for run in runs:
            if run.sent < len(run.events):
                for event in run.events[run.sent :]:
                    self._pack_event(packed, run, event)
                run.sent = len(run.events)
                self._sent.append((run, run.sent))
        if watched:
            packed.append(_command("MGET", *(keys.cancel_flag(run.job_id) for run in watched)))
            self._awaited.append(lambda answer: flagged.extend(_set_ones(watched, answer)))
        if packed:
            self._connected().send_packed_command([b"".join(packed)])

    def collect(self) -> None:
        """Read the answers to what was sent and note what is confirmed. Raises what Redis answers, unless a refusal."""
        awaited, self._awaited = self._awaited, []
        for on_answer in awaited:
            on_answer(self._answer())
        for run, number in self._sent:
            run.confirmed = number
        self._sent = []

    def take_refused(self) -> list[Run]:
        """Runs some of whose events were refused, since others write the same stream; :meth:`compare` must follow."""
        refused, self._refused = list(dict.fromkeys(self._refused)), []
        return refused

    def compare(self, run: Run) -> None:
        """Look at what a run's stream really holds and make the run go on from there.

        A stream that has a hole, since Redis came back without its beginning, or alien entries is written anew.
        """
        key = keys.token_stream(run.job_id)
        (entries,) = self._ask([_command("XRANGE", key, "-", "+")])
        try:
            stream = _events_of(entries)
        except StreamError:
            (deleted,) = self._ask([_command("DEL", key)])
            _expect(deleted)
            stream = []
        run.agree_with(stream)

    def recover(self, runs: Iterable[Run]) -> None:
        """On a new connection: look at each run's stream and send what it lacks. Raises redis.RedisError."""
        self.disconnect()
        pending = list(runs)
        asked: list[bytes] = []
        for run in pending:
            key = keys.token_stream(run.job_id)
            asked += [_command("MULTI"), _command("XLEN", key), _command("XREVRANGE", key, "+", "-", "COUNT", "1")]
            asked.append(_command("EXEC"))
        answers = self._ask(asked)[3::4]
        for run, answer in zip(pending, answers, strict=True):
            _expect(answer)
            if not _is_beginning_of(run.events, *answer):
                self.compare(run)
            else:
                run.confirmed = run.sent = answer[0]
        self.send(pending, (), [])
        self.collect()

    def disconnect(self) -> None:
        """Drop the connection with whatever was under way."""
        self._awaited, self._sent = [], []
        if self._wire is not None:
            self._wire.disconnect()
            self._pool.release(self._wire)
            self._wire = None

    def _connected(self) -> Any:
        if self._wire is None:
            self._wire = self._pool.get_connection()
        return self._wire

    def _ask(self, commands: list[bytes]) -> list[Any]:
        """The answers to commands, errors among them."""
        assert not self._awaited, "the answers to one step must be collected before anything else is asked"
        if not commands:
            return []
        self._connected().send_packed_command([b"".join(commands)])
        return [self._answer() for _ in commands]

    def _answer(self) -> Any:
        try:
            return self._connected().read_response()
        except redis.ResponseError as error:
            return error

    def _pack_event(self, packed: list[bytes], run: Run, event: Event) -> None:
        """One command for an event, or with a first token three, so that a stream never is without an expiry.

        The terminal entry is refused unless this worker still holds the job.
        """
        fields = [part for pair in event.to_fields().items() for part in pair]
        key, entry_id = keys.token_stream(run.job_id), f"{event.number}-0"
        if isinstance(event, EndEvent):
            registry, member = run.holder
            words = ["EVAL", END_SCRIPT, "2", key, registry, entry_id, str(keys.RETENTION), member, *fields]
            packed.append(_command(*words))
            self._awaited.append(partial(self._expect_entry, run))
        elif event.number == 1:
            expire = _command("EXPIRE", key, str(run.running_ttl))
            packed += [_command("MULTI"), _command("XADD", key, entry_id, *fields), expire, _command("EXEC")]
            self._awaited += [_expect, _expect, _expect, partial(self._expect_first, run)]
        else:  # a stream that is gone must not begin again in the middle
            packed.append(_command("XADD", key, "NOMKSTREAM", entry_id, *fields))
            self._awaited.append(partial(self._expect_entry, run))

    def _expect_entry(self, run: Run, answer: Any) -> None:
        if answer is None:
            raise redis.DataError(f"the stream of {run.job_id} is gone")
        if not isinstance(answer, Exception):
            return
        if not any(refusal in str(answer) for refusal in _REFUSALS):
            raise answer
        self._refused.append(run)

    def _expect_first(self, run: Run, answer: Any) -> None:
        _expect(answer)
        entry, expiry = answer
        self._expect_entry(run, entry)
        _expect(expiry)


def _is_beginning_of(events: list[Event], length: Any, last: Any) -> bool:
    """Whether a stream of this length and last entry, as Redis answers, is that of the first of these events."""
    if isinstance(length, Exception) or isinstance(last, Exception) or length > len(events):
        return False
    try:
        return not length or events[length - 1] == decode_entry(_pair(last[0]))
    except StreamError:
        return False


def _events_of(entries: Any) -> list[Event]:
    """The events in XRANGE's answer. Raises StreamError where it is not a whole stream."""
    if isinstance(entries, Exception):
        raise StreamError(str(entries))
    events = [decode_entry(_pair(entry)) for entry in entries]
    check_unbroken(events, after=0)
    return events


def _pair(raw: Any) -> tuple[bytes, dict[bytes, bytes]]:
    """An entry as redis-py gives it: its id and a mapping of its fields."""
    entry_id, fields = raw
    return entry_id, dict(zip(fields[::2], fields[1::2], strict=True))


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
