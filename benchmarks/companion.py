"""A second process beside the benchmark, joined to it by a pipe."""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any, Final

from minilab_gen.errors import MiniLabError

_PATIENCE: Final = 120.0
"""Seconds for an answer, on however busy a machine."""


@contextmanager
def companion(work: Callable[[Connection], None]) -> Iterator[Connection]:
    """A process that does ``work`` at the other end of the pipe.

    It must send one message when it is ready, and return when the pipe is closed here.
    """
    spawning = multiprocessing.get_context("spawn")
    ours, theirs = spawning.Pipe()
    process = spawning.Process(target=_beside, args=(work, theirs), name=work.__name__, daemon=True)
    process.start()
    theirs.close()
    try:
        received(ours)
        yield ours
    finally:
        ours.close()
        process.join()


def _beside(work: Callable[[Connection], None], pipe: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches every process; the benchmark ends this one
    with contextlib.suppress(BrokenPipeError):  # the benchmark left without waiting for the answer
        work(pipe)


def received(pipe: Connection) -> Any:
    """The next message. Raises MiniLabError when none comes."""
    if not pipe.poll(_PATIENCE):
        raise MiniLabError(f"a process beside this one must answer within {_PATIENCE:.0f} s")
    try:
        return pipe.recv()
    except EOFError as error:
        raise MiniLabError("a process beside this one has ended too soon") from error
