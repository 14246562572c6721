"""Why a Redis that answers does not do what it is asked, and what to do about it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import redis

from minilab_gen.errors import RedisUnavailableError

_REFUSAL: Final = re.compile(r"(?<![A-Z])(MISCONF|OOM|READONLY|NOREPLICAS)(?![A-Z])")
"""The first word of an error with which a server refuses all writes. From a script of Redis 6 it is not the first."""

_REMEDIES: Final = {
    "MISCONF": (
        "Redis refuses writes",
        "free space on the disk of the Redis server, or let it write there: `{cli}INFO persistence` shows what failed",
    ),
    "OOM": ("Redis is full", "free memory or raise its maxmemory: `{cli}INFO memory` shows both"),
    "READONLY": ("Redis only serves readers", "give the address of the primary: `{cli}INFO replication` names it"),
    "NOREPLICAS": ("Redis refuses writes", "see to its replicas: `{cli}INFO replication` lists them"),
}
"""What is wrong, and what to do about it."""

_SNAPSHOT: Final = "; then `{cli}BGSAVE` makes the snapshot that it waits for"
"""What is to be done besides where a snapshot failed. An append-only file is tried again by itself."""


def refuses_writes(error: Exception) -> bool:
    """Whether a server said that it takes no writes at all. What stands in it can be read all the same."""
    return _kind(error) is not None


def refusal(error: redis.RedisError, connection: redis.Redis | None = None) -> tuple[str, str]:
    """What a server refused, and what to do about it, which is empty where that is not known.

    With its connection, the remedy gives Redis's commands as they can be typed in a shell.
    """
    # redis-py puts the refused command before the reason, and RQ's scripts a position after it.
    reason = str(error).rpartition("of pipeline caused error: ")[2].partition(" script: ")[0]
    reason = reason.partition(". ")[0].rstrip(".") or type(error).__name__
    kind = _kind(error)
    if kind is None:
        return f"Redis refused: {reason}", ""
    found, remedy = _REMEDIES[kind]
    if kind == "MISCONF" and "RDB" in reason:
        remedy += _SNAPSHOT
    return f"{found}: {reason}", remedy.format(cli=f"{redis_cli(connection)} " if connection is not None else "")


@contextmanager
def explained(connection: redis.Redis) -> Iterator[redis.Redis]:
    """Within, a refusal of all writes becomes a RedisUnavailableError that says what to do about it."""
    try:
        yield connection
    except redis.ResponseError as error:
        if not refuses_writes(error):
            raise
        raise RedisUnavailableError("; ".join(refusal(error, connection))) from error


def redis_cli(connection: redis.Redis) -> str:
    """The command that leads to the same server, to be typed; it asks for a password and never shows one."""
    settings: dict[str, Any] = connection.connection_pool.connection_kwargs
    words = ["redis-cli"]
    if "path" in settings:
        words += ["-s", str(settings["path"])]
    elif "host" in settings:  # which Sentinels give only as they are asked
        words += ["-h", str(settings["host"]), "-p", str(settings.get("port", 6379))]
    if issubclass(connection.connection_pool.connection_class, redis.SSLConnection):
        words.append("--tls")
    if settings.get("password"):
        words.append("--askpass")
    return shlex.join(words)


def _kind(error: Exception) -> str | None:
    # redis-py leaves the first word out of those for which it has a class.
    classes = {redis.OutOfMemoryError: "OOM", redis.ReadOnlyError: "READONLY"}
    known = next((kind for cls, kind in classes.items() if isinstance(error, cls)), None)
    if known is not None or not isinstance(error, redis.ResponseError):
        return known
    found = _REFUSAL.search(str(error).rpartition("of pipeline caused error: ")[2])
    return found[1] if found else None
