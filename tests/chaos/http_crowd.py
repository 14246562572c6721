"""All clients of gateways in one run."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Self

import httpx2 as httpx
import redis

from chaos.gateways import Gateways
from chaos.http_clients import HttpClient
from chaos.http_load import http_pool, plan_http, plan_quiet

_LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=20)


class Crowd:
    """Begins all of them at their times, and ends them."""

    def __init__(self, dice: random.Random, gateways: Gateways, wanted: int, seconds: float) -> None:
        pool = http_pool()
        self._http = httpx.Client(limits=_LIMITS)
        plans = plan_http(dice, pool, wanted, seconds), plan_quiet(dice, pool, wanted)
        self._busy, self._quiet = (
            [HttpClient(plan, self._http, lambda: gateways.addresses, random.Random(dice.random())) for plan in part]
            for part in plans
        )
        self._started: list[HttpClient] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for client in self._started:
            client.stop()
        for client in self._started:
            client.close()
        self._http.close()

    @property
    def clients(self) -> list[HttpClient]:
        """All that have begun."""
        return self._started

    def start(self) -> None:
        """Let clients come from now on."""
        self._start(self._busy, None)

    def start_quiet(self, watch: Callable[[], redis.Redis]) -> None:
        """Nothing breaks any more: let those come whose jobs must be cancelled."""
        self._start(self._quiet, watch)

    def _start(self, clients: list[HttpClient], watch: Callable[[], redis.Redis] | None) -> None:
        began = time.monotonic()
        for client in clients:
            client.start(began, watch)
            self._started.append(client)

    @property
    def is_through(self) -> bool:
        """Whether every client has what it asked for, or has gone away."""
        return not any(client.is_running for client in self._started)
