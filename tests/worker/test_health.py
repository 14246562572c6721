"""``minilab-worker health``: true while the worker that is asked about holds its lease, and at no other time."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from chaos.server import BINARY
from support.own_service import LIMIT, OwnService
from support.waiting import wait_until

from minilab_gen.protocol import keys

needs_server = pytest.mark.skipif(BINARY is None, reason="needs redis-server or valkey-server on the PATH")

Worker = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def lease_file(tmp_path: Path) -> Path:
    return tmp_path / "lease"


@pytest.fixture
def minilab_worker(lease_file: Path, tmp_path: Path) -> Worker:
    """Run the program to its end, in an environment that names the lease file and a private Redis of the test's own."""
    variables = {"MINILAB_LEASE_FILE": str(lease_file), "MINILAB_HOME": str(tmp_path)}
    environment = {**os.environ, **variables, "PYTHONPATH": os.pathsep.join(sys.path)}

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "minilab_worker.cli", *arguments]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT, check=False)

    return run


@needs_server
def test_a_worker_is_healthy_from_its_lease_to_its_end(
    own_service: OwnService, lease_file: Path, minilab_worker: Worker
) -> None:
    url = own_service.server.url
    worker = own_service.fleet.start_and_wait("--lease-file", str(lease_file))

    serving = minilab_worker("health", "--redis-url", url)
    worker.terminate()
    assert worker.wait() == 0
    ended = minilab_worker("health", "--redis-url", url)

    assert (serving.returncode, serving.stdout) == (0, f"{lease_file.read_text()} holds its lease\n")
    assert f"-{worker.pid}-" in serving.stdout
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr == f"error: {lease_file.read_text()} holds no lease: it has exited or is stalled\n"


@needs_server
def test_a_worker_that_stands_still_is_unhealthy_until_it_continues(
    own_service: OwnService, lease_file: Path, minilab_worker: Worker
) -> None:
    def exit_code() -> int:
        return minilab_worker("health", "--redis-url", own_service.server.url).returncode

    worker = own_service.fleet.start_and_wait("--lease-file", str(lease_file))

    worker.sleep()
    wait_until(lambda: exit_code() == 1, LIMIT)
    worker.wake()
    wait_until(lambda: exit_code() == 0, LIMIT)


@needs_server
def test_a_worker_that_starts_is_not_taken_for_its_predecessor_that_was_killed(
    own_service: OwnService, lease_file: Path, tmp_path: Path, minilab_worker: Worker
) -> None:
    lease_file.write_text("minilab-predecessor")
    own_service.connection.set(keys.worker_lease("minilab-predecessor"), 1)

    started = minilab_worker("--redis-url", own_service.server.url, "--model", str(tmp_path / "none"))
    asked = minilab_worker("health", "--redis-url", own_service.server.url)

    assert started.returncode == 2, "it came no further than to its model"
    assert (asked.returncode, asked.stderr) == (1, f"error: no worker serves here yet: {lease_file} is empty\n")


def test_without_a_lease_file_no_worker_is_healthy(lease_file: Path, minilab_worker: Worker) -> None:
    asked = minilab_worker("health")

    assert asked.returncode == 1
    assert asked.stderr.startswith("error: no worker serves here: ")
    assert str(lease_file) in asked.stderr


def test_without_redis_health_exits_with_4(lease_file: Path, tmp_path: Path, minilab_worker: Worker) -> None:
    lease_file.write_text("minilab-test")

    asked = minilab_worker("health", "--redis-url", f"unix://{tmp_path}/none.sock")

    assert asked.returncode == 4
    assert asked.stderr.startswith("error: no Redis answers at unix://")
    assert asked.stderr.count("\n") == 1


def test_a_lease_file_that_cannot_be_written_is_told_before_the_model_is_loaded(
    tmp_path: Path, minilab_worker: Worker
) -> None:
    started = minilab_worker("--lease-file", str(tmp_path / "none" / "lease"), "--model", str(tmp_path / "no model"))

    assert started.returncode == 1
    assert started.stderr.startswith("error: --lease-file must be a file that can be written, got ")


def test_the_exit_code_of_a_command_is_that_of_the_program(minilab_worker: Worker) -> None:
    assert minilab_worker("redis", "status").returncode == 4, "it does not run"
