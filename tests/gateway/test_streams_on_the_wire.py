"""What streams are on a real socket: when their parts come, and what a page of another origin may read of errors."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import redis
from minilab_worker.worker import Worker

from gateway.conftest import StartGateway
from gateway.gateway_process import Gateway
from gateway.test_access import bearer, write_keys
from minilab_gen.protocol.events import EndEvent, TokenEvent
from minilab_gen.protocol.streams import publish

ASKED: dict[str, Any] = {"model": "base", "prompt": [5, 6], "max_tokens": 4, "temperature": 0}
ORIGIN = "https://page.example"


class Wire:
    """One connection that has asked for a stream."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection, self._come = connection, b""

    def until(self, mark: bytes) -> bytes:
        """What comes up to this, and no more than has come by then."""
        while mark not in self._come:
            part = self._connection.recv(65536)
            assert part, self._come
            self._come += part
        found, self._come = self._come, b""
        return found


@contextmanager
def asked(gateway: Gateway, body: dict[str, Any], *headers: str) -> Iterator[Wire]:
    host, port = gateway.url.removeprefix("http://").split(":")
    content = json.dumps(body)
    head = ["POST /v1/completions HTTP/1.1", "Host: x", f"Content-Length: {len(content)}", *headers]
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        connection.sendall(("\r\n".join(head) + "\r\n\r\n" + content).encode())
        yield Wire(connection)


def test_headers_come_before_any_token_and_each_token_comes_as_it_is_written(
    shared_gateway: Gateway, server: redis.Redis, by_hand: Callable[[], str]
) -> None:
    with asked(shared_gateway, {**ASKED, "stream": True}, "Accept-Encoding: gzip, br") as wire:
        head = wire.until(b"\r\n\r\n")
        job_id = by_hand()
        arrived = []
        for number, text in enumerate(("Un", " deux", " trois"), start=1):
            publish(server, [(job_id, TokenEvent(number, 7, text))], running_ttl=60)
            arrived.append(wire.until(f'"text":"{text}"'.encode()))
        publish(server, [(job_id, EndEvent("length", 3, 2))], running_ttl=60)
        rest = wire.until(b"data: [DONE]")

    assert head.startswith(b"HTTP/1.1 200")
    assert b"data:" not in head
    assert b"content-encoding" not in head.lower()
    assert [piece.count(b"data: {") for piece in arrived] == [1, 1, 1]
    assert rest.count(b"data: {") == 1


def test_tokens_that_are_there_together_come_together(
    shared_gateway: Gateway, server: redis.Redis, by_hand: Callable[[], str]
) -> None:
    with asked(shared_gateway, {**ASKED, "stream": True}) as wire:
        wire.until(b"\r\n\r\n")
        job_id = by_hand()
        publish(server, [(job_id, TokenEvent(number, 7, f"t{number} ")) for number in (1, 2, 3)], running_ttl=60)
        piece = wire.until(b'"text":"t3 "')
        publish(server, [(job_id, EndEvent("length", 3, 2))], running_ttl=60)

    sizes = [int(line, 16) for line in piece.split(b"\r\n")[::2] if line]
    assert len(sizes) == 1  # one chunk of the body
    assert piece.count(b"data: {") == 3


@pytest.fixture
def strict_gateway(start_gateway: StartGateway, tmp_path: Any) -> Gateway:
    keys = str(write_keys(tmp_path / "keys", "alice", options="requests-per-minute=1"))
    return start_gateway("--api-keys", keys, "--cors-origin", ORIGIN, "--max-body", "2000", "--queue-wait", "0.1")


def test_a_page_of_another_origin_may_read_that_it_asked_too_much_and_when_to_come_again(
    strict_gateway: Gateway, start_worker: Callable[..., Worker]
) -> None:
    start_worker()
    headers = {**bearer("alice"), "Origin": ORIGIN}
    with strict_gateway.http() as http:
        large = http.post("/v1/completions", content=b" " * 3000, headers=headers)
        late = http.post("/v1/completions", json=ASKED, headers=headers)

    assert (large.status_code, late.status_code) == (413, 429)
    for answer in (large, late):
        assert answer.headers["access-control-allow-origin"] == ORIGIN
        exposed = answer.headers["access-control-expose-headers"].lower()
        assert "retry-after" in exposed
        assert "x-request-id" in exposed


def test_a_page_of_another_origin_may_read_that_a_job_failed(
    start_gateway: StartGateway, server: redis.Redis, by_hand: Callable[[], str]
) -> None:
    gateway = start_gateway("--cors-origin", ORIGIN)
    with asked(gateway, ASKED, f"Origin: {ORIGIN}") as wire:
        publish(server, [(by_hand(), EndEvent("error", 0, 2, error="the model broke"))], running_ttl=60)
        answer = wire.until(b"the model broke")

    assert answer.startswith(b"HTTP/1.1 500")
    assert f"access-control-allow-origin: {ORIGIN}".encode() in answer.lower()
