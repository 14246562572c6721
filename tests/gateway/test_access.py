"""Who gets in: keys on every route and alias, pages of other origins, large and slow bodies."""

from __future__ import annotations

import gzip
import hashlib
import signal
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import redis
from minilab_worker.worker import Worker
from support.waiting import wait_until

from gateway.conftest import StartGateway
from gateway.gateway_process import Gateway

KEYS = {"alice": "ml-alice-secret", "bob": "ml-bob-secret"}
ASKED = {"model": "base", "prompt": [5, 6], "max_tokens": 3}


def write_keys(file: Path, *names: str, options: str = "") -> Path:
    lines = [f"{name} sha256:{hashlib.sha256(KEYS[name].encode()).hexdigest()} {options}" for name in names]
    file.write_text("\n".join(lines))
    return file


def bearer(name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {KEYS[name]}"}


@pytest.fixture(scope="module")
def locked_gateway(server_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    folder = tmp_path_factory.mktemp("locked")
    keys = str(write_keys(folder / "keys", "alice", "bob"))
    options = ("--api-keys", keys, "--cors-origin", "https://page.example", "--root-path", "/llm")
    with Gateway(server_url, folder / "log", *options) as gateway:
        yield gateway


@pytest.fixture
def locked(server: redis.Redis, locked_gateway: Gateway) -> Gateway:
    """A gateway that asks for keys, under a path of a proxy, for the pages of one origin."""
    return locked_gateway


def raw(gateway: Gateway, request: bytes) -> bytes:
    """What comes back on a connection of its own."""
    host, port = gateway.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        connection.sendall(request)
        answer = b""
        while part := connection.recv(65536):
            answer += part
    return answer


def test_every_route_but_two_needs_a_key(locked: Gateway) -> None:
    with locked.http() as http:
        routes = http.get("/openapi.json", headers=bearer("alice")).json()["paths"]
        assert {"/v1/models", "/v1/completions", "/v1/chat/completions", "/metrics", "/tokenize"} <= set(routes)
        for path in [*routes, "/docs", "/openapi.json", "/docs/oauth2-redirect"]:
            for method in ("GET", "POST", "HEAD", "OPTIONS", "PUT", "DELETE"):
                answer = http.request(method, path.replace("{", "").replace("}", ""))
                if path in ("/health", "/ready"):
                    assert answer.status_code in (200, 405)
                else:
                    assert answer.status_code == 401, (method, path)
                    assert answer.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize(
    "path",
    [
        "//v1/models",
        "/V1/models",
        "/v1/models/",
        "/v1/../v1/models",
        "/health/../v1/models",
        "/%2Fv1/models",
        "/v1/models;x",
        "/llm/v1/models",
        "/llm/llm/health",
        "//health",
        "/health/",
        "/health/x",
    ],
)
def test_no_alias_of_a_path_lets_a_request_through(locked: Gateway, path: str) -> None:
    answer = raw(locked, b"GET " + path.encode() + b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")

    assert answer.startswith(b"HTTP/1.1 401 "), answer


def test_a_websocket_is_turned_away(locked: Gateway) -> None:
    upgrade = b"Connection: Upgrade, close\r\nUpgrade: websocket\r\n"
    upgrade += b"Sec-WebSocket-Key: eA==\r\nSec-WebSocket-Version: 13\r\n"

    answer = raw(locked, b"GET /v1/models HTTP/1.1\r\nHost: x\r\n" + upgrade + b"\r\n")

    assert answer[:12] in (b"HTTP/1.1 401", b"HTTP/1.1 403")


@pytest.mark.parametrize(
    "header",
    [
        b"Bearer caf\xe9",
        "Bearer ml-alice’secret".encode(),
        b"Bearer",
        b"Basic ml-alice-secret",
        b"ml-alice-secret",
        b"Bearer ml-alice-secret x",
        b"Bearer ML-ALICE-SECRET",
        b"Bearer " + 30_000 * b"x",
    ],
    ids=lambda header: header[:30],
)
def test_what_is_no_key_is_turned_away(locked: Gateway, header: bytes) -> None:
    with locked.http() as http:
        answer = http.get("/v1/models", headers=[(b"Authorization", header)])

    assert answer.status_code == 401
    assert answer.json()["error"]["code"] == "invalid_api_key"
    assert locked.said.count("secret") == 0


def test_two_keys_or_one_in_the_address_let_nobody_in(locked: Gateway) -> None:
    key = KEYS["alice"].encode()
    with locked.http() as http:
        twice = http.get("/v1/models", headers=[(b"Authorization", b"Bearer " + key)] * 2)
        in_address = http.get("/v1/models", params={"api_key": KEYS["alice"]})

    assert (twice.status_code, in_address.status_code) == (401, 401)


@pytest.mark.parametrize("scheme", [b"Bearer ", b"bearer ", b"BEARER  "])
def test_a_known_key_gets_in(locked: Gateway, scheme: bytes) -> None:
    with locked.http() as http:
        for key in KEYS.values():
            assert http.get("/v1/models", headers=[(b"Authorization", scheme + key.encode())]).status_code == 200
        assert http.get("/llm/v1/models", headers=bearer("alice")).status_code == 200
        assert http.get("/llm/health").status_code == 200


def test_a_key_sees_its_own_completions_only(locked: Gateway, start_worker: Callable[..., Worker]) -> None:
    start_worker()
    with locked.http() as http:
        made = http.post("/v1/completions", json=ASKED, headers=bearer("alice")).json()
        path = f"/v1/completions/{made['id']}"
        own = http.get(path, headers=bearer("alice"))
        foreign = http.get(path, headers=bearer("bob"))
        unknown = http.get("/v1/completions/cmpl-nobody", headers=bearer("bob"))
        twice = [
            http.post("/v1/completions", json=ASKED, headers={**bearer(name), "Idempotency-Key": "k"}).json()["id"]
            for name in KEYS
        ]

    assert own.json()["choices"] == made["choices"]
    assert (foreign.status_code, unknown.status_code) == (404, 404)
    assert foreign.json()["error"] | {"message": ""} == unknown.json()["error"] | {"message": ""}
    assert len(set(twice)) == 2


def test_a_gateway_with_keys_knows_no_job_without_an_owner(
    locked: Gateway, start_gateway: StartGateway, start_worker: Callable[..., Worker]
) -> None:
    start_worker()
    open_gateway = start_gateway()
    made = open_gateway.complete(**ASKED)
    with locked.http() as http, open_gateway.http() as other:
        owned = http.post("/v1/completions", json=ASKED, headers=bearer("alice")).json()["id"]
        assert http.get(f"/v1/completions/{made.id}", headers=bearer("alice")).status_code == 404
        assert other.get(f"/v1/completions/{owned}").status_code == 404


def test_no_key_stands_in_redis(locked: Gateway, start_worker: Callable[..., Worker], server: redis.Redis) -> None:
    start_worker()
    with locked.http() as http:
        http.post("/v1/completions", json=ASKED, headers=bearer("alice"))
    values: list[Any] = [server.dump(key) for key in server.scan_iter()]

    assert values
    assert not any(KEYS["alice"].encode() in (value or b"") for value in values)


def test_hangup_reads_the_keys_again(start_gateway: StartGateway, tmp_path: Path) -> None:
    gateway = start_gateway("--api-keys", str(write_keys(tmp_path / "keys", "alice", "bob")))
    with gateway.http() as http:
        assert http.get("/v1/models", headers=bearer("bob")).status_code == 200
        write_keys(tmp_path / "keys", "alice")
        gateway.process.send_signal(signal.SIGHUP)
        wait_until(lambda: "keys are known now" in gateway.said)

        assert http.get("/v1/models", headers=bearer("bob")).status_code == 401
        assert http.get("/v1/models", headers=bearer("alice")).status_code == 200


def test_a_key_has_its_limits(start_gateway: StartGateway, start_worker: Callable[..., Worker], tmp_path: Path) -> None:
    start_worker()
    limits = "requests-per-minute=2 jobs=2 models=base"
    gateway = start_gateway("--api-keys", str(write_keys(tmp_path / "keys", "alice", options=limits)))
    with gateway.http(headers=bearer("alice")) as http:
        many = http.post("/v1/completions", json={**ASKED, "n": 3})
        other = http.post("/v1/completions", json={**ASKED, "model": "other"})
        looked = http.get("/v1/models")
        late = http.post("/v1/completions", json=ASKED)

    assert (many.status_code, many.json()["error"]["code"]) == (429, "too_many_jobs")
    assert (other.status_code, other.json()["error"]["code"]) == (404, "model_not_found")
    assert looked.status_code == 200
    assert (late.status_code, late.json()["error"]["code"]) == (429, "rate_limit_exceeded")
    assert int(late.headers["retry-after"]) >= 1


def test_a_page_of_an_allowed_origin_may_ask_and_read_errors(locked: Gateway) -> None:
    page = {"Origin": "https://page.example"}
    asks = {"Access-Control-Request-Method": "POST"}
    asks["Access-Control-Request-Headers"] = "authorization,content-type,last-event-id,x-stainless-retry-count"
    with locked.http() as http:
        preflight = http.options("/v1/chat/completions", headers={**page, **asks})
        refused = http.post("/v1/chat/completions", json={}, headers=page)
        foreign = http.options("/v1/chat/completions", headers={**asks, "Origin": "https://other.example"})
        foreign_get = http.get("/v1/models", headers={**bearer("alice"), "Origin": "https://other.example"})

    assert preflight.status_code == 200
    assert preflight.headers["access-control-allow-origin"] == "https://page.example"
    assert refused.status_code == 401
    assert refused.headers["access-control-allow-origin"] == "https://page.example"
    assert "x-request-id" in refused.headers["access-control-expose-headers"].lower()
    assert "access-control-allow-origin" not in foreign.headers
    assert "access-control-allow-origin" not in foreign_get.headers


def test_no_origin_is_allowed_unless_it_is_named(shared_gateway: Gateway, server: redis.Redis) -> None:
    with shared_gateway.http() as http:
        answer = http.get("/health", headers={"Origin": "https://page.example"})

    assert "access-control-allow-origin" not in answer.headers


def test_a_body_that_is_too_large_is_refused_at_once(start_gateway: StartGateway) -> None:
    gateway = start_gateway("--max-body", "2000")
    with gateway.http() as http:
        known = http.post("/v1/completions", content=b"x" * 3000)
        chunked = http.post("/v1/completions", content=iter([b"x" * 1500] * 2))
        compressed = http.post("/v1/completions", content=gzip.compress(b"{}"), headers={"Content-Encoding": "gzip"})
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
    early = raw(gateway, head + b"Content-Length: 99999\r\n\r\n")

    assert (known.status_code, known.json()["error"]["code"]) == (413, "body_too_large")
    assert chunked.status_code == 413
    assert compressed.status_code == 415
    assert early.startswith(b"HTTP/1.1 413 ")


def test_a_large_prompt_holds_up_nobody(gateway: Gateway) -> None:
    with gateway.http() as http:
        began = time.monotonic()
        refused = http.post("/v1/completions", json={"model": "base", "prompt": 10**6 * "a"})
        alone = time.monotonic() - began
        assert refused.status_code == 400

        def ask() -> int:
            with gateway.http() as other:
                return other.post("/v1/completions", json={"model": "base", "prompt": 10**6 * "b"}).status_code

        longest = 0.0
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(ask)
            while not asked.done():
                began = time.monotonic()
                assert http.get("/health").status_code == 200
                longest = max(longest, time.monotonic() - began)
    assert asked.result() == 400
    assert longest < max(0.3, alone / 2)


def test_a_request_id_is_given_back_and_logged_and_no_text(gateway: Gateway) -> None:
    with gateway.http() as http:
        own = http.post(
            "/v1/completions", json={**ASKED, "prompt": "Passepartout"}, headers={"X-Request-Id": "own-id-17"}
        )
        made = http.get("/health", headers={"X-Request-Id": "bad id"})

    assert own.headers["x-request-id"] == "own-id-17"
    assert made.headers["x-request-id"].startswith("req-")
    wait_until(lambda: "own-id-17 POST /v1/completions 200" in gateway.said)
    assert "Passepartout" not in gateway.said
    assert own.json()["choices"][0]["text"] not in gateway.said
