"""Computes what may come next in the sequences that have a form, while the caller does something else.

The tokens of a step are known when it ends, and what may follow is needed when the next one begins. In between a worker
publishes, on one processor.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from minilab_gen.constraint import Constraint


class Masks:
    """One batch of constraints at a time. They are not to be touched between ``start`` and ``join``."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None  # most engines never need one
        self._under_way: Future[None] | None = None

    def start(self, constraints: Iterable[Constraint]) -> None:
        """Begin to prepare these."""
        together = list(constraints)
        if not together:
            return
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, "masks")
        began = threading.Event()
        self._under_way = self._pool.submit(_prepare, together, began)
        began.wait()  # else it would wait for the interpreter's lock as long as the caller holds it

    def join(self) -> None:
        """Wait until they are prepared."""
        under_way, self._under_way = self._under_way, None
        if under_way is not None:
            under_way.result()


def _prepare(constraints: Sequence[Constraint], began: threading.Event) -> None:
    began.set()
    constraints[0].prepare(constraints)
