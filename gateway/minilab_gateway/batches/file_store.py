"""Files in Redis: each is a hash, and a list of parts which, joined, are its content. It must not know HTTP."""

from __future__ import annotations

import io
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO, Final

import redis

from minilab_gen.errors import RequestError
from minilab_gen.protocol import keys
from minilab_gen.protocol.clock import server_time

FILE_SECONDS: Final = 7 * 24 * 3600
"""That a file is kept where nothing else is said."""

LONGEST_SECONDS: Final = 30 * 24 * 3600
SHORTEST_SECONDS: Final = 3600
"""Bounds of what may be said, which are OpenAI's."""

UPLOAD_SECONDS: Final = 300
"""That the parts of an upload outlive its last one: what a killed gateway leaves behind goes within minutes."""

PART_BYTES: Final = 256 * 1024
"""Of an upload's parts: each is one command to Redis, which answers nobody else meanwhile."""

PARTS_AT_ONCE: Final = 16
"""Parts that are read together."""

_APPEND: Final = """
local length = redis.call('LLEN', KEYS[1])
if length == tonumber(ARGV[1]) then length = redis.call('RPUSH', KEYS[1], ARGV[2]) end
redis.call('EXPIRE', KEYS[1], ARGV[3])
return length
"""
"""Appends a part whose number, from 0, is ARGV[1], unless it is there: a command may be sent again after its answer was
lost."""


_RESERVE: Final = """
local now, there, count = tonumber(redis.call('TIME')[1]), 0, 0
for _, id in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do
  local size = redis.call('HGET', ARGV[5] .. id, 'bytes')
  if size then there, count = there + tonumber(size), count + 1 end
end
local uploads, coming = redis.call('HGETALL', KEYS[2]), 0
for i = 1, #uploads, 2 do
  local size, until_ = string.match(uploads[i + 1], '^(%d+) (%d+)$')
  if tonumber(until_) < now then redis.call('HDEL', KEYS[2], uploads[i])
  elseif uploads[i] ~= ARGV[1] then coming = coming + tonumber(size) end
end
if there + coming + tonumber(ARGV[2]) <= tonumber(ARGV[3]) then
  redis.call('HSET', KEYS[2], ARGV[1], ARGV[2] .. ' ' .. string.format('%d', now + ARGV[4]))
  redis.call('EXPIRE', KEYS[2], ARGV[4])
  count = -1
end
return {count, string.format('%.0f', there), string.format('%.0f', coming)}
"""
"""Counts an upload if all files of its owner together stay within a bound. KEYS: the files of the owner, their uploads.
ARGV: the file's id, its bytes, the bound, seconds for which it counts, what the keys of files begin with."""


@dataclass(frozen=True, slots=True)
class NoRoom:
    """Why an upload is not begun."""

    files: int
    there: int
    """Bytes of them."""
    coming: int
    """Bytes of the uploads under way, at most."""


@dataclass(frozen=True, slots=True)
class StoredFile:
    """What is known of a file beside its content."""

    file_id: str
    owner: str
    filename: str
    """As the client named it; no path, and nothing is ever opened by it."""
    purpose: str
    size: int
    """Bytes."""
    created_at: int
    expires_at: int
    """Unix times in seconds, by the clock of Redis."""

    def to_json(self) -> dict[str, Any]:
        return {
            "id": self.file_id,
            "object": "file",
            "bytes": self.size,
            "created_at": self.created_at,
            "expires_at": self.expires_at,
            "filename": self.filename,
            "purpose": self.purpose,
            "status": "processed",
            "status_details": None,
        }


def new_file_id() -> str:
    return f"file-{secrets.token_hex(12)}"


class FileStore:
    """All files, of all owners."""

    def __init__(self, connection: redis.Redis) -> None:
        self._connection = connection
        self._reserve: Any = connection.register_script(_RESERVE)

    def reserve(self, file_id: str, owner: str, size: int, most: int, seconds: int) -> NoRoom | None:
        """Count an upload of so many bytes, for so many seconds, or say why all files of the owner are too large."""
        named = (keys.files_of(owner), keys.uploads_of(owner))
        arguments = (file_id, str(size), str(most), str(seconds), keys.stored_file(""))
        count, there, coming = self._reserve(named, arguments)
        return None if count < 0 else NoRoom(count, int(there), int(coming))

    def append(self, file_id: str, number: int, part: bytes) -> bool:
        """Add a part to an upload; False where those before it are lost."""
        length: Any = self._connection.eval(_APPEND, 1, keys.file_parts(file_id), number, part, UPLOAD_SECONDS)
        return int(length) == number + 1

    def keep(self, file_id: str, owner: str, filename: str, purpose: str, size: int, seconds: int) -> StoredFile:
        """Make a file of the parts that are there, for so many seconds. What is kept already stays as it is."""
        now = server_time(self._connection)
        fields = {
            "owner": owner,
            "filename": filename,
            "purpose": purpose,
            "bytes": size,
            "created_at": int(now),
            "expires_at": int(now) + seconds,
        }
        with self._connection.pipeline(transaction=True) as pipeline:
            pipeline.hset(keys.stored_file(file_id), mapping=fields)  # type: ignore[arg-type]
            pipeline.expire(keys.stored_file(file_id), seconds)
            pipeline.expire(keys.file_parts(file_id), seconds)
            pipeline.zadd(keys.files_of(owner), {file_id: now}, nx=True)
            pipeline.expire(keys.files_of(owner), LONGEST_SECONDS)
            pipeline.hdel(keys.uploads_of(owner), file_id)
            pipeline.execute()
        return StoredFile(file_id, owner, filename, purpose, size, int(now), int(now) + seconds)

    def extend(self, file: StoredFile, seconds: int) -> None:
        """Have a file stay for at least so many seconds from now."""
        until = int(server_time(self._connection)) + seconds
        if until <= file.expires_at:
            return
        with self._connection.pipeline(transaction=True) as pipeline:
            pipeline.hset(keys.stored_file(file.file_id), "expires_at", str(until))
            pipeline.expire(keys.stored_file(file.file_id), seconds)
            pipeline.expire(keys.file_parts(file.file_id), seconds)
            pipeline.execute()

    def find(self, file_id: str, owner: str) -> StoredFile | None:
        """The file of this id; None where it is unknown, has expired, or is another's."""
        try:
            found = self._read([keys.check_job_id(file_id)])[0]
        except RequestError:  # what can be no part of a key names nothing
            return None
        return found if found is not None and found.owner == owner else None

    def of_owner(self, owner: str) -> list[StoredFile]:
        """All files of an owner, oldest first."""
        names: Any = self._connection.zrange(keys.files_of(owner), 0, -1)
        file_ids = [name.decode() for name in names]
        found = self._read(file_ids)
        gone = [file_id for file_id, file in zip(file_ids, found, strict=True) if file is None]
        if gone:
            self._connection.zrem(keys.files_of(owner), *gone)
        return [file for file in found if file is not None]

    def _read(self, file_ids: list[str]) -> list[StoredFile | None]:
        with self._connection.pipeline(transaction=False) as pipeline:
            for file_id in file_ids:
                pipeline.hgetall(keys.stored_file(file_id))
            records = pipeline.execute()
        return [_file(file_id, record) for file_id, record in zip(file_ids, records, strict=True)]

    def delete(self, file: StoredFile) -> None:
        with self._connection.pipeline(transaction=True) as pipeline:
            pipeline.expire(keys.stored_file(file.file_id), 0)
            pipeline.expire(keys.file_parts(file.file_id), 0)
            pipeline.zrem(keys.files_of(file.owner), file.file_id)
            pipeline.execute()

    def drop_upload(self, file_id: str, owner: str) -> None:
        """Delete the parts of an upload that became no file."""
        with self._connection.pipeline(transaction=True) as pipeline:
            pipeline.expire(keys.file_parts(file_id), 0)
            pipeline.hdel(keys.uploads_of(owner), file_id)
            pipeline.execute()

    def parts(self, file_id: str, first: int) -> list[bytes]:
        """Some parts from this one on; none behind the last."""
        found: Any = self._connection.lrange(keys.file_parts(file_id), first, first + PARTS_AT_ONCE - 1)
        return list(found)

    def opened(self, file_id: str) -> BinaryIO:
        """A file to read from its start. Its methods raise what redis-py raises, and it is of no use then."""
        return io.BufferedReader(_Content(self, file_id), PART_BYTES)


def _file(file_id: str, record: Mapping[bytes, bytes]) -> StoredFile | None:
    if not record:
        return None
    owner, filename, purpose = (record[name].decode() for name in (b"owner", b"filename", b"purpose"))
    size, created_at, expires_at = (int(record[name]) for name in (b"bytes", b"created_at", b"expires_at"))
    return StoredFile(file_id, owner, filename, purpose, size, created_at, expires_at)


class _Content(io.RawIOBase):
    """The parts of a file, one behind another."""

    def __init__(self, store: FileStore, file_id: str) -> None:
        self._store, self._file_id = store, file_id
        self._next = 0
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._rest:
            parts = self._store.parts(self._file_id, self._next)
            self._next += len(parts)
            self._rest = memoryview(b"".join(parts))
        count = min(len(buffer), len(self._rest))
        buffer[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count
