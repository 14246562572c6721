"""``minilab-gateway`` as it is typed: what it refuses, how it ends, and the worker that it brings along."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import redis
from support.waiting import wait_until

from gateway.conftest import StartGateway
from minilab_gen.protocol import keys
from minilab_gen.protocol.jobs import fetch, state_of
from minilab_gen.protocol.streams import end_of, stream_length
from minilab_gen.protocol.submission import Submission, enqueue
from minilab_gen.protocol.workers import all_workers
from minilab_gen.request import GenerationRequest


def run(*arguments: str, **variables: str) -> tuple[int, str, str]:
    """The exit code of a gateway that does not serve, and what it said."""
    ended = subprocess.run(
        [sys.executable, "-m", "minilab_gateway", *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return ended.returncode, ended.stdout, ended.stderr


def test_a_gateway_that_others_can_reach_must_ask_for_keys() -> None:
    code, _, said = run("--host", "0.0.0.0")  # noqa: S104 - it is refused

    assert code == 2
    assert said.startswith("error: --host 0.0.0.0 can be reached from other machines: give --api-keys FILE")


def test_a_key_is_made_whose_line_lets_it_in(tmp_path: Path) -> None:
    code, printed, _ = run("key", "alice")

    key, line = (text.split(": ", 1)[1] for text in printed.splitlines())
    (tmp_path / "keys").write_text(line)
    from minilab_gateway.api_keys import ApiKeys

    assert code == 0
    assert ApiKeys(tmp_path / "keys").find(key.encode()) is not None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--api-keys", "/nowhere"), "--api-keys must be a file that can be read, got /nowhere"),
        (("--model", "x"), "--model goes with --with-worker"),
        (("--port", "99999"), "Invalid value for '--port'"),
        (("--redis-url", "http://x"), "a Redis URL must begin with"),
    ],
)
def test_bad_usage_is_refused_in_one_line(arguments: tuple[str, ...], message: str) -> None:
    code, _, said = run(*arguments)

    assert code == 2
    assert message in said
    assert len(said.splitlines()) == 1


def test_a_port_in_use_is_an_error(start_gateway: StartGateway, server_url: str) -> None:
    port = start_gateway().url.rpartition(":")[2]

    code, _, said = run("--port", port, MINILAB_REDIS_URL=server_url)

    assert code == 1
    assert "address already in use" in said.lower()


def test_one_command_serves_a_folder_and_ends_its_worker(
    start_gateway: StartGateway, server: redis.Redis, small_checkpoint: Path
) -> None:
    gateway = start_gateway("--with-worker", "--model", str(small_checkpoint), "--queue-wait", "60")
    name = keys.without_owner(small_checkpoint.name)
    wait_until(lambda: any(model.id == name for model in gateway.client().models.list()), 60)

    assert gateway.complete(model=name, prompt=[5], max_tokens=2).choices
    gateway.process.send_signal(signal.SIGTERM)

    assert gateway.process.wait(60) == 0
    assert list(server.scan_iter(keys.worker_lease("*"))) == []


def test_a_gateway_that_is_killed_takes_its_worker_along_and_jobs_are_handed_back(
    start_gateway: StartGateway, server: redis.Redis, small_checkpoint: Path
) -> None:
    folder = str(small_checkpoint)
    gateway = start_gateway("--with-worker", "--model", folder, MINILAB_GRACE="0", MINILAB_MAX_BATCH="1")
    name = keys.without_owner(small_checkpoint.name)
    wait_until(lambda: any(worker.alive for worker in all_workers(server)), 60)
    (worker,) = all_workers(server)
    assert worker.pid is not None
    request = GenerationRequest((5, 6), max_new_tokens=100)
    job_ids = [enqueue(server, request, Submission(model=name)) for _ in range(50)]  # so that one is in the middle
    wait_until(lambda: stream_length(server, job_ids[0])[0], 60)

    gateway.kill()

    wait_until(lambda: not list(server.scan_iter(keys.worker_lease("*"))), 60)
    wait_until(lambda: not is_running(worker.pid), 60)
    left = [job_id for job_id in job_ids if end_of(server, job_id) is None]
    assert left
    assert {state_of(server, fetch(server, job_id)) for job_id in left} == {"queued"}


def is_running(pid: int | None) -> bool:
    """Whether there is such a process; one that nothing waits for any more counts as ended."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def test_a_folder_that_cannot_be_served_ends_the_gateway(server: redis.Redis, server_url: str, tmp_path: Path) -> None:
    code, _, said = run("--port", "0", "--with-worker", "--model", str(tmp_path), MINILAB_REDIS_URL=server_url)

    assert code == 1
    assert "the worker has ended with exit code 2" in said
