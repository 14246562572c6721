"""The peer's end of the wire: one JSON object a line, from the benchmark on standard input, to it on standard output.

It imports nothing but the standard library: every peer's environment can
run it. The benchmark says, and gets back:

    {"load": folder, "converted": folder, "threads": 2, "max_batch": 64, "max_tokens": 128,
     "weights": "float32"}  ->  {"version": ...}
    {"run": [[prompt ids, max_new_tokens], ...]}  ->  {"seconds": ..., "tokens": [[...], ...], "peak_bytes": ...}
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

CONVERT = "convert"
"""First argument that makes a peer's program convert a checkpoint instead of answering."""


class Job(NamedTuple):
    """What one job asks for: exactly ``max_new_tokens`` greedy tokens after the prompt, whatever they are."""

    prompt: list[int]
    max_new_tokens: int


@dataclass(frozen=True, slots=True)
class Load:
    """What a peer is told before it runs anything."""

    checkpoint: Path
    """A Llama checkpoint in float32, in the layout of Hugging Face."""
    converted: Path
    """What this peer's own conversion made of it; empty for a peer without one."""
    threads: int
    max_batch: int
    """Jobs that run at a time: all of them, so that no peer has to queue any."""
    max_tokens: int
    """Prompt and answer of the longest job."""
    weights: str
    """``float32``, or ``int8`` for the peers that have something like it."""


@dataclass(frozen=True, slots=True)
class Peer:
    """A loaded library: what it calls itself, how it answers jobs, and the processes that make it up."""

    version: str
    run: Callable[[list[Job]], list[list[int]]]
    processes: Callable[[], Iterable[int]] = lambda: family(os.getpid())
    """Whose peak memory counts."""


def main(load: Callable[[Load], Peer], convert: Callable[[Path, Path], None] | None = None) -> None:
    """Answer the benchmark until it closes the wire; or, told to, convert one folder into another."""
    if sys.argv[1:2] == [CONVERT]:
        assert convert is not None, "only a peer with a conversion may be told to convert"
        convert(Path(sys.argv[2]), Path(sys.argv[3]))
        return
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # libraries print; the wire stays clean
    peer = None
    for line in sys.stdin:
        message = json.loads(line)
        if "load" in message:
            peer = load(_read_load(message))
            answer: dict[str, object] = {"version": peer.version}
        else:
            assert peer is not None, "a peer is told to load before it is told to run"
            answer = _timed_run(peer, [Job(*job) for job in message["run"]])
        print(json.dumps(answer), file=answers, flush=True)


def family(pid: int) -> list[int]:
    """A process and all below it; only itself where there is no /proc."""
    pids = [pid]
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in task.read_text(encoding="ascii").split():
            pids += family(int(child))
    return pids


def _read_load(message: dict[str, object]) -> Load:
    checkpoint, converted = Path(str(message.pop("load"))), Path(str(message.pop("converted")))
    return Load(checkpoint, converted, **message)  # type: ignore[arg-type]  # the rest are counts, by the same names


def _timed_run(peer: Peer, jobs: list[Job]) -> dict[str, object]:
    start = time.perf_counter()
    tokens = peer.run(jobs)
    seconds = time.perf_counter() - start
    return {"seconds": seconds, "tokens": tokens, "peak_bytes": _peak_bytes(peer.processes())}


def _peak_bytes(pids: Iterable[int]) -> int | None:
    """The sum of the processes' highest resident sizes, shared pages counted in each; None where there is no /proc."""
    total = 0
    for pid in pids:
        status = Path(f"/proc/{pid}/status")
        if not status.exists():
            return None
        lines = dict(line.split(":", 1) for line in status.read_text(encoding="utf-8").splitlines())
        total += int(lines["VmHWM"].split()[0]) * 1024
    return total
