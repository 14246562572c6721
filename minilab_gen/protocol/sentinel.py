"""A Redis behind Sentinels: their addresses, and clients that ask them for the present master whenever they connect.

The settings that all connections share are given to it.

    sentinel://user:password@host:26379,other:26379/service?db=0

User and password are those of Redis; the Sentinels' own are the options ``sentinel_username`` and
``sentinel_password``. There is no TLS here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

import redis
import redis.asyncio
from redis.asyncio import sentinel as asynchronous
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.connection import parse_url
from redis.retry import Retry
from redis.sentinel import MasterNotFoundError, Sentinel

SCHEME: Final = "sentinel"

OWN_OPTIONS: Final = frozenset({"sentinel_username", "sentinel_password"})
"""Options of an address that concern the Sentinels and not Redis."""

_PORT: Final = 26379

_SECONDS: Final = 2.0
"""Seconds that one Sentinel may take to answer before the next is asked: they hold next to nothing and are quick."""

_SERVICE: Final = re.compile(r"[A-Za-z0-9._-]+")  # the names that Redis lets a Sentinel's configuration give


@dataclass(frozen=True, slots=True)
class SentinelAddress:
    """What an address says."""

    nodes: tuple[str, ...]
    """One address for each Sentinel, as if it were a Redis: each holds the user and the options."""
    service: str

    @classmethod
    def of(cls, url: str) -> SentinelAddress | None:
        """Take an address apart; None where a host or the service is missing. Each node has yet to be checked."""
        main, mark, query = url.partition("://")[2].partition("?")
        addresses, _, service = main.partition("/")
        user, at, hosts = addresses.rpartition("@")
        if not _SERVICE.fullmatch(service) or not all(hosts.split(",")):
            return None
        return cls(tuple(f"redis://{user}{at}{host}{mark}{query}" for host in hosts.split(",")), service)


def client(url: str, **settings: Any) -> redis.Redis:
    """A client of the master at a checked address."""
    address, nodes, own, options = _read(url)
    own |= {"retry": Retry(NoBackoff(), 0)}  # the next one is asked instead
    sentinels = _Sentinels(nodes, sentinel_kwargs=own, **settings | options)  # type: ignore[no-untyped-call]
    found: redis.Redis = sentinels.master_for(address.service)  # type: ignore[no-untyped-call]
    return found


def async_client(url: str, **settings: Any) -> redis.asyncio.Redis:
    """The same for asyncio."""
    address, nodes, own, options = _read(url)
    own |= {"retry": AsyncRetry(NoBackoff(), 0)}
    sentinels = _AsyncSentinels(nodes, sentinel_kwargs=own, **settings | options)  # type: ignore[no-untyped-call]
    found: redis.asyncio.Redis = sentinels.master_for(address.service)
    return found


class _Sentinels(Sentinel):
    """Connections to them are not kept: they are asked only when one to Redis is made, and they are never closed."""

    def discover_master(self, service_name: str) -> Any:
        try:
            return super().discover_master(service_name)  # type: ignore[no-untyped-call]
        except MasterNotFoundError:
            raise MasterNotFoundError(_no_master(self, service_name)) from None
        finally:
            for sentinel in self.sentinels:
                sentinel.connection_pool.disconnect()


class _AsyncSentinels(asynchronous.Sentinel):
    async def discover_master(self, service_name: str) -> Any:
        try:
            return await super().discover_master(service_name)
        except asynchronous.MasterNotFoundError:
            raise asynchronous.MasterNotFoundError(_no_master(self, service_name)) from None
        finally:
            for sentinel in self.sentinels:
                await sentinel.connection_pool.disconnect()


def _no_master(sentinels: Sentinel | asynchronous.Sentinel, service: str) -> str:
    """One line instead of a page of redis-py's about each Sentinel."""
    return f"none of {len(sentinels.sentinels)} Sentinels knows a master of {service} that is up"


def _read(url: str) -> tuple[SentinelAddress, list[tuple[str, int]], dict[str, Any], dict[str, Any]]:
    """An address, its Sentinels, how to reach these, and the options for Redis itself."""
    address = SentinelAddress.of(url)
    assert address is not None, "an address must be checked before it is used"
    parsed = [parse_url(node) for node in address.nodes]
    nodes = [(node.get("host", "localhost"), node.get("port", _PORT)) for node in parsed]
    options = {name: value for name, value in parsed[0].items() if name not in {"host", "port"} | OWN_OPTIONS}
    own = {name.removeprefix(f"{SCHEME}_"): parsed[0][name] for name in OWN_OPTIONS & parsed[0].keys()}
    return address, nodes, own | {"socket_timeout": _SECONDS, "socket_connect_timeout": _SECONDS}, options
