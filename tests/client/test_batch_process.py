"""``minilab-client batch`` as a process of its own: killed, interrupted, run twice at once, and without its Redis."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import redis
from chaos.checkpoint import references
from chaos.fleet import FAST_KERNELS
from chaos.server import BINARY
from minilab_client.batch import waiting
from minilab_client.batch.asked_model import AskedModel
from redis.backoff import NoBackoff
from redis.retry import Retry
from support.batch_files import answers_to, custom_ids, good_lines, openai, own, records, wait_for_lines, write_lines
from support.client_process import Program, environment
from support.own_process import own_process
from support.own_service import LIMIT, OwnService
from support.waiting import wait_until

from minilab_gen.errors import RedisUnavailableError
from minilab_gen.request import GenerationRequest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(BINARY is None, reason="needs redis-server or valkey-server on the PATH"),
]

JOBS = 60 + 6 * 2 + 6 * 1
"""Of the file's lines: one for each answer."""

TEXTS = ("Phileas Fogg", "Le Nautilus", "à bord", "Passepartout")


def running(service: OwnService, file: Path, out: Path, *options: str) -> Program:
    """The program, for a ``with`` block, gone at its end."""
    return Program(service.server.url, "batch", str(file), "--output", str(out), *options)


def kill(program: Program) -> None:
    """SIGKILL: nothing is tidied up."""
    assert program.process.poll() is None, "it must still run, or nothing is tested"
    program.process.kill()
    program.process.wait()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """60 good lines of both forms, greedy and sampled, with and without a seed, and 5 bad ones among them.

    Of either form, 6 ask for several answers.
    """
    good = [
        own(f"own-{n}", TEXTS[n % 4], temperature=n % 3 / 2, max_new_tokens=10 + n % 20, n=3 if n % 10 == 3 else 1)
        if n % 2
        else openai(f"openai-{n}", TEXTS[n % 4], max_tokens=10 + n % 20, seed=n, n=2 if n % 10 == 4 else 1)
        for n in range(60)
    ]
    bad: list[dict[str, object] | str | bytes] = ["{", b"\xff", own("own-1"), own("x", top_k=0), openai("y", n=65)]
    for place, line in enumerate(bad):
        good.insert(place * 11 + 5, line)  # type: ignore[arg-type]
    return write_lines(tmp_path / "in.jsonl", *good)


class Judge:
    """Holds what was written against what ``generate`` gives, which is computed once for all tests."""

    def __init__(self, checkpoint: Path) -> None:
        self._checkpoint = checkpoint
        self._answers: dict[GenerationRequest, list[int]] = {}

    def assert_all_is_answered(self, service: OwnService, file: Path, out: Path) -> None:
        """Each good line once, with the right tokens, and each bad one once among the errors."""
        lines = good_lines(file, AskedModel.read(service.connection, "base"))
        assert len(lines) == 60
        assert Counter(custom_ids(out)) == Counter(line.custom_id for line in lines)
        given = answers_to(lines, out)
        self._answers |= references(self._checkpoint, {request for request, _ in given} - self._answers.keys())
        assert all(ids == self._answers[request] for request, ids in given)
        assert [record["line"] for record in records(out.with_name("out.errors.jsonl"))] == [6, 17, 28, 39, 50]


@pytest.fixture(scope="module")
def judge(slow_checkpoint: Path) -> Judge:
    return Judge(slow_checkpoint)


def test_a_client_that_is_killed_twice_leaves_each_answer_once_and_no_job_runs_twice(
    own_service: OwnService, file: Path, out: Path, judge: Judge
) -> None:
    own_service.fleet.start_and_wait()
    for so_far in (5, 25):
        with running(own_service, file, out, "--in-flight", "16") as program:
            wait_for_lines(out, so_far, LIMIT)
            kill(program)

    with running(own_service, file, out) as program:
        code, said = program.ended()

    assert code == 1
    assert "60 answered (" in said
    assert " earlier), 5 not: see out.errors.jsonl; " in said
    judge.assert_all_is_answered(own_service, file, out)
    own_service.fleet.stop_all()
    assert own_service.successes() == JOBS


def test_a_client_that_is_killed_before_the_first_answer_finds_its_jobs_again(
    own_service: OwnService, file: Path, out: Path, judge: Judge
) -> None:
    with running(own_service, file, out, "--priority", "normal") as program:
        wait_until(lambda: own_service.queue.count == JOBS, LIMIT)
        kill(program)
    assert out.read_bytes() == b""
    own_service.fleet.start_and_wait(kernels=FAST_KERNELS)

    with running(own_service, file, out, "--priority", "normal") as program:
        assert program.ended()[0] == 1

    judge.assert_all_is_answered(own_service, file, out)
    own_service.fleet.stop_all()
    assert own_service.successes() == JOBS


def test_a_worker_that_is_killed_costs_nothing(own_service: OwnService, file: Path, out: Path, judge: Judge) -> None:
    first = own_service.fleet.start_and_wait()
    with running(own_service, file, out) as program:
        wait_for_lines(out, 5, LIMIT)
        first.kill()
        own_service.fleet.start(kernels=FAST_KERNELS)

        assert program.ended()[0] == 1

    judge.assert_all_is_answered(own_service, file, out)


def test_a_redis_that_is_restarted_is_waited_for(own_service: OwnService, file: Path, out: Path, judge: Judge) -> None:
    own_service.fleet.start_and_wait()
    with running(own_service, file, out, "--in-flight", "16") as program:
        wait_for_lines(out, 5, LIMIT)
        own_service.server.kill()
        assert program.process.stderr is not None
        said = ""
        while "waiting up to" not in said:
            said = program.process.stderr.readline()
        own_service.server.start()

        code, rest = program.ended()

    assert code == 1
    assert said.startswith("Redis was lost: ")
    assert "Redis is back after " in rest
    judge.assert_all_is_answered(own_service, file, out)


def test_ctrl_c_says_how_to_go_on_and_leaves_the_jobs_to_the_worker(
    own_service: OwnService, file: Path, out: Path, judge: Judge
) -> None:
    own_service.fleet.start_and_wait()
    with running(own_service, file, out) as program:
        wait_for_lines(out, 5, LIMIT)

        program.interrupt()

        code, said = program.ended()
    assert code == 130
    assert said.splitlines()[-2].startswith("interrupted: ")
    assert said.splitlines()[-1] == "the same command fetches what they answer and does the rest"
    wait_until(lambda: own_service.successes() == JOBS, LIMIT)

    with running(own_service, file, out) as program:
        assert program.ended()[0] == 1

    judge.assert_all_is_answered(own_service, file, out)
    own_service.fleet.stop_all()
    assert own_service.successes() == JOBS


def test_a_second_client_with_the_same_output_is_told_to_wait(own_service: OwnService, file: Path, out: Path) -> None:
    with running(own_service, file, out):
        wait_until(out.exists, LIMIT)
        wait_until(lambda: own_service.connection.keys("rq:job:*"), LIMIT)
        with running(own_service, file, out) as second:
            code, said = second.ended()

    assert code == 2
    assert said == f"error: another minilab-client writes {out}; wait until it has ended, or choose another --output\n"


def test_two_clients_with_outputs_of_their_own_share_the_jobs(
    own_service: OwnService, file: Path, out: Path, judge: Judge
) -> None:
    own_service.fleet.start_and_wait(kernels=FAST_KERNELS)
    other = out.with_name("other.jsonl")

    with running(own_service, file, out) as one, running(own_service, file, other) as two:
        assert (one.ended()[0], two.ended()[0]) == (1, 1)

    assert Counter(custom_ids(out)) == Counter(custom_ids(other))
    judge.assert_all_is_answered(own_service, file, out)
    own_service.fleet.stop_all()
    assert own_service.successes() == JOBS


def test_a_terminal_shows_a_bar_that_ends_at_100_percent(own_service: OwnService, file: Path, out: Path) -> None:
    own_service.fleet.start_and_wait()  # a bar that lasts for less than a moment shows no rate
    screen, terminal = pty.openpty()
    command = [sys.executable, "-m", "minilab_client", "batch", str(file), "--output", str(out)]
    variables = {**environment(own_service.server.url), "TERM": "xterm"}
    with own_process(command, stdin=subprocess.DEVNULL, stderr=terminal, env=variables) as program:
        os.close(terminal)
        shown = b""
        while b"60 answered" not in shown:
            shown += os.read(screen, 1000)
        program.wait(LIMIT)

    assert program.returncode == 1
    os.close(screen)
    assert b"65/65" in shown
    assert b"100%" in shown
    assert b"5 failed" in shown
    assert b"tokens/s" in shown


def test_waiting_for_a_lost_redis_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(waiting, "LONGEST_OUTAGE", 0.2)
    with (
        redis.Redis(unix_socket_path=str(tmp_path / "none.sock"), retry=Retry(NoBackoff(), 0)) as connection,
        pytest.raises(RedisUnavailableError, match="once it runs, the same command goes on"),
    ):
        waiting.through_outages(connection.ping)

    assert capsys.readouterr().err.count("waiting up to") == 1
