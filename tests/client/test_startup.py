"""How programs start: what they do not load, and Ctrl-C while they still load something."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from minilab_client.cli import main
from support.client_process import environment

from minilab_gen.startup import Loading

pytestmark = pytest.mark.slow

HEAVY = {"rq", "redis", "rich", "tokenizers", "jinja2", "asyncio"}
"""Libraries of which each takes as long as all that ``--version`` needs."""

NOWHERE = "unix:///nowhere/redis.sock"

_SHOW_LOADED = f"""
import sys
from minilab_client.__main__ import main
try:
    main()
finally:
    print(*sorted({HEAVY!r} & set(sys.modules)), file=sys.stderr)
"""


def loaded_by(*arguments: str, **variables: str) -> str:
    """Which of the heavy libraries a run of the client has loaded at its end."""
    ended = subprocess.run(
        [sys.executable, "-c", _SHOW_LOADED, *arguments],
        env={**environment(NOWHERE), **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout
    return ended.stderr.strip()


@pytest.mark.parametrize("arguments", [("--version",), ("--help",), *((name, "--help") for name in main.commands)])
def test_what_only_explains_loads_no_heavy_library(arguments: tuple[str, ...]) -> None:
    assert loaded_by(*arguments) == ""


@pytest.mark.parametrize("typed", ["minilab-client sub", "minilab-client submit --te", "minilab-client jobs --state "])
def test_a_shell_that_completes_loads_no_heavy_library(typed: str) -> None:
    words = {"COMP_WORDS": typed, "COMP_CWORD": str(typed.count(" "))}

    assert loaded_by(_MINILAB_CLIENT_COMPLETE="bash_complete", **words) == ""


def test_a_wrong_command_is_still_told_which_one_was_meant() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "minilab_client", "sumbit"],
        env=environment(NOWHERE),
        capture_output=True,
        text=True,
        check=False,
    )

    assert ended.returncode == 2
    assert "submit" in ended.stderr


PROGRAMS = {
    "client, before click": ("click", ["-m", "minilab_client", "jobs"]),
    "submit, before RQ": ("rq", ["-m", "minilab_client", "submit", "x"]),
    "jobs, before redis-py": ("redis", ["-m", "minilab_client", "jobs"]),
    "worker": ("click", ["-m", "minilab_worker"]),
    "minilab-worker demo": ("click", ["-m", "minilab_worker", "demo"]),
}


@pytest.mark.parametrize(("library", "arguments"), PROGRAMS.values(), ids=PROGRAMS.keys())
def test_ctrl_c_while_a_library_is_loaded_ends_a_program_without_a_word(
    tmp_path: Path, library: str, arguments: list[str]
) -> None:
    tmp_path.joinpath(f"{library}.py").write_text("import time\nprint('loading', flush=True)\ntime.sleep(60)\n")
    paths = os.pathsep.join([str(tmp_path), *sys.path])
    command = [sys.executable, *arguments]

    with subprocess.Popen(
        command, env={**environment(NOWHERE), "PYTHONPATH": paths}, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"loading\n"

        process.send_signal(signal.SIGINT)

        assert process.communicate(timeout=30) == (b"", b"")
    assert process.returncode == 130


def test_loading_leaves_ctrl_c_as_it_was() -> None:
    before = signal.getsignal(signal.SIGINT)
    with Loading():
        during = signal.getsignal(signal.SIGINT)

    assert during is not before
    assert signal.getsignal(signal.SIGINT) is before


def test_loading_leaves_a_ctrl_c_that_is_ignored_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with Loading():
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
