"""``minilab-worker`` as a process that ends before it serves, for tests. It must not hold a test."""

from __future__ import annotations

import subprocess
import sys

from support.client_process import environment
from support.waiting import LIMIT

_RUN = """
import atexit, sys
from minilab_worker.cli import main
atexit.register(lambda: print("minilab_gen.kernels.library" in sys.modules))
main()
"""


def start_of_worker(*arguments: str, url: str, **variables: str) -> tuple[int, str]:
    """Run a worker that ends before it loads the kernels, or the test fails: its exit code, and what it said."""
    ended = subprocess.run(
        [sys.executable, "-c", _RUN, *arguments],
        env={**environment(url), **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=4 * LIMIT,
        check=False,
    )
    assert ended.stdout == "False\n", f"the kernels must not be loaded: {ended.stderr}"
    return ended.returncode, ended.stderr
