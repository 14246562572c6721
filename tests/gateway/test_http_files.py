"""Files: uploaded, listed, read, deleted; and uploads that go wrong."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import httpx2 as httpx
import openai
import pytest
import redis
from minilab_gateway.batches.file_store import PART_BYTES
from minilab_worker.worker import Worker
from support.waiting import wait_until

from gateway.batch_files import begin, ended, jsonl, line
from gateway.conftest import StartGateway
from gateway.gateway_process import Gateway

BOUNDARY = "boundary"
HEADERS = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}


def part(name: str, content: bytes, more: str = "") -> bytes:
    head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"{more}\r\n\r\n'
    return head.encode("utf-8", "surrogatepass") + content + b"\r\n"


END = f"--{BOUNDARY}--\r\n".encode()

PURPOSE = part("purpose", b"batch")


def form(content: bytes, filename: str = "x") -> bytes:
    return PURPOSE + part("file", content, f'; filename="{filename}"') + END


def stored(server: redis.Redis) -> list[bytes]:
    return list(server.scan_iter(match="minilab:file*"))


@pytest.mark.parametrize("size", [0, 1, PART_BYTES - 1, PART_BYTES, PART_BYTES + 1, 5 * PART_BYTES + 7])
def test_a_file_is_given_back_as_it_came(shared_gateway: Gateway, server: redis.Redis, size: int) -> None:
    client = shared_gateway.client()
    content = (bytes(range(256)) * (size // 256 + 1))[:size]

    file = client.files.create(file=("in.jsonl", content), purpose="batch")

    assert client.files.content(file.id).read() == content
    assert client.files.retrieve(file.id) == file
    assert (file.bytes, file.filename, file.purpose, file.object) == (size, "in.jsonl", "batch", "file")
    assert file.expires_at == file.created_at + 7 * 24 * 3600
    assert [key for key in stored(server) if server.ttl(key) < 0] == []


def test_a_file_may_be_kept_for_another_time(shared_gateway: Gateway, server: redis.Redis) -> None:
    client = shared_gateway.client()

    file = client.files.create(file=b"x", purpose="batch", expires_after={"anchor": "created_at", "seconds": 3600})

    assert file.expires_at == file.created_at + 3600
    assert 3500 < server.ttl(f"minilab:file:{file.id}:parts") <= 3600
    for wrong in (3599, 2_592_001):
        with pytest.raises(openai.BadRequestError, match="from 3600 to 2592000"):
            client.files.create(file=b"x", purpose="batch", expires_after={"anchor": "created_at", "seconds": wrong})


def test_files_are_listed_a_page_at_a_time_and_deleted(shared_gateway: Gateway, server: redis.Redis) -> None:
    client = shared_gateway.client()
    made = [client.files.create(file=b"x", purpose="batch").id for _ in range(5)]

    assert [file.id for file in client.files.list(limit=2)] == made[::-1]
    assert [file.id for file in client.files.list(limit=2, order="asc")] == made
    assert [file.id for file in client.files.list(purpose="batch_output")] == []
    deleted = client.files.delete(made[2])

    assert (deleted.id, deleted.deleted) == (made[2], True)
    assert [file.id for file in client.files.list(order="asc")] == [*made[:2], *made[3:]]
    for gone in (client.files.retrieve, client.files.content, client.files.delete):
        call: Any = gone
        with pytest.raises(openai.NotFoundError):
            call(made[2])
    assert [key for key in stored(server) if made[2].encode() in key] == []


def test_a_file_that_has_expired_is_not_listed(shared_gateway: Gateway, server: redis.Redis) -> None:
    client = shared_gateway.client()
    made = [client.files.create(file=b"x", purpose="batch").id for _ in range(2)]

    server.expire(f"minilab:file:{made[0]}", 0)

    assert [file.id for file in client.files.list()] == made[1:]
    assert server.zrange("minilab:files:", 0, -1) == [made[1].encode()]


def test_a_file_that_a_batch_reads_is_not_deleted(shared_gateway: Gateway, start_worker: Callable[..., Worker]) -> None:
    client = shared_gateway.client()
    start_worker().stop()  # its model stays known, and nothing is answered
    batch = begin(client, jsonl([line("a")]))

    with pytest.raises(openai.ConflictError):
        client.files.delete(batch.input_file_id)

    client.batches.cancel(batch.id)
    ended(client, batch)
    assert client.files.delete(batch.input_file_id).deleted


# names and forms


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("../../x", "x"),
        ("C:\\x", "x"),
        ("/etc/passwd", "passwd"),
        ("", "file"),
        ("..", "file"),
        ("a\0b.jsonl", "ab.jsonl"),
        ("x" * 5000, "x" * 255),
        ("données.jsonl", "données.jsonl"),
        ("<img src=x>.jsonl", "<img src=x>.jsonl"),
    ],
    ids=lambda text: text[:20].replace("\0", "NUL"),
)
def test_the_name_of_a_file_is_no_path(shared_gateway: Gateway, given: str, kept: str) -> None:
    with shared_gateway.http() as http:
        answer = http.post("/v1/files", content=form(b"{}", given), headers=HEADERS)

        assert answer.status_code == 200
        assert answer.json()["filename"] == kept
        content = http.get(f"/v1/files/{answer.json()['id']}/content")
    assert content.content == b"{}"
    assert content.headers["x-content-type-options"] == "nosniff"
    assert content.headers["content-type"] == "application/octet-stream"


ODD_FORMS: dict[str, bytes] = {
    "nothing": b"",
    "no form": b"{}",
    "an end alone": END,
    "no file": PURPOSE + END,
    "no purpose": part("file", b"x", '; filename="x"') + END,
    "another purpose": part("purpose", b"fine-tune") + part("file", b"x", '; filename="x"') + END,
    "a purpose of no text": part("purpose", b"\xff") + part("file", b"x", '; filename="x"') + END,
    "a long purpose": part("purpose", b"x" * 10_000) + part("file", b"x") + END,
    "two purposes": PURPOSE + PURPOSE + part("file", b"x") + END,
    "two files": PURPOSE + part("file", b"x") + part("file", b"x") + END,
    "another field": PURPOSE + part("more", b"x") + part("file", b"x") + END,
    "no end": PURPOSE + part("file", b"x"),
    "cut in the file": PURPOSE + part("file", b"x")[:-3],
    "cut in a header": PURPOSE + part("file", b"x")[:30],
    "no name": PURPOSE + f"--{BOUNDARY}\r\nContent-Disposition: form-data\r\n\r\nx\r\n".encode() + END,
    "no header": PURPOSE + f"--{BOUNDARY}\r\n\r\nx\r\n".encode() + END,
    "an odd header": PURPOSE + f"--{BOUNDARY}\r\n\xff: ;;;=\r\n\r\nx\r\n".encode("latin-1") + END,
    "many headers": PURPOSE + f"--{BOUNDARY}\r\n".encode() + b"A: b\r\n" * 1000 + b"\r\nx\r\n" + END,
    "a long header": PURPOSE + part("file", b"x", '; filename="' + "x" * 100_000 + '"') + END,
    "expires never": PURPOSE + part("expires_after[anchor]", b"created_at") + part("file", b"x") + END,
    "expires at an odd time": PURPOSE + part("expires_after[seconds]", b"-1") + part("file", b"x") + END,
}


@pytest.mark.parametrize("kind", ODD_FORMS)
def test_a_form_of_another_kind_is_refused_and_leaves_nothing(
    shared_gateway: Gateway, server: redis.Redis, kind: str
) -> None:
    with shared_gateway.http() as http:
        answer = http.post("/v1/files", content=ODD_FORMS[kind], headers=HEADERS)

    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "invalid_request_error"
    wait_until(lambda: stored(server) == [])


@pytest.mark.parametrize(
    "content_type",
    [
        "",
        "application/json",
        "multipart/form-data",
        "multipart/form-data; boundary=",
        "multipart/mixed; boundary=x",
        f"multipart/form-data; boundary={'x' * 1000}",
        'multipart/form-data; boundary="',
        "a" * 10_000,
    ],
)
def test_a_body_of_another_type_is_refused(shared_gateway: Gateway, content_type: str) -> None:
    with shared_gateway.http() as http:
        answer = http.post("/v1/files", content=form(b"x"), headers={"Content-Type": content_type})

    assert answer.status_code == 400


# uploads that are too large, or end too early


def test_a_file_over_the_limit_is_refused_as_soon_as_that_is_known(
    start_gateway: StartGateway, server: redis.Redis
) -> None:
    gateway = start_gateway("--max-file", "1000000", "--max-body", "2000")
    client = gateway.client()

    assert client.files.create(file=b"x" * 1_000_000, purpose="batch").bytes == 1_000_000
    for size in (1_000_001, 1_100_000, 50_000_000):
        with pytest.raises(openai.APIStatusError) as refused:
            client.files.create(file=b"x" * size, purpose="batch")
        assert refused.value.status_code == 413

    def chunks() -> Any:
        yield PURPOSE + part("file", b"")[:-2]
        for _ in range(30):
            yield b"x" * 100_000

    with gateway.http() as http:
        unannounced = http.post("/v1/files", content=chunks(), headers=HEADERS)
        assert unannounced.status_code == 413
        for path in ("/v1/files/", "/v1//files", "/v1/batches", "/v1/completions"):
            assert http.post(path, content=b"x" * 3000).status_code == 413  # the limit of other bodies
    wait_until(lambda: len(stored(server)) == 3)  # those of the one that fitted


def open_upload(gateway: Gateway, size: int) -> socket.socket:
    """A connection on which so many bytes of a longer file have been sent."""
    address = urlsplit(gateway.url)
    connection = socket.create_connection((address.hostname or "", address.port or 0))
    head = f"POST /v1/files HTTP/1.1\r\nHost: x\r\nContent-Type: {HEADERS['Content-Type']}\r\n"
    connection.sendall(f"{head}Content-Length: {10 * size}\r\n\r\n".encode())
    connection.sendall(PURPOSE + part("file", b"")[:-2] + b"x" * size)
    return connection


def test_an_upload_whose_client_goes_away_leaves_nothing(shared_gateway: Gateway, server: redis.Redis) -> None:
    with open_upload(shared_gateway, 3 * PART_BYTES):
        wait_until(lambda: stored(server) != [])

    wait_until(lambda: stored(server) == [])
    assert "Traceback" not in shared_gateway.said


def test_what_a_killed_gateway_leaves_of_an_upload_goes_within_minutes(
    start_gateway: StartGateway, server: redis.Redis
) -> None:
    gateway = start_gateway()
    with open_upload(gateway, 3 * PART_BYTES):
        wait_until(lambda: stored(server) != [])
        gateway.kill()

    (left,) = stored(server)
    assert 0 < server.ttl(left) <= 300


def test_a_slow_upload_holds_up_nobody(shared_gateway: Gateway, server: redis.Redis) -> None:
    slow = [open_upload(shared_gateway, 1000) for _ in range(20)]

    began = time.monotonic()
    assert httpx.get(f"{shared_gateway.url}/health").status_code == 200
    assert shared_gateway.client().files.create(file=b"x", purpose="batch").bytes == 1
    assert time.monotonic() - began < 5
    for connection in slow:
        connection.close()
