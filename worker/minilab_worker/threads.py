"""How many threads a worker computes with where no option says it: as many as it gains from.

More threads than processors wait for each other at every operation, and on a machine that others use, too, already two
can be slower than one. So a few steps are timed.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from statistics import median
from typing import Final

import torch

from minilab_gen.models.decoder import MiniLabModel

_CONTROL_GROUPS: Final = Path("/sys/fs/cgroup")
_OWN_GROUPS: Final = Path("/proc/self/cgroup")

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


def processors() -> int:
    """Processors that this process may use: those of its affinity, or of its container's quota where that is less."""
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min([affinity, *map(int, _quotas())]))


def try_threads(model: MiniLabModel, rows: int, most: int) -> Trial:
    """Time steps of so many rows with 1, 2, 4, ... threads and with ``most``; the calling thread keeps what is best."""
    counts = [*takewhile(lambda count: count < most, (1 << power for power in range(most.bit_length()))), most]
    ids = torch.arange(min(rows, model.config.context_length), device=model.device)[None] % model.config.vocab_size
    seconds: dict[int, list[float]] = {count: [] for count in counts}
    give_up = time.monotonic() + _SECONDS
    _step_seconds(model, ids)  # kernels are made at their first use
    for _ in range(_ROUNDS if len(counts) > 1 else 1):
        for count in counts:
            torch.set_num_threads(count)
            seconds[count].append(_step_seconds(model, ids))
        if time.monotonic() > give_up:
            break
    medians = {count: median(times) for count, times in seconds.items()}
    best = quickest(medians)
    torch.set_num_threads(best)
    return Trial(best, medians)


def quickest(seconds: dict[int, float]) -> int:
    """The number of threads to take, by the seconds of a step with each: a larger one only if it gains something."""
    best, *others = sorted(seconds)
    for count in others:
        if seconds[count] < _GAIN * seconds[best]:
            best = count
    return best


def _step_seconds(model: MiniLabModel, ids: torch.Tensor) -> float:
    start = time.perf_counter()
    with torch.no_grad():
        model(ids)
    return time.perf_counter() - start


def _quotas() -> list[float]:
    """Processors that control groups allow, this process's own groups and those around them; none without a limit."""
    found = []
    for group in _own_groups():
        try:
            if (group / "cpu.max").exists():  # version 2
                quota, period = (group / "cpu.max").read_text().split()
            else:
                quota, period = ((group / f"cpu.cfs_{name}_us").read_text().strip() for name in ("quota", "period"))
        except OSError:
            continue
        if quota not in ("max", "-1"):
            found.append(int(quota) / int(period))
    return found


def _own_groups() -> list[Path]:
    """Folders of the groups that may limit processors; a container sees its own as the root."""
    try:
        lines = _OWN_GROUPS.read_text().splitlines()
    except OSError:
        return []
    groups = []
    for _, controllers, name in (line.split(":", 2) for line in lines):
        if not controllers or "cpu" in controllers.split(","):
            root = _CONTROL_GROUPS / "cpu" if controllers else _CONTROL_GROUPS
            inner = root / name.lstrip("/")
            groups += [inner, *(parent for parent in inner.parents if parent.is_relative_to(root))]
    return groups
