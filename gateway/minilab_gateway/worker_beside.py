"""A worker that runs beside the gateway, as a process of its own, and ends with it."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from importlib.util import find_spec
from typing import Final, Self

from minilab_gen.errors import RequestError

_log = logging.getLogger(__name__)

_END_SECONDS: Final = 40.0
"""In which a worker ends after SIGTERM: its own grace is 25 s."""


class WorkerBeside:
    """``minilab-worker`` for as long as a ``with`` block. If it ends by itself, its jobs wait for another."""

    def __init__(self, model: str | None, redis_url: str | None) -> None:
        """Raises RequestError where no worker is installed."""
        if find_spec("numpy") is None or find_spec("safetensors") is None:
            raise RequestError(
                "--with-worker needs the extra [serve]: pip install -c constraints.txt '.[gateway,serve]'"
            )
        self._command = [sys.executable, "-m", "minilab_worker"]
        self._command += ["--model", model] if model is not None else []
        self._environment = dict(os.environ)
        if redis_url is not None:
            self._environment["MINILAB_REDIS_URL"] = redis_url  # not on the command line, since it may hold a password
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        # In a group of its own: Ctrl-C ends the gateway, and then this.
        self._process = subprocess.Popen(
            self._command, env=self._environment, stdin=subprocess.DEVNULL, start_new_session=True
        )
        return self

    def __exit__(self, *_exception: object) -> None:
        process = self._process
        if process is None:
            return
        process.terminate()
        try:
            process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            _log.warning("the worker has not ended within %.0f s and is killed", _END_SECONDS)
            process.kill()
            process.wait()
