"""What stored responses leave in Redis: nothing that stays, and of each the same."""

from __future__ import annotations

from typing import Any

import redis
from support.waiting import wait_until

from gateway.gateway_process import Gateway
from gateway.test_response_calls import CALLED, TWICE, ask

_DAY = 24 * 3600


def lasting(server: redis.Redis) -> dict[str, int]:
    """The keys without a time to live, and how many bytes each takes; lists of times are empty when these are over."""
    names = [name.decode() for name in server.scan_iter(count=1000) if server.ttl(name) == -1]
    return {
        name: 0 if server.type(name) == b"zset" else int(server.memory_usage(name, samples=0) or 0) for name in names
    }


def times(server: redis.Redis) -> list[float]:
    """The seconds for which entries of lists of times stay."""
    lists = [name for name in server.scan_iter(_type="zset", count=1000) if server.ttl(name) == -1]
    now = int(server.time()[0])
    found: list[Any] = [entry for name in lists for entry in server.zrange(name, 0, -1, withscores=True)]
    return [until - now for _, until in found]


def kept(server: redis.Redis, response_id: str) -> list[int]:
    """The seconds that each key of a response stays."""
    job = response_id.removeprefix("resp_")
    return [int(server.ttl(name)) for name in server.scan_iter(match=f"*{job}*", count=1000)]


def test_every_key_of_an_ended_response_expires_and_nothing_grows_with_their_number(
    tools_gateway: Gateway, server: redis.Redis
) -> None:
    names = [ask(tools_gateway, CALLED).id]
    wait_until(lambda: all(left > 0 for left in kept(server, names[0])))
    before = lasting(server)

    for number in range(12):
        more = {"previous_response_id": names[-1], "input": "Et ?"} if number % 3 == 1 else {}
        names.append(ask(tools_gateway, TWICE if number % 2 else CALLED, **more).id)
    wait_until(lambda: all(left > 0 for name in names for left in kept(server, name)))

    assert all(0 < left <= _DAY for name in names for left in kept(server, name))
    assert all(kept(server, name) for name in names)
    wait_until(lambda: lasting(server).keys() <= before.keys())
    assert lasting(server) == before, "bytes of the keys that never expire"
    assert len(times(server)) >= len(names)
    assert all(0 < left <= _DAY for left in times(server))
