"""Which routes there are: all but a short list need a key, and HEAD is answered where GET is."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import cast

import pytest
import redis
from minilab_gateway import page
from minilab_gateway.app import make_routes
from minilab_gateway.limits import Limits
from minilab_gateway.metrics import Metrics
from minilab_gateway.service import Service
from minilab_gateway.settings import GatewaySettings
from starlette.routing import BaseRoute, Route

from gateway.gateway_process import Gateway
from gateway.test_access import locked, locked_gateway, raw

__all__ = ["locked", "locked_gateway"]

PAGE = {"/", *(f"/{file.name}" for file in Path(page.__file__).parent.iterdir() if file.suffix in (".css", ".js"))}
OPEN = {"/health", "/ready", *PAGE}
"""All that needs no key, in full: a route that is added needs one, or an entry here."""


def paths_of(routes: Iterable[BaseRoute]) -> Iterator[str]:
    """Their paths, and those of the routers among them."""
    for route in routes:
        inner = getattr(route, "original_router", None)
        if inner is None:
            yield cast(Route, route).path  # and where it is another kind with no path, this fails
        else:
            yield from paths_of(inner.routes)


def test_no_route_of_the_app_but_these_answers_without_a_key(locked: Gateway, server: redis.Redis) -> None:
    settings = GatewaySettings()
    app = make_routes(settings, server, Service(server, settings), Metrics(), Limits(server), lambda: False)
    paths = {re.sub("{.*?}", "x", path) for path in paths_of(app.routes)}
    with locked.http() as http:
        answers = {
            (path, method): http.request(method, path).status_code
            for path in paths
            for method in ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
        }

    assert {"/docs", "/openapi.json", "/v1/completions/x/cancel", *OPEN} <= paths
    assert {path for (path, _), status in answers.items() if status != 401} == OPEN


@pytest.mark.parametrize("path", ["/health", "/ready", "/metrics", "/v1/models", "/"])
def test_head_is_answered_as_get_is_without_the_body(gateway: Gateway, path: str) -> None:
    head = f"HEAD {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"

    answer = raw(gateway, head.encode())

    assert answer.startswith(b"HTTP/1.1 200 ")
    assert answer.endswith(b"\r\n\r\n")
    assert answer.count(b"\r\n\r\n") == 1
