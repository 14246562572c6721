"""``minilab-client`` as a process of its own, on a real server: broken pipes, Ctrl-C, several readers, a lost Redis."""

from __future__ import annotations

import json
import os
import pty
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from support.client_process import Program, environment
from support.client_program import announce_worker, end, run, start, submit, write
from support.own_process import own_process
from support.waiting import LIMIT, wait_until

SERVER = shutil.which("redis-server") or shutil.which("valkey-server")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(SERVER is None, reason="needs redis-server or valkey-server on the PATH"),
]


@pytest.fixture
def server() -> Iterator[subprocess.Popen[bytes]]:
    """A server on a unix socket of its own, in a folder whose name is short enough for one."""
    with tempfile.TemporaryDirectory(prefix="ml-") as folder:
        options = ["--port", "0", "--unixsocket", f"{folder}/s", "--dir", folder, "--save", "", "--logfile", "log"]
        with own_process([SERVER or "", *options], stdout=subprocess.DEVNULL, cwd=folder) as process:
            wait_until(Path(folder, "s").exists)
            yield process


@pytest.fixture
def url(server: subprocess.Popen[bytes]) -> str:
    """The server's address."""
    assert isinstance(server.args, list)
    return f"unix://{server.args[4]}"


@pytest.fixture
def connection(url: str) -> Iterator[redis.Redis]:
    """A connection of the test's own, and a worker in the records, so that no command complains that there is none."""
    with redis.Redis.from_url(url, protocol=2, legacy_responses=True) as connection:
        wait_until(lambda: answers(connection))
        announce_worker(connection)
        yield connection


def answers(connection: redis.Redis) -> bool:
    """Whether the server takes commands by now."""
    try:
        return bool(connection.ping())
    except redis.ConnectionError:
        return False


FLOOD = [f"{n:40}\n" for n in range(1, 4001)]
"""Texts of tokens, 160 kB: more than a pipe and the buffers on the way to it hold."""


def running_job(connection: redis.Redis, *texts: str) -> None:
    """The job x, which a worker runs, with these tokens so far."""
    submit(connection, "x")
    start(connection, "x")
    write(connection, "x", *texts)


def test_a_reader_that_exits_ends_a_tail_quietly_at_the_next_token(connection: redis.Redis, url: str) -> None:
    running_job(connection, "a\n")
    with Program(url, "tail", "x") as program:
        assert program.output.readline() == "a\n"
        program.output.close()

        write(connection, "x", "b\n", "c\n", after=1)

        assert program.ended() == (141, "")


def test_a_reader_that_exits_ends_a_tail_that_has_nothing_to_write(connection: redis.Redis, url: str) -> None:
    running_job(connection, "a\n")
    with Program(url, "tail", "x") as program:
        assert program.output.readline() == "a\n"
        program.output.close()

        assert program.ended() == (141, "")


@pytest.mark.parametrize(
    "arguments",
    [
        *("tail x", "tail x --json", "result x", "result x --json", "jobs", "doctor", "workers", "completion bash"),
        "--help",
    ],
)
def test_head_takes_what_it_wants_without_a_complaint(connection: redis.Redis, url: str, arguments: str) -> None:
    run(connection, "x", FLOOD)

    ended = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m minilab_client {arguments} | head -c 1; exit ${{PIPESTATUS[0]}}"],
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
        env=environment(url),
    )

    assert (len(ended.stdout), ended.stderr) == (1, "")
    assert ended.returncode in (0, 141)


def test_ctrl_c_tells_how_to_read_on_and_the_rest_is_no_repeat(connection: redis.Redis, url: str) -> None:
    running_job(connection, "a", "b", "c")
    with Program(url, "tail", "x", "--json") as program:
        first = [json.loads(program.output.readline()) for _ in range(3)]

        program.interrupt()

        assert program.ended() == (130, "the job goes on; read on with: minilab-client tail x --from 3\n")
    write(connection, "x", "d", after=3)
    end(connection, "x", 4)
    with Program(url, "tail", "x", "--from", "3", "--json") as program:
        second = [json.loads(line) for line in program.output]
    assert [event["n"] for event in first + second[:-1]] == [1, 2, 3, 4]


def test_ctrl_c_adds_nothing_to_a_file(connection: redis.Redis, url: str) -> None:
    running_job(connection, "a\n", "b")
    with Program(url, "tail", "x") as program:
        assert program.output.read(3) == "a\nb"

        program.interrupt()

        assert program.output.read() == ""


@pytest.mark.parametrize("wanted", [1, 10, 100, 500])
def test_ctrl_c_in_the_middle_of_a_flood_counts_exactly_what_was_shown(
    connection: redis.Redis, url: str, wanted: int
) -> None:
    running_job(connection, *FLOOD)
    with Program(url, "tail", "x") as program:
        shown = [program.output.readline() for _ in range(wanted)]

        program.interrupt()

        shown += program.output.readlines()
        assert program.ended() == (130, f"the job goes on; read on with: minilab-client tail x --from {len(shown)}\n")
    assert shown == FLOOD[: len(shown)]
    assert len(shown) < len(FLOOD), "it must still be writing"


def test_ctrl_c_leaves_a_terminal_at_the_start_of_a_line(connection: redis.Redis, url: str) -> None:
    running_job(connection, "a", "b")
    screen, terminal = pty.openpty()
    with Program(url, "tail", "x", stdout=terminal) as program:
        os.close(terminal)
        shown = b""
        while shown != b"ab":
            shown += os.read(screen, 100)

        program.interrupt()

        assert os.read(screen, 100) == b"\r\n"
        assert program.ended()[0] == 130
    os.close(screen)


def test_ctrl_c_leaves_no_blocked_reader_behind(connection: redis.Redis, url: str) -> None:
    running_job(connection, "a\n")
    with Program(url, "tail", "x") as program:
        program.output.readline()
        wait_until(lambda: connection.info("clients")["blocked_clients"])

        program.interrupt()

        assert program.ended()[0] == 130
    wait_until(lambda: not connection.info("clients")["blocked_clients"])


def test_several_readers_and_one_who_comes_late_print_the_same(connection: redis.Redis, url: str) -> None:
    running_job(connection, "a\n", "é")
    with Program(url, "tail", "x") as one, Program(url, "tail", "x") as other:
        assert one.output.readline() == other.output.readline() == "a\n"

        write(connection, "x", "c", "d", after=2)
        end(connection, "x", 4)

        assert one.output.read() == other.output.read() == "écd\n"
    with Program(url, "tail", "x") as late:
        assert late.output.read() == "a\nécd\n"


def test_each_token_is_written_as_it_comes(connection: redis.Redis, url: str) -> None:
    running_job(connection)
    with Program(url, "tail", "x") as program:
        for place, letter in enumerate("abc"):
            write(connection, "x", letter, after=place)
            assert program.output.read(1) == letter

        end(connection, "x", 3)

        assert program.output.read() == "\n"


def test_a_redis_that_goes_away_is_one_line_with_how_to_read_on(
    connection: redis.Redis, server: subprocess.Popen[bytes], url: str
) -> None:
    running_job(connection, "a\n", "b\n")
    with Program(url, "tail", "x") as program:
        assert [program.output.readline() for _ in range(2)] == ["a\n", "b\n"]

        server.kill()

        code, said = program.ended()
    assert code == 4
    assert said.startswith("error: Redis was lost: ")
    assert said.endswith("minilab-client tail x --from 2\n")
    assert said.count("\n") == 1


@pytest.mark.parametrize("url", ["redis://user:secret@127.0.0.1:1/0", "unix:///nowhere/redis.sock?password=secret"])
def test_without_a_redis_the_program_says_so_in_one_line_without_the_password(url: str) -> None:
    with Program(url, "status", "x") as program:
        code, said = program.ended()

    assert code == 4
    assert said.startswith("error: ")
    assert said.count("\n") == 1
    assert "secret" not in said


def test_an_output_that_takes_nothing_is_one_line(connection: redis.Redis, url: str) -> None:
    run(connection, "x", ["a"])

    with Path("/dev/full").open("w") as full, Program(url, "tail", "x", stdout=full.fileno()) as program:
        assert program.ended() == (1, "error: No space left on device\n")


def test_a_locale_without_accents_gets_question_marks_and_no_traceback(connection: redis.Redis, url: str) -> None:
    run(connection, "x", ["né"])

    with Program(url, "tail", "x", PYTHONIOENCODING="ascii") as program:
        assert program.output.read() == "n?\n"
        assert program.ended() == (0, "")


@pytest.mark.parametrize(
    ("answer", "code", "printed", "waiting"),
    [(b"y\n", 0, "2 cancelled\n", 0), (b"n\n", 1, "", 2), (b"\n", 1, "", 2), (b"\x04", 130, "", 2)],
)
def test_all_queued_jobs_are_cancelled_only_if_a_person_says_so(
    connection: redis.Redis, url: str, answer: bytes, code: int, printed: str, waiting: int
) -> None:
    submit(connection, "x")
    submit(connection, "y")
    keyboard, terminal = pty.openpty()
    os.write(keyboard, answer)
    with Program(url, "cancel", "--all-queued", stdin=terminal) as program:
        os.close(terminal)

        assert program.output.read() == printed
        ended, said = program.ended()
    os.close(keyboard)
    assert ended == code
    assert "Cancel all jobs that wait for base, 2 now? [y/N]: " in said
    assert connection.llen("rq:queue:minilab.base") == waiting


@pytest.mark.parametrize(
    ("term", "no_color", "coloured"),
    [("xterm", "", True), ("xterm", "1", False), ("dumb", "", False)],
)
def test_colours_are_for_terminals_whose_user_wants_them(
    connection: redis.Redis, url: str, term: str, no_color: str, coloured: bool
) -> None:
    screen, terminal = pty.openpty()
    with Program(url, "doctor", stdout=terminal, TERM=term, NO_COLOR=no_color) as program:
        os.close(terminal)
        shown = os.read(screen, 10)

        assert shown.startswith(b"\x1b[32mok" if coloured else b"ok")
        while shown:  # or the program could not end
            try:
                shown = os.read(screen, 1000)
            except OSError:  # how Linux tells that the other side is closed
                break
        assert program.ended() == (0, "")
    os.close(screen)


def test_a_file_gets_no_colours(connection: redis.Redis, url: str) -> None:
    with Program(url, "doctor", TERM="xterm") as program:
        assert "\x1b" not in program.output.read()
