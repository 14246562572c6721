"""What can be told about the containers without starting one; the rest is ``make compose-test``."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from minilab_worker.cli import program

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent.parent


def test_compose_waits_longer_for_a_worker_than_it_takes_to_drain() -> None:
    (grace,) = (option.default for option in program.params if option.name == "grace")
    services = (ROOT / "docker-compose.yml").read_text(encoding="utf-8")
    (worker,) = re.findall(r"^  worker:\n(.*?)^  \w", services, re.MULTILINE | re.DOTALL)
    (seconds,) = re.findall(r"stop_grace_period: (\d+)s", worker)

    assert isinstance(grace, float)
    assert int(seconds) >= 2 * grace, "to give back what has not ended takes a while on a loaded machine"


def test_compose_builds_the_client_with_the_rest_and_starts_none_of_it() -> None:
    services = (ROOT / "docker-compose.yml").read_text(encoding="utf-8")
    (client,) = re.findall(r"^  client:\n(.*?)^\w", services, re.MULTILINE | re.DOTALL)

    assert "profiles:" not in client, "`up --build` builds nothing that has a profile"
    assert re.findall(r"^    deploy:\n      replicas: (\d+)$", client, re.MULTILINE) == ["0"]


def test_compose_test_without_an_engine_says_so_in_a_line_and_ends_well() -> None:
    environment = {**os.environ, "DOCKER_HOST": "unix:///nowhere/docker.sock", "PYTHONPATH": os.pathsep.join(sys.path)}

    ended = subprocess.run(
        [sys.executable, "-m", "containers"], env=environment, capture_output=True, text=True, timeout=120, check=False
    )

    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("compose-test: SKIPPED, nothing was checked: ")
    assert ended.stdout.count("\n") == 1
