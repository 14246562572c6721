"""What tests of the gateway share: a gateway on a socket, and a worker behind it. No assertion."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import redis
from minilab_worker.worker import Worker
from support.engines import slow_engine

from gateway.gateway_process import Gateway

StartGateway = Callable[..., Gateway]


@pytest.fixture
def start_gateway(server: redis.Redis, server_url: str, tmp_path: Path) -> Iterator[StartGateway]:
    """Start gateways on the shared server; all are ended."""
    with ExitStack() as stack:

        def start(*options: str, url: str = server_url, **variables: str) -> Gateway:
            log = tmp_path / f"gateway-{secrets.token_hex(4)}.log"
            return stack.enter_context(Gateway(url, log, *options, **variables))

        yield start


@pytest.fixture(scope="session")
def shared_gateway(server_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """One for all tests that need nothing special: it keeps nothing of its own."""
    with Gateway(server_url, tmp_path_factory.mktemp("gateway") / "log", "--queue-wait", "0.5") as shared:
        yield shared


@pytest.fixture
def gateway(shared_gateway: Gateway, start_worker: Callable[..., Worker]) -> Gateway:
    """A gateway, and a worker of the small model."""
    start_worker()
    return shared_gateway


@pytest.fixture
def slow_gateway(shared_gateway: Gateway, start_worker: Callable[..., Worker]) -> Gateway:
    """The same with a worker that is slow enough for things to happen in the middle of a job."""
    start_worker(engine=slow_engine)
    return shared_gateway
