"""Ctrl-C at the right moment."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Put a KeyboardInterrupt off to the end of the block, so that what was shown and what was counted never differ.

    A second one is not put off: the block may be held up by a reader that takes nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # which never gets one
        return
    earlier = signal.getsignal(signal.SIGINT)
    if earlier is not signal.default_int_handler:
        yield  # another handler, or none, is there on purpose
        return
    came = False

    def note(_signal: int, _frame: FrameType | None) -> None:
        nonlocal came
        if came:
            raise KeyboardInterrupt
        came = True

    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, earlier)
    if came:
        raise KeyboardInterrupt
