"""How many threads a worker computes with where no option says it: as many as it gains from.

More threads than processors wait for each other at every operation, and on a machine that others use, too, already two
can be slower than one. So a few steps are timed.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import takewhile
from statistics import median
from typing import Final

from minilab_gen.kernels.decoder import Decoder
from minilab_gen.kernels.processors import processors
from minilab_gen.models.kernel_model import KernelModel

_ROUNDS: Final = 7
"""How often each number of threads is tried, in turn, so that a neighbour's noise falls on all of them."""
_SECONDS: Final = 3.0
"""After so many no further round begins."""
_GAIN: Final = 0.9
"""More threads must take at most this share of the time, or they are left to others."""


@dataclass(frozen=True, slots=True)
class Trial:
    """What was found: the number of threads to take, and the seconds of a step with each number that was tried."""

    threads: int
    seconds: dict[int, float]

    def __str__(self) -> str:
        tried = ", ".join(f"{1000 * seconds:.1f} ms with {count}" for count, seconds in self.seconds.items())
        return f"{self.threads} of {max(self.seconds)} threads, because a step takes {tried}"


def try_threads(model: KernelModel, rows: int, most: int | None = None) -> Trial:
    """Time steps of so many rows with 1, 2, 4, ... threads and with ``most``, by default all processors."""
    most = most or processors()
    counts = [*takewhile(lambda count: count < most, (1 << power for power in range(most.bit_length()))), most]
    decoder = model.decoder(rows, most)
    seconds: dict[int, list[float]] = {count: [] for count in counts}
    give_up = time.monotonic() + _SECONDS
    _step_seconds(decoder)  # memory is touched for the first time
    for _ in range(_ROUNDS if len(counts) > 1 else 1):
        for count in counts:
            decoder.use_threads(count)
            seconds[count].append(_step_seconds(decoder))
        if time.monotonic() > give_up:
            break
    medians = {count: median(times) for count, times in seconds.items()}
    return Trial(quickest(medians), medians)


def quickest(seconds: dict[int, float]) -> int:
    """The number of threads to take, by the seconds of a step with each: a larger one only if it gains something."""
    best, *others = sorted(seconds)
    for count in others:
        if seconds[count] < _GAIN * seconds[best]:
            best = count
    return best


def _step_seconds(decoder: Decoder) -> float:
    """How long a step takes in which each slot decodes a token."""
    rows = range(decoder.slots)
    ids = [row % decoder.config.vocab_size for row in rows]
    start = time.perf_counter()
    decoder.run(ids, rows, [0] * len(rows), rows)
    return time.perf_counter() - start
