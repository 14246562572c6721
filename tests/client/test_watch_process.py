"""``minilab-client watch`` as a process: on a terminal and without one, with a Redis that goes away and comes back."""

from __future__ import annotations

import re
import signal
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import redis
from chaos.server import BINARY, Server
from support.client_process import Program
from support.client_program import announce_worker, start, submit, write
from support.waiting import wait_until
from support.watch_terminal import GIVEN_BACK, TAKEN, Terminal

from minilab_gen.protocol.jobs import fetch
from minilab_gen.protocol.worker_stats import WorkerStats, publish_stats

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(BINARY is None, reason="needs redis-server or valkey-server on the PATH"),
]


@pytest.fixture
def service() -> Iterator[Server]:
    """A Redis of the test's own, in a folder whose name is short enough for a socket."""
    with tempfile.TemporaryDirectory(prefix="ml-") as folder, Server(Path(folder)) as server:
        yield server


@pytest.fixture
def connection(service: Server) -> Iterator[redis.Redis]:
    """A connection to it, with a worker in the records and the job x, which it runs."""
    with closing(service.connect()) as connection:
        announce_worker(connection)
        stats = WorkerStats(
            model="base",
            slots=8,
            used=1,
            tokens=2,
            tokens_per_second=7.0,
            exactness="exact",
            fingerprint="f",
            started_at=1.0,
            reported_at=2.0,
        )
        publish_stats(connection, "minilab-test", stats)
        submit(connection, "x")
        start(connection, "x")
        job = fetch(connection, "x")
        connection.hset(job.key, "worker_name", "minilab-test")
        connection.zadd(job.started_job_registry.key, {"x:0123456789abcdef": 1.0})
        write(connection, "x", "Phileas", " Fogg")
        yield connection


def test_a_terminal_shows_the_service_and_gets_its_own_screen_back(connection: redis.Redis, service: Server) -> None:
    with Terminal(service.url) as terminal:
        terminal.wait_for("Phileas Fogg", "minilab-test", "1/8")
        assert terminal.read().startswith(TAKEN)

        terminal.press(b"q")

        assert terminal.ended() == 0


def test_text_grows_while_it_is_watched(connection: redis.Redis, service: Server) -> None:
    with Terminal(service.url) as terminal:
        terminal.wait_for("Phileas Fogg")

        write(connection, "x", " était\x1b[2J là", after=2)

        terminal.wait_for("Phileas Fogg était�[2J là")
        assert b"\x1b[2J" not in terminal.read()


@pytest.mark.parametrize("how", ["key", "signal"])
def test_ctrl_c_exits_as_other_commands_do(connection: redis.Redis, service: Server, how: str) -> None:
    with Terminal(service.url) as terminal:
        terminal.wait_for("Phileas Fogg")

        if how == "key":
            terminal.press(b"\x03")
        else:
            terminal.process.send_signal(signal.SIGINT)

        assert terminal.ended() == 130


def test_sigterm_gives_the_terminal_back(connection: redis.Redis, service: Server) -> None:
    with Terminal(service.url) as terminal:
        terminal.wait_for("Phileas Fogg")

        terminal.process.terminate()

        assert terminal.ended() == 143


def test_other_keys_do_nothing(connection: redis.Redis, service: Server) -> None:
    with Terminal(service.url) as terminal:
        terminal.wait_for("Phileas Fogg")
        terminal.press(b"x\r\n\x1b[A\x00\xff")

        write(connection, "x", " goes on", after=2)

        terminal.wait_for("Fogg goes on")
        terminal.press(b"Q")
        assert terminal.ended() == 0


def test_ctrl_z_gives_the_terminal_back_until_the_program_goes_on(connection: redis.Redis, service: Server) -> None:
    with Terminal(service.url) as terminal:
        terminal.wait_for("Phileas Fogg")

        terminal.press(b"\x1a")  # which stops nothing here, where no shell could wake it again

        terminal.wait_for_bytes(lambda received: received.count(TAKEN) == 2)
        assert GIVEN_BACK + TAKEN in terminal.read()
        terminal.wait_for("Phileas Fogg")
        terminal.press(b"q")
        assert terminal.ended() == 0


def test_the_view_follows_the_size_of_the_terminal(connection: redis.Redis, service: Server) -> None:
    with Terminal(service.url, "--interval", "3600", COLUMNS="100", LINES="30") as terminal:
        wait_until(lambda: terminal.frames_begun == 1)

        for frames, (columns, lines) in enumerate(((40, 12), (200, 50), (7, 3), (100, 30))):
            terminal.resize(columns, lines)
            wait_until(lambda: terminal.frames_begun > 2 * frames + 1)  # noqa: B023 - waited for here
            terminal.press(b"x")  # draws again, so that the frame before is whole
            wait_until(lambda: terminal.frames_begun > 2 * frames + 2)  # noqa: B023

            shown = terminal.frame()
            assert len(shown) <= lines
            assert max(map(len, shown)) == columns
        terminal.press(b"q")
        assert terminal.ended() == 0


def test_an_outage_is_shown_and_the_view_goes_on_afterwards(connection: redis.Redis, service: Server) -> None:
    with Terminal(service.url) as terminal:
        terminal.wait_for("Phileas Fogg")

        service.kill()
        terminal.wait_for("Redis is away since", "asking again", "Phileas Fogg")

        service.start()
        terminal.wait_for("minilab-client watch:", "Phileas Fogg")
        write(connection, "x", " is back", after=2)
        terminal.wait_for("Fogg is back")
        terminal.press(b"q")
        assert terminal.ended() == 0


def test_a_user_without_rights_is_one_line_on_a_terminal_that_is_as_before(
    connection: redis.Redis, service: Server
) -> None:
    with Terminal(service.url) as terminal:
        terminal.wait_for("Phileas Fogg")

        connection.execute_command("ACL", "SETUSER", "default", "-zcount")

        terminal.wait_for_bytes(lambda received: b"Redis refused" in received)
        wait_until(lambda: terminal.process.poll() is not None)
        assert terminal.process.returncode == 4
        assert terminal.read().split(GIVEN_BACK)[1].count(b"\n") == 1


def test_no_color_leaves_out_the_colours(connection: redis.Redis, service: Server) -> None:
    with Terminal(service.url, NO_COLOR="1") as terminal:
        terminal.wait_for("Phileas Fogg")

        assert re.findall(rb"\x1b\[(?:\d+;)*[349]\d(?:;\d+)*m", terminal.read()) == []


def test_once_is_one_frame_on_the_terminals_own_screen(connection: redis.Redis, service: Server) -> None:
    with Terminal(service.url, "--once") as terminal:
        wait_until(lambda: terminal.process.poll() is not None)
        shown = terminal.read().decode()

    assert "Phileas Fogg" in shown
    assert "\x1b[?" not in shown
    assert terminal.process.returncode == 0


def test_a_dumb_terminal_gets_lines(connection: redis.Redis, service: Server) -> None:
    with Terminal(service.url, TERM="dumb") as terminal:
        terminal.wait_for_bytes(lambda received: received.count(b"running 1") > 1)

        assert b"\x1b" not in terminal.read()


LINE = re.compile(r"\d\d:\d\d:\d\d  queued 0  running 1  tokens/s \d+  workers 1\n")


def test_without_a_terminal_each_look_is_a_line(connection: redis.Redis, service: Server) -> None:
    with Program(service.url, "watch", "--interval", "0.1") as program:
        lines = [program.output.readline() for _ in range(3)]

        program.interrupt()

        assert program.ended() == (130, "")
    assert [line for line in lines if not LINE.fullmatch(line)] == []
    assert "tokens/s 7 " in lines[0]


def test_once_without_a_terminal_is_one_line(connection: redis.Redis, service: Server) -> None:
    with Program(service.url, "watch", "--once", FORCE_COLOR="") as program:
        assert LINE.fullmatch(program.output.read())
        assert program.ended() == (0, "")


def test_a_reader_that_exits_ends_the_watch_before_its_next_look(connection: redis.Redis, service: Server) -> None:
    with Program(service.url, "watch", "--interval", "3600") as program:
        program.output.readline()

        program.output.close()

        assert program.ended() == (141, "")


def test_lines_go_on_after_an_outage_which_is_told_once(connection: redis.Redis, service: Server) -> None:
    with Program(service.url, "watch", "--interval", "0.1") as program:
        assert LINE.fullmatch(program.output.readline())
        assert program.process.stderr is not None

        service.kill()
        assert program.process.stderr.readline().startswith("Redis is away, asking again: ")

        service.start()
        assert program.process.stderr.readline() == "Redis is back\n"
        assert LINE.fullmatch(program.output.readline())
        program.interrupt()
        assert program.ended() == (130, "")


def test_once_without_a_redis_is_one_line_and_exit_code_4() -> None:
    with Program("unix:///nowhere/redis.sock", "watch", "--once") as program:
        code, said = program.ended()

    assert code == 4
    assert said.count("\n") == 1
