"""All files of a key together: bounded, uploads under way among them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import openai
import pytest
import redis
from minilab_gateway.batches.file_store import FileStore, NoRoom
from support.waiting import wait_until

from gateway.conftest import StartGateway
from gateway.gateway_process import Gateway
from gateway.test_access import KEYS, write_keys
from gateway.test_http_files import HEADERS, PURPOSE, form, open_upload, part, stored
from minilab_gen.protocol import keys


@pytest.fixture
def bounded(start_gateway: StartGateway) -> Gateway:
    return start_gateway("--max-files-bytes", "100000")


def upload(client: openai.OpenAI, size: int) -> Any:
    return client.files.create(file=("x", b"x" * size), purpose="batch")


def test_a_file_beyond_the_bound_of_all_is_refused_until_one_is_deleted(bounded: Gateway, server: redis.Redis) -> None:
    client = bounded.client()
    first = upload(client, 60_000)

    with pytest.raises(openai.APIStatusError) as refused:
        upload(client, 50_000)

    assert refused.value.status_code == 413
    assert refused.value.code == "files_too_large"
    told = str(refused.value)
    assert "all files must have at most 100000 bytes together" in told
    assert "60000 in 1 files" in told
    assert "DELETE /v1/files/ID" in told
    client.files.delete(first.id)
    upload(client, 50_000)
    wait_until(lambda: server.hlen(keys.uploads_of("")) == 0)


def test_each_key_has_a_bound_of_its_own(start_gateway: StartGateway, tmp_path: Path, server: redis.Redis) -> None:
    file = str(write_keys(tmp_path / "keys", "alice", "bob"))
    gateway = start_gateway("--api-keys", file, "--max-files-bytes", "100000")
    hers, his = (gateway.client(KEYS[name]) for name in ("alice", "bob"))
    upload(hers, 90_000)

    with pytest.raises(openai.APIStatusError, match="the files of the key alice"):
        upload(hers, 20_000)
    upload(his, 90_000)


def test_uploads_under_way_count_until_they_break_off(bounded: Gateway, server: redis.Redis) -> None:
    client = bounded.client()
    with open_upload(bounded, 8_000):  # of 80 000
        wait_until(lambda: server.hlen(keys.uploads_of("")) == 1)
        with pytest.raises(openai.APIStatusError, match="80000 in uploads"):
            upload(client, 30_000)
    wait_until(lambda: server.hlen(keys.uploads_of("")) == 0)

    upload(client, 90_000)


def test_a_file_of_undeclared_size_is_taken_where_nothing_else_is(bounded: Gateway, server: redis.Redis) -> None:
    with bounded.http() as http:
        answers = [http.post("/v1/files", content=iter([form(b"abc")]), headers=HEADERS) for _ in range(2)]
        long = [PURPOSE, part("file", b"", '; filename="x"')[:-2], b"x" * 200_000]
        server.flushdb()
        too_long = http.post("/v1/files", content=iter(long), headers=HEADERS)

    assert [answer.status_code for answer in answers] == [200, 413]
    assert too_long.status_code == 413
    wait_until(lambda: stored(server) == [])


def test_an_upload_whose_gateway_was_killed_counts_no_more_when_its_time_is_over(server: redis.Redis) -> None:
    files = FileStore(server)
    assert files.reserve("file-a", "bob", 60, 100, 1000) is None
    assert files.reserve("file-a", "bob", 60, 100, 1000) is None  # the same again
    assert files.reserve("file-b", "bob", 60, 100, 1000) == NoRoom(0, 0, 60)
    assert 0 < server.ttl(keys.uploads_of("bob")) <= 1000

    server.hset(keys.uploads_of("bob"), "file-a", "60 1000")

    assert files.reserve("file-b", "bob", 60, 100, 1000) is None
    assert server.hkeys(keys.uploads_of("bob")) == [b"file-b"]
