"""Text from files and pipes is read the same way everywhere: UTF-8, with or without a byte-order mark."""

from __future__ import annotations

import codecs
import json
from pathlib import Path

import pytest
import redis
from support.batch_files import own, read_file, write_lines
from support.client_program import client, fake_redis

from minilab_gen.batch.line import Line
from minilab_gen.errors import RequestError
from minilab_gen.protocol.jobs import fetch, request_of
from minilab_gen.utf8_text import decoded


@pytest.fixture
def connection(monkeypatch: pytest.MonkeyPatch) -> redis.Redis:
    return fake_redis(monkeypatch)


def prompt_of(connection: redis.Redis, job_id: str) -> tuple[int, ...]:
    return request_of(fetch(connection, job_id)).prompt


def test_a_byte_order_mark_is_no_part_of_a_prompt(connection: redis.Redis) -> None:
    client("submit", "Phileas Fogg", "--job-id", "typed")
    client("submit", "-", "--job-id", "piped", stdin=codecs.BOM_UTF8 + b"Phileas Fogg\r\n")

    assert prompt_of(connection, "piped") == prompt_of(connection, "typed")


@pytest.mark.parametrize("encoding", ["UTF-16", "UTF-32"])
def test_another_encoding_is_named_with_the_way_out_of_it(connection: redis.Redis, encoding: str) -> None:
    result = client("submit", "-", stdin="Phileas Fogg".encode(encoding))

    assert result.exit_code == 2
    assert f"standard input must be UTF-8, got the byte-order mark of {encoding}" in result.stderr
    assert f"iconv -f {encoding} -t UTF-8" in result.stderr


@pytest.mark.parametrize(
    ("mark", "encoding"),
    [
        (codecs.BOM_UTF16_LE, "UTF-16"),
        (codecs.BOM_UTF16_BE, "UTF-16"),
        (codecs.BOM_UTF32_LE, "UTF-32"),
        (codecs.BOM_UTF32_BE, "UTF-32"),
    ],
)
def test_each_mark_is_that_of_its_encoding(mark: bytes, encoding: str) -> None:
    with pytest.raises(RequestError, match=f"a file must be UTF-8, got the byte-order mark of {encoding};"):
        decoded(mark + b"x", "a file")


@pytest.mark.parametrize("mark", [b"", codecs.BOM_UTF8])
def test_a_byte_that_is_no_utf_8_is_told_with_its_position_in_the_file(mark: bytes) -> None:
    place = len(mark) + 4
    with pytest.raises(RequestError, match=f"a file must be UTF-8, got another byte at position {place}$"):
        decoded(mark + b"Phil\xe9as", "a file")


def test_the_marks_of_files_that_were_joined_are_no_part_of_their_lines(tmp_path: Path) -> None:
    files = [codecs.BOM_UTF8 + json.dumps(own(name)).encode() for name in "abc"]
    file = write_lines(tmp_path / "in", *files)

    lines = read_file(file)

    assert [line.custom_id for line in lines if isinstance(line, Line)] == ["a", "b", "c"]


def test_a_batch_file_in_another_encoding_is_refused_as_a_whole(connection: redis.Redis, tmp_path: Path) -> None:
    file = tmp_path / "in.jsonl"
    file.write_text('{"custom_id": "a", "ids": [5]}\n' * 3, encoding="utf-16")

    result = client("batch", str(file), "--output", str(tmp_path / "out"))

    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1
    assert "IN must be UTF-8, got the byte-order mark of UTF-16" in result.stderr
