"""Puts a step's events into their streams in one round trip, sent before the next step and answered after it.

It speaks to Redis on a connection of its own and packs its commands with hiredis. All entries of a step are one script,
which costs one answer to read instead of one for each token.

Nothing is lost with a connection. A run keeps its transcript, and :meth:`Publisher.recover` looks at what each stream
really holds and sends on from there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, Protocol

import hiredis
import redis

from minilab_gen.errors import StreamError
from minilab_gen.logprobs import prompt_to_text
from minilab_gen.protocol import keys
from minilab_gen.protocol.events import EndEvent, Event
from minilab_gen.protocol.streams import APPEND_SCRIPT, NOT_HELD, REFUSED_REPEAT, decode_raw_entry, decode_stream
from minilab_worker.job_run import JobRun

_REFUSALS: Final = (REFUSED_REPEAT, NOT_HELD)

_LAST_SCRIPT: Final = """
local found = {}
for i, stream in ipairs(KEYS) do
  found[i] = {redis.pcall('XLEN', stream), redis.pcall('XREVRANGE', stream, '+', '-', 'COUNT', 1)}
end
return found
"""
"""The length and the last entry of each stream."""


class StreamWriter(Protocol):
    """The port to the token streams. All but the last may raise redis.RedisError; then ``recover`` must follow."""

    def send(self, runs: Iterable[JobRun], watched: Sequence[JobRun]) -> None:
        """Send what the runs have not sent yet, and ask for the cancel flags of ``watched``."""
        ...

    def collect(self) -> list[JobRun]:
        """Note what is confirmed of what was sent; gives the runs whose cancel flag is set."""
        ...

    def take_refused(self) -> list[JobRun]:
        """Runs some of whose entries were refused, since another worker writes the same stream."""
        ...

    def read_stream(self, run: JobRun) -> list[Event]:
        """What a run's stream really holds. Raises StreamError for one with a hole or entries that are not ours."""
        ...

    def delete_stream(self, run: JobRun) -> None:
        """Remove a run's stream, so that it can be written anew."""
        ...

    def recover(self, runs: Sequence[JobRun]) -> list[JobRun]:
        """On a new connection, find what each stream lacks; gives the runs whose streams are not a part of theirs."""
        ...

    def disconnect(self) -> None:
        """Drop the connection with whatever was under way."""
        ...


class Publisher:
    """The streams in Redis."""

    def __init__(self, connection: redis.Redis) -> None:
        self._pool = connection.connection_pool
        self._wire: Any = None  # a redis-py Connection
        self._sent: list[JobRun] = []
        """The run of each entry whose answer is awaited."""
        self._watched: Sequence[JobRun] = ()
        """Those whose cancel flags are asked for."""
        self._refused: list[JobRun] = []

    def send(self, runs: Iterable[JobRun], watched: Sequence[JobRun]) -> None:
        """Send a step's entries and the question for cancel flags, without waiting for the answers."""
        assert not self._is_awaiting, "the answers to one step must be collected before the next is sent"
        packed = []
        if entries := _Entries(runs):
            packed.append(_packed(*entries.command()))
        if watched:
            packed.append(_packed("MGET", *[run.cancel_key for run in watched]))
        if packed:
            self._connected().send_packed_command([b"".join(packed)])  # one call of the system
        self._sent, self._watched = entries.runs, watched

    def collect(self) -> list[JobRun]:
        """Read the answers to what was sent. A refusal is no error: see :meth:`take_refused`."""
        sent, watched, self._sent, self._watched = self._sent, self._watched, [], ()
        refused = self._answer() if sent else []
        flags = self._answer() if watched else []
        for run in sent:
            run.confirmed += 1
        for number, answer in zip(refused[::2], refused[1::2], strict=True):
            run = sent[number - 1]
            run.confirmed -= 1
            _check_refusal(run, answer)
            self._refused.append(run)
        return [run for run, flag in zip(watched, flags, strict=True) if flag is not None]

    def take_refused(self) -> list[JobRun]:
        refused, self._refused = list(dict.fromkeys(self._refused)), []
        return refused

    def read_stream(self, run: JobRun) -> list[Event]:
        return decode_stream(self._ask("XRANGE", run.stream_key, "-", "+"))

    def delete_stream(self, run: JobRun) -> None:
        self._ask("DEL", run.stream_key)

    def recover(self, runs: Sequence[JobRun]) -> list[JobRun]:
        """By the length and the last entry of each stream."""
        self.disconnect()
        if not runs:
            return []
        found = self._ask("EVAL", _LAST_SCRIPT, str(len(runs)), *[run.stream_key for run in runs])
        others = []
        for run, (length, last) in zip(runs, found, strict=True):
            if _is_beginning_of(run.transcript.events, length, last):
                run.sent = run.confirmed = length
            else:
                others.append(run)
        return others

    def disconnect(self) -> None:
        self._sent, self._watched = [], ()
        if self._wire is not None:
            self._wire.disconnect()
            self._pool.release(self._wire)
            self._wire = None

    @property
    def _is_awaiting(self) -> bool:
        return bool(self._sent or self._watched)

    def _connected(self) -> Any:
        if self._wire is None:
            self._wire = self._pool.get_connection()
        return self._wire

    def _ask(self, *words: str) -> Any:
        """The answer to one command. Raises what Redis says against it, but for a stream key of another type."""
        assert not self._is_awaiting, "the answers to one step must be collected before anything else is asked"
        self._connected().send_packed_command([_packed(*words)])
        try:
            return self._answer()
        except redis.ResponseError as error:
            if "WRONGTYPE" not in str(error):
                raise
            return error

    def _answer(self) -> Any:
        return self._connected().read_response()


class _Entries:
    """The entries that runs have not sent yet, as one call of the script that appends them."""

    def __init__(self, runs: Iterable[JobRun]) -> None:
        self.runs: list[JobRun] = []
        self._keys: list[str] = []
        self._words: list[str | int] = []
        for run in runs:
            events = run.transcript.events
            for event in events[run.sent :] if run.sent < len(events) else ():
                self._add(run, event)
            run.sent = len(events)

    def __bool__(self) -> bool:
        return bool(self.runs)

    def command(self) -> tuple[str | int, ...]:
        return ("EVAL", APPEND_SCRIPT, len(self._keys), *self._keys, *self._words)

    def _add(self, run: JobRun, event: Event) -> None:
        """A first token brings an expiry along; a terminal entry is refused unless this worker still owns the job."""
        self.runs.append(run)
        self._keys.append(run.stream_key)
        if isinstance(event, EndEvent):
            fields = [part for pair in event.to_fields().items() for part in pair]
            self._keys.append(run.job.owners_key)
            scores = run.prompt_logprobs
            kind = "end" if scores is None else "end lp"
            self._words += (kind, event.number, keys.RETENTION, run.job.execution_id, len(fields), *fields)
            if scores is not None:
                self._keys.append(keys.prompt_logprobs(run.job_id))
                self._words.append(prompt_to_text(scores))
        elif event.logprobs is not None:
            words = (event.token_id, event.text, event.logprobs.to_text())
            first = event.number == 1
            self._words += ("first lp", *words, run.running_ttl) if first else ("next lp", event.number, *words)
        elif event.number == 1:
            self._words += ("first", event.token_id, event.text, run.running_ttl)
        else:
            self._words += ("next", event.number, event.token_id, event.text)


def _packed(*words: str | int) -> bytes:
    """A command as Redis reads it."""
    packed: bytes = hiredis.pack_command(words)  # type: ignore[arg-type]  # its types know tuples of one word only
    return packed


def _check_refusal(run: JobRun, answer: Exception | None) -> None:
    """Raise why Redis did not take an entry, unless another worker's stands in its place."""
    if answer is None:
        raise redis.DataError(f"the stream of {run.job_id} is gone")
    if not any(refusal in str(answer) for refusal in _REFUSALS):
        raise answer


def _is_beginning_of(events: list[Event], length: Any, last: Any) -> bool:
    """Whether a stream of this length and last entry, as Redis answers, is that of the first of these events."""
    if isinstance(length, Exception) or isinstance(last, Exception) or length > len(events):
        return False
    try:
        return not length or events[length - 1] == decode_raw_entry(last[0])
    except StreamError:
        return False
