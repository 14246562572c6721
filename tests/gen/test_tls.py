"""The service over TLS: client, worker and publisher with a real server and a certificate authority of its own."""

from __future__ import annotations

import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from chaos.server import BINARY, Server
from minilab_worker.serving import ServedModel
from minilab_worker.worker import Worker, WorkerSettings
from support.client_program import client, events
from support.waiting import wait_until

import minilab_gen
from minilab_gen import EndEvent
from minilab_gen.protocol import keys


def _knows_tls() -> bool:
    """Whether the server's build does: one that does not knows no option of it."""
    if BINARY is None:
        return False
    refused = subprocess.run([BINARY, "--tls-auth-clients", "maybe"], capture_output=True, text=True, check=False)
    return "Bad directive" not in refused.stdout + refused.stderr


pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl to make certificates with"),
    pytest.mark.skipif(not _knows_tls(), reason="needs a redis-server that was built with TLS"),
]


class Authority:
    """A certificate authority that only its own folder knows, and a certificate of its making for this machine."""

    def __init__(self, folder: Path) -> None:
        self.certificate = folder / "authority.pem"
        self.machine, self.machine_key = folder / "machine.pem", folder / "machine.key"
        key, names, request = folder / "authority.key", folder / "names", folder / "request"
        names.write_text("subjectAltName=IP:127.0.0.1\n", encoding="utf-8")
        curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
        _openssl("req", "-x509", *curve, "-subj", "/CN=authority", "-keyout", key, "-out", self.certificate)
        _openssl("req", "-new", *curve, "-subj", "/CN=machine", "-keyout", self.machine_key, "-out", request)
        signed = ("-CA", self.certificate, "-CAkey", key, "-CAcreateserial", "-extfile", names)
        _openssl("x509", "-req", "-in", request, *signed, "-out", self.machine)


def _openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """The one that has signed the server's certificate."""
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Another authority, which has signed nothing here."""
    return Authority(tmp_path_factory.mktemp("stranger"))


@contextmanager
def _server(authority: Authority, asks_clients: str) -> Iterator[str]:
    """The address of a server that speaks nothing but TLS over the network."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = {
        "tls-port": port,
        "tls-cert-file": authority.machine,
        "tls-key-file": authority.machine_key,
        "tls-ca-cert-file": authority.certificate,
        "tls-auth-clients": asks_clients,
    }
    with TemporaryDirectory(prefix="ml-") as folder:
        words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
        with Server(Path(folder), *words):
            yield f"rediss://127.0.0.1:{port}/0"


@pytest.fixture(scope="module")
def address(authority: Authority) -> Iterator[str]:
    """A server that shows its certificate and asks for none."""
    with _server(authority, "no") as url:
        yield url


@pytest.fixture(scope="module")
def strict_address(authority: Authority) -> Iterator[str]:
    """A server that wants to see a certificate of each client, too."""
    with _server(authority, "yes") as url:
        yield url


@contextmanager
def _working(url: str, served: ServedModel) -> Iterator[Worker]:
    """A worker that serves over this address."""
    worker = Worker(WorkerSettings(tuple(keys.queue_names(keys.DEFAULT_MODEL)), 4, redis_url=url), served)
    thread = threading.Thread(target=worker.serve)
    thread.start()
    try:
        yield worker
    finally:
        worker.stop()
        thread.join()


async def assert_everybody_works(url: str, served: ServedModel) -> None:
    """A job goes through client, worker and publisher, and is read in each way that there is."""
    with _working(url, served):
        told = client("submit", "Phileas Fogg", "--follow", "--json", "--redis-url", url)
        assert told.exit_code == 0, told.output
        submitted, *tokens, ended = events(told)
        job_id = submitted["job_id"]

        assert ended["end"] == "context"
        assert len(tokens) == ended["tokens"] > 0
        read = [event async for event in minilab_gen.tail_async(job_id, redis_url=url)]
        assert read == list(minilab_gen.tail(job_id, redis_url=url))
        assert isinstance(read[-1], EndEvent)
        wait_until(lambda: "finished" in client("status", job_id, "--redis-url", url).stdout)
        for command in (("verify", job_id), ("jobs",), ("workers",), ("doctor",)):
            assert client(*command, "--redis-url", url).exit_code == 0


@pytest.mark.parametrize("rule", ["", "ssl_cert_reqs=required&"])
async def test_a_server_is_believed_that_our_authority_vouches_for(
    address: str, authority: Authority, served: ServedModel, rule: str
) -> None:
    await assert_everybody_works(f"{address}?{rule}ssl_ca_certs={authority.certificate}", served)


@pytest.mark.parametrize("spelling", ["none", "None"])
async def test_any_server_is_believed_where_the_url_says_so(address: str, served: ServedModel, spelling: str) -> None:
    await assert_everybody_works(f"{address}?ssl_cert_reqs={spelling}", served)


async def test_a_client_shows_its_certificate_where_the_server_wants_to_see_one(
    strict_address: str, authority: Authority, served: ServedModel
) -> None:
    own = f"ssl_certfile={authority.machine}&ssl_keyfile={authority.machine_key}"

    await assert_everybody_works(f"{strict_address}?ssl_ca_certs={authority.certificate}&{own}", served)


def test_a_server_that_nobody_vouches_for_is_refused(address: str, stranger: Authority) -> None:
    for url in (address, f"{address}?ssl_ca_certs={stranger.certificate}"):
        result = client("status", "x", "--redis-url", url)

        assert (result.exit_code, result.stdout) == (4, "")
        assert "CERTIFICATE_VERIFY_FAILED" in result.stderr
        assert result.stderr.count("\n") == 1


def test_a_client_without_a_certificate_is_told_that_the_server_wants_one(
    strict_address: str, authority: Authority
) -> None:
    result = client("status", "x", "--redis-url", f"{strict_address}?ssl_ca_certs={authority.certificate}")

    assert (result.exit_code, result.stdout) == (4, "")
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
