"""A worker that runs beside the gateway, as a process of its own, and ends with it, also where that is killed."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
from importlib.util import find_spec
from typing import Final, Self

from minilab_gen.errors import RequestError

_log = logging.getLogger(__name__)

_END_SECONDS: Final = 40.0
"""In which a worker ends after SIGTERM: its own grace is 25 s."""


class WorkerBeside:
    """``minilab-worker`` for as long as a ``with`` block. If it ends by itself, so does the gateway."""

    def __init__(self, model: str | None, redis_url: str | None) -> None:
        """Raises RequestError where no worker is installed."""
        if find_spec("numpy") is None or find_spec("safetensors") is None:
            raise RequestError(
                "--with-worker needs the extra [serve]: pip install -c constraints.txt '.[gateway,serve]'"
            )
        self._command = [sys.executable, "-m", "minilab_worker", "--end-with-stdin"]
        self._command += ["--model", model] if model is not None else []
        self._environment = dict(os.environ)
        if redis_url is not None:
            self._environment["MINILAB_REDIS_URL"] = redis_url  # not on the command line, since it may hold a password
        self._process: subprocess.Popen[bytes] | None = None
        self._is_ending = self.has_failed = False

    def __enter__(self) -> Self:
        # In a group of its own: Ctrl-C ends the gateway, and then this.
        # Its input is a pipe to which nothing is written: it ends with this process, whatever ends that.
        self._process = subprocess.Popen(
            self._command, env=self._environment, stdin=subprocess.PIPE, start_new_session=True
        )
        threading.Thread(target=self._watch, args=(self._process,), daemon=True).start()
        return self

    def _watch(self, process: subprocess.Popen[bytes]) -> None:
        """End the gateway where its worker ends by itself, for a bad folder for instance."""
        code = process.wait()
        if not self._is_ending:
            _log.error("the worker has ended with exit code %d", code)
            self.has_failed = True
            os.kill(os.getpid(), signal.SIGTERM)

    def __exit__(self, *_exception: object) -> None:
        process, self._is_ending = self._process, True
        if process is None:
            return
        process.terminate()
        try:
            process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            _log.warning("the worker has not ended within %.0f s and is killed", _END_SECONDS)
            process.kill()
            process.wait()
        if process.stdin is not None:
            process.stdin.close()
