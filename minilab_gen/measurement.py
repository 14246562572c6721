"""What a benchmark measures and how it shows that: the times of tokens, memory, medians, one table, one JSON file.

``python -m minilab_gen.bench`` and the programs in ``benchmarks/`` are built on it.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import platform
import resource
import statistics
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import click
import torch

from minilab_gen.models.kernel_model import KernelModel

_MILLION: Final = 1e6


class TokenClock:
    """When jobs were asked for and when their tokens came, in seconds."""

    def __init__(self) -> None:
        self.first_tokens: list[float] = []
        """From asking to the first token, job by job."""
        self.gaps: list[float] = []
        """Between two tokens of one job."""
        self._asked: dict[str, float] = {}
        self._last: dict[str, float] = {}

    @property
    def tokens(self) -> int:
        return len(self.first_tokens) + len(self.gaps)

    def ask(self, job: str, now: float) -> None:
        """A job is asked for; ``now`` is on the clock of ``time.perf_counter``, here and below."""
        self._asked[job] = now

    def take(self, job: str, now: float) -> None:
        """A token of it came."""
        if job in self._last:
            self.gaps.append(now - self._last[job])
        else:
            self.first_tokens.append(now - self._asked[job])
        self._last[job] = now


@dataclass(frozen=True, slots=True)
class RunResult:
    """What one run gave."""

    tokens: int
    seconds: float
    """In which these tokens came: of the steady part of the run, where it has one."""
    clock: TokenClock
    peak_bytes: int | None
    """Most memory that the process held; None where the system does not say."""

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return self.tokens / self.seconds


def reset_peak_memory() -> None:
    """Let :func:`peak_memory` of this process start afresh, where the system can (Linux)."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # 5 resets the peak, see proc_pid_clear_refs(5)


def peak_memory(process: int | None = None) -> int | None:
    """Most bytes that a process, by default this one, held in memory; None where the system does not say."""
    try:
        status = Path(f"/proc/{process or 'self'}/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None if process else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # bytes on macOS
    peak = next((line for line in status.splitlines() if line.startswith("VmHWM:")), None)
    return int(peak.split()[1]) * 1024 if peak else None


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Percentiles of many times, in milliseconds."""

    p50: float
    p99: float

    @classmethod
    def of(cls, seconds: Iterable[float]) -> Percentiles:
        ordered = sorted(seconds)
        assert ordered, "percentiles need at least one time"
        p50, p99 = (1000 * ordered[math.ceil(len(ordered) * percent / 100) - 1] for percent in (50, 99))
        return cls(round(p50, 3), round(p99, 3))

    def __str__(self) -> str:
        return f"{self.p50:.2f} / {self.p99:.2f}"

    def to_json(self) -> dict[str, float]:
        return {"p50": self.p50, "p99": self.p99}


@dataclass(frozen=True, slots=True)
class Summary:
    """Several runs of the same thing."""

    tokens_per_second: float
    """The median of the runs."""
    first_token: Percentiles
    gap: Percentiles
    """Both over the tokens of all runs together."""
    peak_mb: int | None
    """The lowest of the runs: in one process, a later run starts with what earlier ones left."""

    @classmethod
    def of(cls, runs: Sequence[RunResult]) -> Summary:
        peaks = [run.peak_bytes for run in runs if run.peak_bytes is not None]
        return cls(
            round(statistics.median(run.rate for run in runs), 1),
            Percentiles.of(seconds for run in runs for seconds in run.clock.first_tokens),
            Percentiles.of(seconds for run in runs for seconds in run.clock.gaps),
            round(min(peaks) / _MILLION) if peaks else None,
        )

    def cells(self) -> list[str]:
        """As :data:`SUMMARY_HEAD` names them."""
        memory = "-" if self.peak_mb is None else str(self.peak_mb)
        return [f"{self.tokens_per_second:,.0f}", str(self.first_token), str(self.gap), memory]

    def to_json(self) -> dict[str, Any]:
        return {
            "tokens_per_second": self.tokens_per_second,
            "first_token_ms": self.first_token.to_json(),
            "gap_ms": self.gap.to_json(),
            "peak_mb": self.peak_mb,
        }


SUMMARY_HEAD: Final = ("tokens/s", "first token ms", "gap ms", "peak MB")


def ratio(runs: Sequence[RunResult], others: Sequence[RunResult]) -> float:
    """How many times as fast the runs were: the median over pairs that ran side by side, so that drift cancels."""
    return round(statistics.median(run.rate / other.rate for run, other in zip(runs, others, strict=True)), 3)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Text in columns, the first flush left, the others flush right."""
    lines = [list(head), *map(list, rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    laid = ["  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in lines]
    first = [line[0].ljust(widths[0]) + text[widths[0] :] for line, text in zip(lines, laid, strict=True)]
    return "\n".join([first[0], "-" * len(first[0]), *first[1:]])


@dataclass(slots=True)
class Progress:
    """Says on stderr what is being done: one line that changes on a terminal, a line each elsewhere."""

    total: int
    done: int = field(default=0, init=False)

    def say(self, text: str) -> None:
        """The next of ``total`` things begins."""
        self.done += 1
        self.say_again(text)

    def say_again(self, text: str) -> None:
        """The same thing has come further."""
        line = f"[{self.done}/{self.total}] {text}"
        if sys.stderr.isatty():
            click.echo(f"\r{line[:78]:<78}", err=True, nl=False)
        else:
            click.echo(line, err=True)

    def clear(self) -> None:
        if sys.stderr.isatty():
            click.echo(f"\r{'':78}\r", err=True, nl=False)


def facts(folder: Path, model: KernelModel) -> dict[str, Any]:
    """What every measurement depends on, for its JSON file."""
    return {
        "model": {"name": folder.name, "parameters": model.config.parameters},
        "machine": {
            "processor": _processor(),
            "cores": os.cpu_count(),
            "system": f"{platform.system()} {platform.machine()}",
            "python": platform.python_version(),
            "torch": str(torch.__version__),
        },
    }


def _processor() -> str:
    """The processor's name, where the system gives one."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def write_json(file: Path | None, content: dict[str, Any]) -> None:
    """Write a JSON object, if a file is given."""
    if file is not None:
        file.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n", encoding="utf-8")
