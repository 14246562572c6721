"""What can be told about the tools of others without starting a service; the rest is ``make interop``."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from interop.commands import documented
from interop.environments import NotInstalledError, node_folder, program

pytestmark = pytest.mark.slow


def test_a_tool_that_cannot_be_installed_is_named_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)

    with pytest.raises(NotInstalledError, match="No matching distribution found for"):
        program("rq-exporter", tmp_path)


def test_without_a_server_it_says_in_a_line_that_nothing_was_checked_and_ends_well(tmp_path: Path) -> None:
    environment = {**os.environ, "PATH": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}

    ended = subprocess.run(
        [sys.executable, "-m", "interop"], env=environment, capture_output=True, text=True, timeout=120, check=False
    )

    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("interop: SKIPPED, NOTHING WAS CHECKED with all tools: ")
    assert ended.stdout.count("\n") == 1


def test_a_package_for_javascript_is_skipped_where_there_is_no_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(NotInstalledError, match="there is no node with npm on the PATH"):
        node_folder("openai-js", tmp_path)


@pytest.mark.parametrize("tool", ["rq", "rq-dashboard", "rq-exporter", "redis-cli"])
def test_the_documents_say_how_to_call_each_tool(tool: str) -> None:
    address = "redis://host:6379"

    assert all(address in command for command in documented(tool, address, "a-job"))
