"""Writing token streams: every entry once, in order, never without an expiry.

Writes are safe to send again: an entry's id is its token's number, so Redis refuses what it already holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import redis

from minilab_gen.errors import StreamError
from minilab_gen.protocol import keys
from minilab_gen.protocol.connection import checked_answers
from minilab_gen.protocol.events import EndEvent, Event, TokenEvent, decode_entry, entry_id

REFUSED_REPEAT: Final = "equal or smaller"
"""Part of Redis's answer to an XADD whose id is not above the last one."""

NOT_HELD: Final = "NOTHELD"
"""How the answer begins to a terminal entry that a worker wants to write for a job that others have taken over."""

_APPEND_END: Final = """
local function append_end(stream, entry_id, seconds, fields)
  local entry = redis.pcall('XADD', stream, entry_id, unpack(fields))
  if type(entry) == 'table' and entry.err then return entry end
  redis.call('XADD', stream, '18446744073709551615-0', 'end', '')
  redis.call('XDEL', stream, '18446744073709551615-0')
  redis.call('EXPIRE', stream, seconds)
  return entry
end
"""
"""Write a terminal entry, set the expiry and seal the stream. With the largest number used up, Redis refuses what a
worker that stood still may want to write behind the end."""

SEAL: Final = f"""
{_APPEND_END}
local entry = append_end(KEYS[1], ARGV[1], ARGV[2], {{unpack(ARGV, 4)}})
if type(entry) == 'table' and entry.err then return entry end
"""
"""Lines of a script that end a stream. KEYS[1]: the stream. ARGV: entry id, seconds to live, one that is the script's
own, fields."""

END_SCRIPT: Final = f"{SEAL} if KEYS[2] then redis.call('SET', KEYS[2], ARGV[3], 'EX', ARGV[2]) end return entry"
"""Ends a stream. KEYS and ARGV as above; where there is a second key, the third word is written there with the end."""

APPEND_SCRIPT: Final = f"""
{_APPEND_END}
local refused, entries, key, word = {{}}, 0, 0, 0
local function next_key() key = key + 1; return KEYS[key] end
local function next_word() word = word + 1; return ARGV[word] end
local function end_if_owned(stream, owners, number, seconds, member, count)
  local fields = {{}}
  for i = 1, tonumber(count) do fields[i] = next_word() end
  local owner = redis.pcall('ZSCORE', owners, member)
  if not owner then return redis.error_reply('NOTHELD the job is in the hands of another worker') end
  if type(owner) == 'table' then return owner end
  return append_end(stream, number .. '-0', seconds, fields)
end
while key < #KEYS do
  local stream, kind = next_key(), next_word()
  local answer
  if kind == 'next' then
    answer = redis.pcall('XADD', stream, 'NOMKSTREAM', next_word() .. '-0', 'id', next_word(), 'text', next_word())
  elseif kind == 'first' then
    answer = redis.pcall('XADD', stream, '1-0', 'id', next_word(), 'text', next_word())
    redis.pcall('EXPIRE', stream, next_word())
  elseif kind == 'next lp' then
    answer = redis.pcall('XADD', stream, 'NOMKSTREAM', next_word() .. '-0', 'id', next_word(), 'text', next_word(),
      'lp', next_word())
  elseif kind == 'first lp' then
    answer = redis.pcall('XADD', stream, '1-0', 'id', next_word(), 'text', next_word(), 'lp', next_word())
    redis.pcall('EXPIRE', stream, next_word())
  elseif kind == 'end lp' then
    local owners, number, seconds = next_key(), next_word(), next_word()
    answer = end_if_owned(stream, owners, number, seconds, next_word(), next_word())
    local beside, listed = next_key(), next_word()
    if answer and not answer.err then redis.call('SET', beside, listed, 'EX', seconds) end
  else
    answer = end_if_owned(stream, next_key(), next_word(), next_word(), next_word(), next_word())
  end
  entries = entries + 1
  if not answer or answer.err then
    refused[#refused + 1] = entries
    refused[#refused + 1] = answer
  end
end
return refused
"""
"""Appends the entries of a worker's step, each to its stream; answers the numbers, from 1, of those that Redis did
not take, each followed by an error, or by nil.

``next``: a token after others, refused with nil where the stream has expired, so that none begins in the middle.
``first``: the first token, with an expiry. ``end``: the terminal entry, refused unless the worker still owns the job.
KEYS: the stream of each entry; for an end also the sorted set of the job's owners. ARGV: the entry's kind; then number,
token id and text; token id, text and seconds to live; or number, seconds to live, member of the owners, count of words
and words. The kinds with ``lp`` are the same with logprobs: after a token's text those of the token; after an end a key
and what is written there once the end is."""


def publish(
    connection: redis.Redis,
    entries: Iterable[tuple[str, Event]],
    *,
    running_ttl: int,
    prompt_logprobs: str | None = None,
) -> None:
    """Append events to the streams of their jobs in one round trip.

    A token brings ``running_ttl`` seconds of life with it, and the terminal entry sets the retention, in the same
    transaction: a worker killed between two commands leaves no stream that stays for ever. Nothing follows an end.
    ``prompt_logprobs`` are written beside the stream as the end is.
    Raises StreamError for a stream that holds something else, and what redis-py raises.
    """
    with connection.pipeline(transaction=True) as pipeline:
        for job_id, event in entries:
            key, fields = keys.token_stream(job_id), event.to_fields()
            if isinstance(event, EndEvent):
                words = [part for pair in fields.items() for part in pair]
                written = [key] if prompt_logprobs is None else [key, keys.prompt_logprobs(job_id)]
                words = [entry_id(event.number), str(keys.RETENTION), prompt_logprobs or "", *words]
                pipeline.eval(END_SCRIPT, len(written), *written, *words)
                continue
            pipeline.xadd(key, fields, id=entry_id(event.number))  # type: ignore[arg-type]
            # With each token: a stream that was lost in the middle begins again with a later one than the first.
            pipeline.expire(key, running_ttl)
        answers = pipeline.execute(raise_on_error=False)
    for answer in answers:
        if isinstance(answer, Exception) and REFUSED_REPEAT not in str(answer):
            raise answer


def read_stream(connection: redis.Redis, job_id: str) -> list[Event]:
    """Everything that a job's stream holds now. Raises StreamError where a number is missing."""
    return decode_stream(connection.xrange(keys.token_stream(job_id)))


def decode_stream(answer: Any) -> list[Event]:
    """The events in an answer to XRANGE, of redis-py or raw. Raises StreamError for what is not a whole stream."""
    if isinstance(answer, Exception):
        raise StreamError(str(answer))
    events = [decode_raw_entry(entry) for entry in answer]
    check_unbroken(events, after=0)
    return events


def decode_raw_entry(entry: Any) -> Event:
    """The event in an entry whose fields are a mapping, as redis-py has it, or a flat list, as Redis sends it."""
    number, fields = entry
    if isinstance(fields, list):
        fields = dict(zip(fields[::2], fields[1::2], strict=True))
    return decode_entry((number, fields))


def published_tokens(connection: redis.Redis, job_id: str) -> tuple[list[TokenEvent], EndEvent | None]:
    """The tokens in a job's stream, and its terminal entry if it has one."""
    events = read_stream(connection, job_id)
    tokens = [event for event in events if isinstance(event, TokenEvent)]
    end = events[-1] if events and isinstance(events[-1], EndEvent) else None
    return tokens, end


def stream_length(connection: redis.Redis, job_id: str) -> tuple[int, EndEvent | None]:
    """How many tokens a job's stream holds, and its terminal entry if it has one: what its last entry tells."""
    last: Any = connection.xrevrange(keys.token_stream(job_id), count=1)
    event = decode_entry(last[0]) if last else None
    if isinstance(event, EndEvent):
        return event.tokens, event
    return (event.number if event else 0), None


def end_of(connection: redis.Redis, job_id: str) -> EndEvent | None:
    """The terminal entry of a job's stream; None where it has none, also where what stands there is damaged."""
    event = last_event(connection.xrevrange(keys.token_stream(job_id), count=1))
    return event if isinstance(event, EndEvent) else None


def ends_of(connection: redis.Redis, job_ids: Iterable[str]) -> dict[str, EndEvent]:
    """The terminal entries of those streams that have one, in one round trip."""
    asked = list(job_ids)
    with connection.pipeline(transaction=False) as pipeline:
        for job_id in asked:
            pipeline.xrevrange(keys.token_stream(job_id), count=1)
        answers = checked_answers(pipeline.execute(raise_on_error=False))
    found = ((job_id, last_event(last)) for job_id, last in zip(asked, answers, strict=True))
    return {job_id: event for job_id, event in found if isinstance(event, EndEvent)}


def last_event(last: Any) -> Event | None:
    """The event in XREVRANGE's answer about a stream's last entry; None for a damaged one, and where there is none."""
    try:
        return decode_entry(last[0]) if isinstance(last, list) and last else None
    except StreamError:
        return None


def check_unbroken(events: Sequence[Event], after: int) -> None:
    """Raise StreamError unless the events carry the numbers after ``after``, one by one, and none follows an end."""
    for expected, event in enumerate(events, start=after + 1):
        if event.number == expected + 1:
            raise StreamError(f"the stream has a gap: token {expected} is missing")
        if event.number != expected:
            raise StreamError(f"the stream has a gap: tokens {expected} to {event.number - 1} are missing")
        if isinstance(event, EndEvent) and event is not events[-1]:
            raise StreamError(f"the stream goes on after its end at {expected}")
