"""Every Redis connection: bytes, protocol 2, our timeouts, and errors that help without telling the password."""

from __future__ import annotations

import asyncio
import logging
import shutil
import ssl
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from support.scripted_server import ScriptedServer, free_port

from minilab_gen.errors import RedisUnavailableError
from minilab_gen.protocol import connection, embedded
from minilab_gen.protocol.address import redis_url
from minilab_gen.protocol.connection import connect, connect_async

pytestmark = pytest.mark.usefixtures("one_try")

SECRET = "s3cret"

LOADING = b"-LOADING Redis is loading the dataset in memory\r\n"


@pytest.fixture(scope="module")
def server() -> Iterator[embedded.EmbeddedServer]:
    """A real server, the private one of an otherwise empty home."""
    home = Path(tempfile.mkdtemp(prefix="ml-"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINILAB_HOME", str(home))
        try:
            yield embedded.start()
        finally:
            embedded.stop()
            shutil.rmtree(home)


def _pool_settings(client: Any) -> dict[str, Any]:
    settings: dict[str, Any] = client.connection_pool.connection_kwargs
    return settings


def test_a_connection_speaks_bytes(server: embedded.EmbeddedServer) -> None:
    with connect(server.url) as client:
        client.set("k", "é")
        assert client.get("k") == "é".encode()


@pytest.mark.parametrize("option", ["protocol=3", "legacy_responses=false", "protocol=3&decode_responses=False&db=0"])
def test_a_url_cannot_change_the_shape_of_answers(server: embedded.EmbeddedServer, option: str) -> None:
    with connect(f"{server.url}?{option}") as client:
        client.delete("s")
        client.xadd("s", {"id": "5"}, "1-0")
        assert client.xread({"s": "0"}) == [[b"s", [(b"1-0", {b"id": b"5"})]]]


def test_the_async_connection_is_the_same(server: embedded.EmbeddedServer) -> None:
    async def read() -> tuple[Any, dict[str, Any]]:
        client = connect_async(f"{server.url}?protocol=3")
        async with client:
            await client.delete("s")
            await client.xadd("s", {"id": "5"}, "1-0")
            return await client.xread({"s": "0"}), _pool_settings(client)

    answer, settings = asyncio.run(read())
    with connect(server.url) as client:
        ours = _pool_settings(client)
    assert answer == [[b"s", [(b"1-0", {b"id": b"5"})]]]
    for name in ("decode_responses", "protocol", "socket_timeout", "socket_connect_timeout"):
        assert settings[name] == ours[name]
    assert settings["retry"].get_retries() == ours["retry"].get_retries()


def test_a_quiet_blocking_read_ends_well_before_the_socket_timeout(server: embedded.EmbeddedServer) -> None:
    assert connection.BLOCK_MS / 1000 * 2 < connection.SOCKET_SECONDS
    with connect(server.url) as client:
        began = time.monotonic()
        assert client.xread({"nothing": "0"}, block=connection.BLOCK_MS) == []
        assert 1.9 < time.monotonic() - began < 4


def test_a_broken_connection_is_retried_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "RETRIES", 3)
    monkeypatch.setattr(connection, "FIRST_PAUSE_SECONDS", 0.001)
    monkeypatch.setattr(connection, "LOADING_SECONDS", 0)
    with ScriptedServer(LOADING) as broken, pytest.raises(RedisUnavailableError):
        connect(f"redis://127.0.0.1:{broken.port}")
    assert broken.asked.count(b"PING") == 1 + 3


def test_a_silent_server_is_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "RETRIES", 3)
    monkeypatch.setattr(connection, "BLOCK_MS", 1)  # which is what makes the short timeout below a legal one
    with ScriptedServer(b"") as silent, pytest.raises(RedisUnavailableError, match="no Redis answers"):
        connect(f"redis://127.0.0.1:{silent.port}?socket_timeout=0.1")
    assert silent.asked.count(b"PING") == 1


def test_without_an_address_the_private_server_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    home = Path(tempfile.mkdtemp(prefix="ml-"))
    monkeypatch.setenv("MINILAB_HOME", str(home))
    monkeypatch.setenv("MINILAB_REDIS_URL", "")
    assert redis_url() is None
    try:
        with connect() as client:
            assert client.info("server")["process_id"] == embedded.status().pid
    finally:
        embedded.stop()
        shutil.rmtree(home)


def test_the_address_comes_from_the_environment(
    server: embedded.EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINILAB_REDIS_URL", f"{server.url}\n")
    assert redis_url() == server.url
    with connect() as client:
        assert client.info("server")["process_id"] == server.pid


def test_a_refused_login_says_so_at_once_without_the_password() -> None:
    with (
        ScriptedServer(b"+PONG\r\n") as closed,
        pytest.raises(RedisUnavailableError, match="refuses the login") as caught,
    ):
        connect(f"redis://me:{SECRET}@127.0.0.1:{closed.port}", wait=30)
    assert SECRET not in str(caught.value)
    assert f"redis://***@127.0.0.1:{closed.port}" in str(caught.value)


def test_no_server_is_one_line_with_the_remedy() -> None:
    port = free_port()
    with pytest.raises(RedisUnavailableError) as caught:
        connect(f"redis://127.0.0.1:{port}")
    message = str(caught.value)
    assert message.startswith(f"no Redis answers at redis://127.0.0.1:{port}: ")
    assert "MINILAB_REDIS_URL" in message
    assert "\n" not in message


def test_something_that_is_no_redis_is_refused() -> None:
    with (
        ScriptedServer(b"HTTP/1.1 400 Bad Request\r\n") as web,
        pytest.raises(RedisUnavailableError, match="check its"),
    ):
        connect(f"redis://127.0.0.1:{web.port}", wait=30)


def test_a_loading_server_is_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    with ScriptedServer(LOADING, LOADING, LOADING, b"+PONG\r\n") as loading, caplog.at_level(logging.WARNING):
        with connect(f"redis://127.0.0.1:{loading.port}"):
            pass
        asked = loading.asked.count(b"PING")
    assert asked == 4
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_a_loading_server_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "LOADING_SECONDS", 0.2)
    with ScriptedServer(LOADING) as loading, pytest.raises(RedisUnavailableError, match="loading"):
        connect(f"redis://127.0.0.1:{loading.port}")
    assert loading.asked.count(b"PING") > 1


def test_a_server_that_comes_later_is_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    port = free_port()
    found: list[redis.Redis] = []
    waiting = threading.Thread(target=lambda: found.append(connect(f"redis://:{SECRET}@127.0.0.1:{port}", wait=10)))
    with caplog.at_level(logging.WARNING):
        waiting.start()
        while not caplog.records:
            time.sleep(0.01)
        with ScriptedServer(b"+PONG\r\n", port=port, knows_us=True):
            waiting.join()
            found[0].close()
    assert len(caplog.records) == 1
    assert "waiting up to 10 s" in caplog.text
    assert SECRET not in caplog.text


def test_waiting_ends_when_the_time_is_up() -> None:
    began = time.monotonic()
    with pytest.raises(RedisUnavailableError, match="no Redis answers"):
        connect(f"redis://127.0.0.1:{free_port()}", wait=0.3)
    assert 0.3 <= time.monotonic() - began < 3


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for 127.0.0.1 that is not trusted, and its key in one file."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl to make a certificate with")
    file = tmp_path_factory.mktemp("tls") / "both.pem"
    subject = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    kind = ["-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    key = file.with_suffix(".key")
    made = ["openssl", "req", *kind, *subject, "-keyout", str(key), "-out", str(file)]
    subprocess.run(made, check=True, capture_output=True)
    file.write_text(file.read_text() + key.read_text())
    return file


@pytest.mark.parametrize(
    "option", ["ssl_cert_reqs=none", "ssl_cert_reqs=None", "ssl_cert_reqs=CERT_NONE", "ssl_ca_certs="]
)
def test_a_tls_url_with_its_options_works(certificate: Path, option: str) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    option = option if option[-1] != "=" else option + str(certificate)
    with ScriptedServer(b"+PONG\r\n", context=context) as secure:
        with connect(f"rediss://127.0.0.1:{secure.port}?{option}"):
            pass

        async def greet() -> None:
            async with connect_async(f"rediss://127.0.0.1:{secure.port}?{option}") as client:
                await client.ping()

        asyncio.run(greet())
        assert secure.asked.count(b"PING") == 2


def test_a_certificate_that_nobody_vouches_for_is_refused(certificate: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    with (
        ScriptedServer(b"+PONG\r\n", context=context) as secure,
        pytest.raises(RedisUnavailableError, match="CERTIFICATE_VERIFY_FAILED"),
    ):
        connect(f"rediss://127.0.0.1:{secure.port}")
