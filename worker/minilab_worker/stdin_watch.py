"""Ends a worker with the program that started it, however that ends: its standard input is a pipe from there."""

from __future__ import annotations

import logging
import os
import signal
import threading

_log = logging.getLogger(__name__)

_STDIN = 0


def end_with_stdin() -> None:
    """From now on, the end of standard input is as good as SIGTERM.

    The system closes a pipe with the last process that could write to it, also where that is killed.
    """
    threading.Thread(target=_wait, name="stdin", daemon=True).start()


def _wait() -> None:
    try:
        while os.read(_STDIN, 4096):
            pass
    except OSError as error:
        _log.warning("standard input cannot be read: %s", error)
    _log.info("the program that started this worker has ended")
    os.kill(os.getpid(), signal.SIGTERM)
