"""Clients that go on sending when their answer is there: they get it, and are cut when they do not end."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator
from contextlib import closing
from urllib.parse import urlsplit

import pytest
from support.waiting import LIMIT

from gateway.gateway_process import Gateway

BLOCK = b"x" * 65_536

DECLARED = "Content-Length: 1000000000000"
CHUNKED = "Transfer-Encoding: chunked"


def connected(gateway: Gateway, path: str, *headers: str) -> socket.socket:
    """A connection on which the head of a request was sent."""
    address = urlsplit(gateway.url)
    connection = socket.create_connection((address.hostname or "", address.port or 0), timeout=LIMIT)
    connection.sendall("\r\n".join((f"POST {path} HTTP/1.1", "Host: x", *headers, "", "")).encode())
    return connection


def blocks(header: str) -> Iterator[bytes]:
    while True:
        yield b"10000\r\n" + BLOCK + b"\r\n" if header == CHUNKED else BLOCK


def read_to_end(connection: socket.socket) -> bytes:
    found = b""
    with contextlib.suppress(ConnectionResetError):
        while data := connection.recv(65_536):
            found += data
    return found


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/files", "/v1/nothing"])
@pytest.mark.parametrize("header", [DECLARED, CHUNKED])
def test_a_client_that_never_ends_its_body_is_cut(shared_gateway: Gateway, header: str, path: str) -> None:
    sent = 0
    with closing(connected(shared_gateway, path, header)) as connection, contextlib.suppress(ConnectionError):
        for block in blocks(header):
            connection.sendall(block)
            sent += len(block)
            assert sent < 1_000_000_000

    assert sent > 1_000_000


def test_a_client_that_stops_in_its_body_gets_its_answer_at_once_and_is_cut(shared_gateway: Gateway) -> None:
    with closing(connected(shared_gateway, "/v1/files", CHUNKED)) as connection:
        began = time.monotonic()
        connection.sendall(next(blocks(CHUNKED)))
        first = connection.recv(65_536)
        answered = time.monotonic() - began
        rest = read_to_end(connection)

    assert first.startswith((b"HTTP/1.1 413", b"HTTP/1.1 400"))
    assert b"connection: close" in first.lower()
    assert answered < 2
    assert b"error" in first + rest


def test_who_sends_all_before_it_reads_gets_the_answer(shared_gateway: Gateway) -> None:
    size = 100_000_000
    with closing(connected(shared_gateway, "/v1/completions", f"Content-Length: {size}")) as connection:
        for _ in range(size // 100_000):
            connection.sendall(b"x" * 100_000)
        answer = read_to_end(connection)

    assert answer.startswith(b"HTTP/1.1 413")
    assert b'"body_too_large"' in answer


def test_who_asks_before_it_sends_is_answered_and_cut_at_once(shared_gateway: Gateway) -> None:
    with closing(connected(shared_gateway, "/v1/completions", DECLARED, "Expect: 100-continue")) as connection:
        began = time.monotonic()
        answer = read_to_end(connection)

    assert answer.startswith(b"HTTP/1.1 413")
    assert time.monotonic() - began < 2


def test_a_small_body_that_is_refused_costs_no_connection(shared_gateway: Gateway) -> None:
    with closing(connected(shared_gateway, "/v1/nothing", "Content-Length: 5")) as connection:
        connection.sendall(b"12345GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        answers = read_to_end(connection)

    assert answers.count(b"HTTP/1.1 ") == 2
    assert b"HTTP/1.1 404" in answers
    assert b"HTTP/1.1 200" in answers
