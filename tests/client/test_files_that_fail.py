"""Files and pipes that cannot be read or written: a line that names them, and nothing half done."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path

import pytest
import redis
from minilab_client.batch.jsonl import write_line
from support.batch_files import own, write_lines
from support.client_program import client, fake_redis, queued


@pytest.fixture
def connection(monkeypatch: pytest.MonkeyPatch) -> redis.Redis:
    return fake_redis(monkeypatch)


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="needs a file of Linux that cannot be read")
def test_a_prompt_file_that_cannot_be_read_is_named_and_nothing_is_submitted(connection: redis.Redis) -> None:
    result = client("submit", "--file", "/proc/self/mem")

    assert result.exit_code == 2
    assert f"/proc/self/mem cannot be read: {os.strerror(errno.EIO)}" in result.stderr
    assert queued(connection) == []


@pytest.mark.parametrize(("arguments", "name"), [(["submit", "-"], "TEXT"), (["batch", "-", "--output"], "IN")])
def test_a_standard_input_that_is_closed_is_refused(
    connection: redis.Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], name: str
) -> None:
    monkeypatch.setattr(sys, "__stdin__", None)  # what Python makes of `<&-`
    output = tmp_path / "answers.jsonl"

    result = client(*arguments, *([str(output)] if name == "IN" else []))

    assert result.exit_code == 2
    assert f"standard input must be open to read {name} from it" in result.stderr
    assert queued(connection) == []


def test_errors_must_not_be_written_into_something_that_is_no_file(connection: redis.Redis, tmp_path: Path) -> None:
    lines = write_lines(tmp_path / "in.jsonl", own("a"))

    result = client("batch", str(lines), "--output", str(tmp_path / "out.jsonl"), "--errors", "/dev/null")

    assert result.exit_code != 0
    assert "--errors must be a file, got /dev/null" in result.stderr
    assert queued(connection) == []


def test_of_a_line_that_a_full_disk_cuts_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_lines(tmp_path / "out.jsonl", own("a"))
    before, real = path.read_bytes(), os.write

    def full_after_a_few_bytes(file: int, content: bytes) -> int:
        if len(content) < 20:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(file, content[:20])

    file = os.open(path, os.O_WRONLY | os.O_APPEND)
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full_after_a_few_bytes)
        with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)) as failed:
            write_line(file, path, own("b"))
    assert (failed.value.errno, failed.value.filename) == (errno.ENOSPC, str(path))
    assert path.read_bytes() == before

    write_line(file, path, own("c"))
    os.close(file)
    assert path.read_bytes().count(b"\n") == 2


def test_of_a_line_that_ctrl_c_cuts_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_lines(tmp_path / "out.jsonl", own("a"))
    before, real = path.read_bytes(), os.write

    def interrupted(file: int, content: bytes) -> int:
        real(file, content[:5])
        raise KeyboardInterrupt

    file = os.open(path, os.O_WRONLY | os.O_APPEND)
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", interrupted)
        with pytest.raises(KeyboardInterrupt):
            write_line(file, path, own("b"))
    os.close(file)

    assert path.read_bytes() == before
