"""Whether a Redis server is fit for the service: reachable, safe, roomy, and open to a client.

Nothing here writes: what a client may do is asked in a transaction that is thrown away.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from typing import Any, Final

import redis
from redis.exceptions import NoPermissionError
from rq.job import Job

from minilab_client.findings import Finding, fail, ok, warn
from minilab_gen.protocol import keys
from minilab_gen.protocol.jobs import queue_of
from minilab_gen.protocol.refusals import refusal, refuses_writes
from minilab_gen.protocol.server_info import ServerInfo, eviction_warning, server_info

_OLDEST: Final = (6, 2)
"""Of Redis: the first with LMOVE, with which a worker claims a job so that a crash cannot lose it."""

_PINGS: Final = 5

_SLOW: Final = 0.05
"""Seconds of a round trip from which on each step of a worker would wait for its Redis."""

_FULL: Final = 0.75
"""Share of a limit from which on docs/operations.md sees cause for alarm."""

_CLOCKS_APART: Final = 1.0
"""Seconds between two clocks that a --ttl, which is counted in whole ones, does not notice."""


def redis_checks(connection: redis.Redis, address: str) -> Iterator[Finding]:
    """Look at the server. Raises what redis-py raises when it is lost; what it forbids becomes a finding."""
    yield _reachable(connection, address)
    info = server_info(connection)
    looks = (
        _version,
        _role,
        lambda info: _persistence(info, _configured(connection)),
        _eviction,
        _memory,
        _connections,
    )
    if info:
        yield from filter(None, (look(info) for look in looks))
    else:
        lost = "version, persistence, eviction and memory are not known"
        yield warn("server", f"INFO is not allowed: {lost}", "grant +info, or look at the server's own console")
    yield from _rights_and_writes(connection)
    yield _clock(connection)


def _reachable(connection: redis.Redis, address: str) -> Finding:
    seconds = []
    for _ in range(_PINGS):
        began = time.perf_counter()
        _ping(connection)
        seconds.append(time.perf_counter() - began)
    round_trip = statistics.median(seconds)
    found = f"{address} answers in {1000 * round_trip:.2f} ms"
    return ok("redis", found) if round_trip < _SLOW else warn("redis", found, "run the workers nearer to their Redis")


def _ping(connection: redis.Redis) -> None:
    try:
        connection.ping()
    except redis.ResponseError as error:  # a server whose disk is full refuses that, too, as fast as it answers
        if not refuses_writes(error):
            raise


def _version(info: ServerInfo) -> Finding | None:
    compatible = str(info.get("redis_version", ""))
    numbers = tuple(int(part) for part in compatible.split(".")[:2] if part.isdigit())
    if len(numbers) != len(_OLDEST):
        return None
    shown = f"Valkey {info['valkey_version']}" if "valkey_version" in info else f"Redis {compatible}"
    if numbers < _OLDEST:
        return fail("version", f"{shown}, and workers need LMOVE of 6.2", "use Redis 6.2 or later, or Valkey")
    return ok("version", shown)


def _role(info: ServerInfo) -> Finding | None:
    if info.get("role") in (None, "master"):
        return None
    return fail("role", "the server is a replica, which takes no writes", "give the address of the primary")


def _configured(connection: redis.Redis) -> dict[str, str] | None:
    """How the server writes to disk, of which INFO tells only half; None where CONFIG is not allowed."""
    try:
        found: Any = {}
        for name in ("appendfsync", "save", "dir"):
            found |= connection.config_get(name)
    except redis.ResponseError:
        return None
    return dict(found)


def _persistence(info: ServerInfo, configured: dict[str, str] | None) -> Finding | None:
    if info.get("aof_enabled") is None:
        return None
    broken = [name for name in ("aof_last_write_status", "rdb_last_bgsave_status") if info.get(name) == "err"]
    if broken:
        folder = (configured or {}).get("dir", "the Redis server")
        remedy = f"free space on the disk of {folder}, or let Redis write there; its log says what failed"
        return fail("persistence", f"{', '.join(broken)}: the last write to disk failed", remedy)
    unknown = " (how often is not known, CONFIG is not allowed)" if configured is None else ""
    flushed, saved = (configured or {}).get("appendfsync"), (configured or {}).get("save")
    if not info["aof_enabled"]:
        found = f"only snapshots{unknown}: what came since the last one is lost when Redis ends"
        nothing = "nothing is written to disk: all is lost when Redis ends"
        return warn("persistence", nothing if saved == "" else found, "set appendonly yes")
    if flushed == "no":
        found = "appendfsync no: a machine that dies takes half a minute along"
        return warn("persistence", found, "set appendfsync everysec")
    return ok("persistence", f"append-only file, flushed {flushed}" if flushed else f"append-only file{unknown}")


def _eviction(info: ServerInfo) -> Finding | None:
    warning = eviction_warning(info)
    if warning is None:
        return ok("eviction", "noeviction") if "maxmemory_policy" in info else None
    found, _, remedy = warning.partition("; ")
    if info.get("maxmemory"):
        return fail("eviction", found, remedy)
    return warn("eviction", f"{found}, once it has a maxmemory", remedy)


def _memory(info: ServerInfo) -> Finding | None:
    used, limit, machine = (int(info.get(name) or 0) for name in ("used_memory", "maxmemory", "total_system_memory"))
    most = limit or machine
    if not most:
        return None
    share = used / most
    of_what = f"{_size(used)} of {'maxmemory' if limit else 'the machine, without a maxmemory,'} {_size(most)}"
    found = f"{of_what}: {100 * share:.0f} %"
    if share < _FULL:
        return ok("memory", found)
    return warn("memory", found, "raise maxmemory, or submit less: when it is full, every submission is refused")


def _connections(info: ServerInfo) -> Finding | None:
    connected, most = (int(info.get(name) or 0) for name in ("connected_clients", "maxclients"))
    if not most:
        return None
    found = f"{connected} connections of {most}"
    if connected < _FULL * most:
        return ok("connections", found)
    return warn("connections", found, "raise maxclients: every reader of a stream takes two")


def _size(count: int) -> str:
    return f"{count / 1e6:.0f} MB"


def _rights_and_writes(connection: redis.Redis) -> Iterator[Finding]:
    refused = _refused(connection, _client_commands(connection))
    denied = [command for command, error in refused if isinstance(error, NoPermissionError)]
    if denied:
        listed = ", ".join(" ".join(command[:2]) for command in denied)
        yield fail("rights", f"a client must also be allowed {listed}", "grant what docs/security.md lists")
    else:
        yield ok("rights", "all that a client needs")
    if error := next((error for _, error in refused if refuses_writes(error)), None):
        yield fail("writes", *refusal(error, connection))


def _client_commands(connection: redis.Redis) -> list[tuple[str, ...]]:
    """One command for each thing that a client does, on keys of a job that is not there."""
    job_id, queue = "doctor", queue_of(connection, keys.queue_name(keys.DEFAULT_MODEL))
    record, stream = Job.key_for(job_id), keys.token_stream(job_id)
    registries = (queue.finished_job_registry, queue.failed_job_registry, queue.canceled_job_registry)
    return [
        ("GET", keys.model_card(keys.DEFAULT_MODEL)),
        ("MGET", keys.worker_stats(job_id)),
        ("EXISTS", keys.worker_lease(job_id)),
        ("SET", keys.cancel_flag(job_id), "1", "EX", "1"),
        *(("XADD", stream, "1-0", "id", "1"), ("XRANGE", stream, "-", "+"), ("XREVRANGE", stream, "+", "-")),
        *(("XREAD", "STREAMS", stream, "0-0"), ("XDEL", stream, "1-0"), ("EXPIRE", stream, "1")),
        *(("HSET", record, "status", "queued"), ("HGET", record, "status"), ("HGETALL", record)),
        *(("SMEMBERS", "rq:queues"), ("SADD", "rq:queues", queue.key), ("SMEMBERS", "rq:workers")),
        *(("RPUSH", queue.key, job_id), ("LREM", queue.key, "1", job_id), ("LRANGE", queue.key, "0", "0")),
        *(("LPOS", queue.key, job_id), ("LLEN", queue.key)),
        *(("ZRANGE", registry.key, "0", "0") for registry in (*registries, queue.started_job_registry)),
        *(("ZADD", registry.key, "0", job_id) for registry in registries[1:]),
        *(("EVAL", "return 1", "0"), ("SCAN", "0")),
    ]


def _refused(
    connection: redis.Redis, commands: list[tuple[str, ...]]
) -> list[tuple[tuple[str, ...], redis.ResponseError]]:
    """Those that Redis will not run, and why: it finds out as it queues them for a transaction, which we discard."""
    pool = connection.connection_pool
    own = pool.get_connection()
    try:
        own.send_command("MULTI")
        own.read_response()  # first, since commands would be run if there were no transaction
        for command in (*commands, ("DISCARD",)):
            own.send_command(*command)
        answers = [(command, _error(own)) for command in commands]
        own.read_response()
    except NoPermissionError as error:  # of MULTI itself
        return [(("MULTI",), error)]
    except BaseException:
        own.disconnect()  # or its answers would be taken for those to the next commands
        raise
    finally:
        pool.release(own)
    return [(command, error) for command, error in answers if error is not None]


def _error(own: Any) -> redis.ResponseError | None:
    try:
        own.read_response()
    except redis.ResponseError as error:
        return error
    return None


def _clock(connection: redis.Redis) -> Finding:
    before = time.time()
    try:
        seconds, microseconds = connection.time()
    except redis.ResponseError:
        return warn("clock", "TIME is not allowed: whether it agrees with ours is not known", "grant +time")
    after = time.time()
    apart = seconds + microseconds / 1e6 - (before + after) / 2
    found = f"the server's is {abs(apart):.1f} s {'ahead of' if apart > 0 else 'behind'} ours"
    if abs(apart) < _CLOCKS_APART + (after - before) / 2:
        return ok("clock", f"{found}, which is near enough")
    return warn("clock", f"{found}: --since, and when a job was submitted, go by ours", "let NTP set both")
