"""Batches in Redis: a hash with the status, a lease of the gateway that drives it, and the lines that are done.

Whatever a driver writes is written by a script that looks at its lease first: a gateway that stood still and goes on
when another has taken over changes nothing. A line is marked as done together with what is written about it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import redis

from minilab_gateway.batches.batch import Batch, NewBatch, batch_of, error_file_id, output_file_id
from minilab_gateway.batches.file_store import FILE_SECONDS, LONGEST_SECONDS
from minilab_gen.errors import MiniLabError, RequestError
from minilab_gen.protocol import keys
from minilab_gen.protocol.clock import server_time

LEASE_SECONDS: Final = 10
"""After which another gateway takes over: a step of a driver takes a tenth of it."""

_FENCE: Final = "if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 'lost' end"

_HOLD: Final = """
if not redis.call('SET', KEYS[1], ARGV[1], 'NX', 'EX', ARGV[2]) then
  if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
  redis.call('EXPIRE', KEYS[1], ARGV[2])
end
return 1
"""
"""Takes a lease, or renews one's own."""

_RELEASE: Final = "if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('EXPIRE', KEYS[1], 0) end"

_MOVE: Final = f"""
{_FENCE}
local status = redis.call('HGET', KEYS[2], 'status')
if status ~= ARGV[2] then return status or 'gone' end
redis.call('HSET', KEYS[2], unpack(ARGV, 3))
return 'moved'
"""
"""Sets fields of a batch that has this status. KEYS: the lease, the batch."""

_CREATE: Final = """
if redis.call('EXISTS', KEYS[1]) == 1 then return redis.call('HGET', KEYS[1], 'digest') end
redis.call('HSET', KEYS[1], unpack(ARGV, 4))
redis.call('EXPIRE', KEYS[1], ARGV[3])
for i = 2, 3 do
  redis.call('ZADD', KEYS[i], ARGV[2], ARGV[1])
  redis.call('EXPIRE', KEYS[i], ARGV[3])
end
return false
"""
"""Creates a batch, once: else gives the digest of what created it. KEYS: the batch, those of its owner, the open ones.
ARGV: the batch's id, the time, seconds to live, its fields."""

_CANCEL: Final = """
local status = redis.call('HGET', KEYS[1], 'status')
if status == 'validating' or status == 'in_progress' then
  redis.call('HSET', KEYS[1], 'status', 'cancelling', 'cancelling_at', ARGV[1])
end
return status
"""

_RECORD: Final = f"""
{_FENCE}
if redis.call('SADD', KEYS[2], ARGV[2]) == 1 then
  redis.call('RPUSH', KEYS[3], ARGV[3])
  redis.call('HSET', KEYS[4], ARGV[4], (redis.call('HGET', KEYS[4], ARGV[4]) or 0) + string.len(ARGV[3]))
  redis.call('EXPIRE', KEYS[2], ARGV[5])
  redis.call('EXPIRE', KEYS[3], ARGV[5])
end
return 'done'
"""
"""Marks a line as done and writes about it, both or neither, once. KEYS: the lease, the lines that are done, the parts
of the file, the batch. ARGV: the driver, the line's number, what is written, the field with the file's bytes, seconds
to live."""


class LeaseLostError(MiniLabError):
    """Another gateway drives the batch now."""


@dataclass(frozen=True, slots=True)
class Written:
    """What is to be written about one line."""

    number: int
    is_answer: bool
    """Whether it goes to the output file; else to that of errors."""
    content: bytes
    """With its line end."""


class BatchStore:
    """All batches, of all owners."""

    def __init__(self, connection: redis.Redis) -> None:
        self._connection = connection

    def now(self) -> float:
        """Unix time in seconds, by the clock of Redis."""
        return server_time(self._connection)

    def create(self, batch_id: str, asked: NewBatch, window: int, digest: str = "") -> Batch | None:
        """A new batch; the one that is there where it was created with the same digest, and None for another."""
        now = self.now()
        fields: dict[str, Any] = {
            "owner": asked.owner,
            "endpoint": asked.endpoint,
            "input_file_id": asked.input_file_id,
            "metadata": json.dumps(asked.metadata),
            "output_seconds": asked.output_seconds,
            "jobs": json.dumps(asked.jobs),
            "tokens_per_minute": json.dumps(asked.tokens_per_minute),
            "models": json.dumps(None if asked.models is None else sorted(asked.models)),
            "status": "validating",
            "window": window,
            "created_at": int(now),
            "expires_at": int(now) + window,
            "digest": digest,
        }
        words = [str(word) for pair in fields.items() for word in pair]
        named = (keys.batch(batch_id), keys.batches_of(asked.owner), keys.OPEN_BATCHES)
        found: Any = self._connection.eval(
            _CREATE, 3, *named, batch_id, str(now), str(window + LONGEST_SECONDS), *words
        )
        if found is not None and found.decode() != digest:
            return None
        return self.read([batch_id])[0]

    def find(self, batch_id: str, owner: str) -> Batch | None:
        """The batch of this id; None where it is unknown, has expired, or is another's."""
        try:
            found = self.read([keys.check_job_id(batch_id)])[0]
        except RequestError:
            return None
        return found if found is not None and found.asked.owner == owner else None

    def of_owner(self, owner: str) -> list[str]:
        """The ids of all batches of an owner, oldest first."""
        names: Any = self._connection.zrange(keys.batches_of(owner), 0, -1)
        return [name.decode() for name in names]

    def forget(self, owner: str, batch_ids: Sequence[str]) -> None:
        """Take ids off an owner's list of which there is nothing any more."""
        self._connection.zrem(keys.batches_of(owner), *batch_ids)

    def read(self, batch_ids: Sequence[str]) -> list[Batch | None]:
        with self._connection.pipeline(transaction=False) as pipeline:
            for batch_id in batch_ids:
                pipeline.hgetall(keys.batch(batch_id))
                pipeline.llen(keys.file_parts(output_file_id(batch_id)))
                pipeline.llen(keys.file_parts(error_file_id(batch_id)))
            answers = pipeline.execute()
        each = zip(batch_ids, answers[::3], answers[1::3], answers[2::3], strict=True)
        return [batch_of(batch_id, record, lines, errors) for batch_id, record, lines, errors in each]

    def cancel(self, batch_id: str) -> str:
        """Ask that a batch ends; the status that it had."""
        now = int(self.now())
        found: Any = self._connection.eval(_CANCEL, 1, keys.batch(batch_id), now)
        return found.decode() if found else "gone"

    # what drivers do

    def open_ids(self) -> list[str]:
        """The batches that have not ended, oldest first."""
        names: Any = self._connection.zrange(keys.OPEN_BATCHES, 0, -1)
        return [name.decode() for name in names]

    def hold(self, batch_id: str, driver: str) -> bool:
        """Take or renew the lease of a batch; False while another gateway has it."""
        held: Any = self._connection.eval(_HOLD, 1, keys.batch_driver(batch_id), driver, LEASE_SECONDS)
        return bool(held)

    def release(self, batch_id: str, driver: str) -> None:
        self._connection.eval(_RELEASE, 1, keys.batch_driver(batch_id), driver)

    def done(self, batch_id: str) -> set[int]:
        """The numbers of the lines that are done."""
        found: Any = self._connection.smembers(keys.batch_done(batch_id))
        return set(map(int, found))

    def move(self, batch: Batch, driver: str, fields: Mapping[str, Any]) -> bool:
        """Set fields, the status among them, unless the batch has another status by now. Raises LeaseLostError."""
        words = [str(word) for pair in fields.items() for word in pair]
        named = (keys.batch_driver(batch.batch_id), keys.batch(batch.batch_id))
        answer: Any = self._connection.eval(_MOVE, 2, *named, driver, batch.status, *words)
        return _held(batch.batch_id, answer) == "moved"

    def record(self, batch: Batch, driver: str, lines: Sequence[Written]) -> None:
        """Write about lines, each once, however often this is called. Raises LeaseLostError."""
        batch_id = batch.batch_id
        with self._connection.pipeline(transaction=False) as pipeline:
            for line in lines:
                file_id = output_file_id(batch_id) if line.is_answer else error_file_id(batch_id)
                pipeline.eval(
                    _RECORD,
                    4,
                    *(keys.batch_driver(batch_id), keys.batch_done(batch_id)),
                    *(keys.file_parts(file_id), keys.batch(batch_id)),
                    *(driver, str(line.number), line.content),
                    *("output_bytes" if line.is_answer else "error_bytes", str(batch.window + FILE_SECONDS)),
                )
            for answer in pipeline.execute():
                _held(batch_id, answer)

    def close(self, batch_id: str) -> None:
        """Take an ended batch off the list of those that are to be driven."""
        with self._connection.pipeline(transaction=True) as pipeline:
            pipeline.zrem(keys.OPEN_BATCHES, batch_id)
            pipeline.expire(keys.batch_done(batch_id), 0)
            pipeline.execute()


def _held(batch_id: str, answer: bytes) -> str:
    if answer == b"lost":
        raise LeaseLostError(f"the batch {batch_id} is driven by another gateway")
    return answer.decode()
