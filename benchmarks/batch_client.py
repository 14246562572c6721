"""The client of a batch as a process that may be killed, and how full the worker is meanwhile."""

from __future__ import annotations

import resource
import signal
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import redis
from rq import Queue
from service import WorkerProcess

from minilab_gen.measurement import peak_memory
from minilab_gen.protocol import keys

QUEUE: Final = keys.queue_name(keys.DEFAULT_MODEL, "low")
"""Where the client puts jobs that are in no hurry."""

_MILLION: Final = 1e6

_LOOK_EVERY: Final = 0.02
"""Seconds between two looks at the worker's slots: two small commands."""


@dataclass(frozen=True, slots=True)
class Files:
    """What the client reads and writes."""

    lines: Path
    output: Path
    errors: Path


class Growth:
    """How many whole lines a file that only grows has; what was counted is not read again."""

    def __init__(self, path: Path) -> None:
        self._path, self._offset, self._lines = path, 0, 0

    def count(self) -> int:
        if self._path.exists():
            with self._path.open("rb") as file:
                file.seek(self._offset)
                new = file.read()
            self._offset += len(new)
            self._lines += new.count(b"\n")
        return self._lines


@dataclass(frozen=True, slots=True)
class Look:
    """What is seen at one moment."""

    seconds: float
    used: int
    """Slots of the worker in use."""
    waiting: int


@dataclass(frozen=True, slots=True)
class ClientRun:
    """One run of the client, to its end or to its kill."""

    code: int
    seconds: float
    answered: int
    """Lines in the output when it was over."""
    cpu_seconds: float
    peak_bytes: int
    looks: list[Look]

    def steady(self, slots: int) -> list[Look]:
        """From when all slots were in use to when the last job was claimed: a client that is too slow shows here."""
        full = next((number for number, look in enumerate(self.looks) if look.used >= slots), 0)
        waiting = [number for number, look in enumerate(self.looks) if look.waiting]
        return self.looks[full : waiting[-1] + 1] if waiting else []

    def cells(self, slots: int) -> list[str]:
        """As :data:`HEAD` names them."""
        ended = "killed" if self.code == -signal.SIGKILL else f"code {self.code}"
        cost = [f"{self.cpu_seconds:.1f}", f"{self.peak_bytes / _MILLION:.0f}"]
        steady = self.steady(slots)
        if not steady:
            return [ended, f"{self.seconds:.1f}", f"{self.answered:,}", "-", "-", "-", *cost]
        mean = statistics.mean(look.used for look in steady)
        full = sum(look.used >= slots for look in steady) / len(steady)
        dry = sum(not look.waiting for look in steady) / len(steady)
        return [ended, f"{self.seconds:.1f}", f"{self.answered:,}", f"{mean:.1f}", f"{full:.0%}", f"{dry:.0%}", *cost]


HEAD: Final = ("client", "seconds", "answered", "slots in use", "all in use", "none waits", "client CPU s", "client MB")
"""The middle three are of the steady part: a mean, and shares of the time."""


class Slots:
    """How many jobs the worker holds: each has its slot from its claim until its end is recorded."""

    def __init__(self, connection: redis.Redis) -> None:
        queue = Queue(QUEUE, connection=connection)
        self._connection, self._started, self._waiting = connection, queue.started_job_registry.key, queue.key

    def look(self) -> Look:
        with self._connection.pipeline(transaction=True) as pipeline:
            pipeline.zcard(self._started)
            pipeline.llen(self._waiting)
            used, waiting = pipeline.execute()
        return Look(time.perf_counter(), used, waiting)


def run_client(files: Files, slots: Slots, running: WorkerProcess, kill_at: int | None) -> ClientRun:
    """Let the client work until it ends, or kill it once so many lines are answered."""
    command = [sys.executable, "-m", "minilab_client", "batch", str(files.lines)]
    command += ["--output", str(files.output), "--errors", str(files.errors), "--quiet"]
    began, peak, looks, output = time.perf_counter(), 0, [], Growth(files.output)
    cpu_before = _cpu_of_ended_clients()
    with subprocess.Popen(command, stdin=subprocess.DEVNULL) as client:
        while client.poll() is None:
            running.check_alive()
            looks.append(slots.look())
            peak = peak_memory(client.pid) or peak
            if kill_at is not None and output.count() >= kill_at:
                client.kill()
            time.sleep(_LOOK_EVERY)
    seconds, cpu_seconds = time.perf_counter() - began, _cpu_of_ended_clients() - cpu_before
    return ClientRun(client.returncode, seconds, output.count(), cpu_seconds, peak, looks)


def _cpu_of_ended_clients() -> float:
    """Seconds of all processes that have ended and were waited for; the worker is none of these yet."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
