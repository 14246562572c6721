"""Compiles the forms of answers in threads of its own, so that no running job waits for it."""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from minilab_gen.constraint import Constraint
from minilab_gen.constraints.compiler import FormCompiler
from minilab_worker.job_run import JobRun

_log = logging.getLogger(__name__)

_THREADS: Final = 2
"""So that one form that takes its whole time does not hold up the others."""

_NICENESS: Final = 10
"""Of these threads, where the system has one for each: the kernels come first."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """A job's constraint, or why it gets none."""

    run: JobRun
    made: Constraint | Exception


class Compiling:
    """Forms on their way to the engine. The compiler's library is loaded with the first of them."""

    def __init__(self, compiler: FormCompiler) -> None:
        self._compiler = compiler
        self._pool: ThreadPoolExecutor | None = None

    def start(self, run: JobRun, tell: Callable[[Compiled], None]) -> None:
        """Make the constraint of a job that has a form, and tell what came of it, in another thread."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(_THREADS, "forms", initializer=_step_back)
        self._pool.submit(self._make, run, tell)

    def stop(self) -> None:
        """Begin nothing more."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

    def _make(self, run: JobRun, tell: Callable[[Compiled], None]) -> None:
        if run.end is not None:  # cancelled while it waited for a thread
            return
        sequence = run.sequence
        assert sequence is not None, "a job that has not ended has a sequence"
        request, answered = sequence.request, sequence.ids[len(sequence.request.prompt) :]
        form = request.form
        assert form is not None, "only a job with a form gets a constraint"
        try:
            made: Constraint | Exception = self._compiler.start(form, answered, request.stop_ids)
        except Exception as error:  # noqa: BLE001 - whatever it was, it ends this job alone
            made = error
        tell(Compiled(run, made))


def _step_back() -> None:
    if sys.platform == "linux":  # elsewhere niceness is the process's
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
