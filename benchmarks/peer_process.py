"""The benchmark's end of the wire: a peer's process, in its own environment, that stands still unless it is its turn.

The wire itself is described in ``peer_protocol.py``.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from peer_protocol import CONVERT, Job

_PATIENCE: Final = 900.0
"""Seconds for one answer: vLLM compiles as it loads, and transformers answers one job at a time."""
_STOP_SECONDS: Final = 30.0
"""For a peer to leave by itself: ours stops a worker and a Redis."""
_SHOWN_LINES: Final = 3
"""Of a failed peer's log, its last lines: there stands the error."""


class PeerError(Exception):
    """A peer could not be started or did not answer."""


@dataclass(frozen=True, slots=True)
class Program:
    """A peer that can be asked for by its name."""

    name: str
    script: str
    environment: str | None
    """Its virtual environment, beside the others; None for the one that the benchmark runs in."""
    arguments: tuple[str, ...] = ()
    converts: bool = False
    """Whether it reads a format of its own."""
    narrows: bool = False
    """Whether it can hold its weights in eight bits."""
    preloads: bool = False
    """Whether its documentation asks for Intel's OpenMP and tcmalloc to be loaded before anything else."""

    def python(self, environments: Path) -> Path:
        """The interpreter that runs it."""
        return environments / self.environment / "bin" / "python" if self.environment else Path(sys.executable)

    def command(self, environments: Path, *arguments: str) -> list[str]:
        script = Path(__file__).with_name(self.script)
        return [str(self.python(environments)), str(script), *(arguments or self.arguments)]


@dataclass(frozen=True, slots=True)
class Run:
    """What one run gave."""

    seconds: float
    tokens: list[list[int]]
    peak_bytes: int | None
    """Most memory that the peer's processes have held since they started."""

    @classmethod
    def of(cls, runs: Sequence[Run]) -> Run:
        """Runs that came one after the other."""
        tokens = [answer for run in runs for answer in run.tokens]
        return cls(sum(run.seconds for run in runs), tokens, runs[-1].peak_bytes)

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return sum(map(len, self.tokens)) / self.seconds


class PeerProcess:
    """A peer that was started. All errors are PeerError."""

    def __init__(self, program: Program, environments: Path, folder: Path, threads: int) -> None:
        """``folder`` is its own, for what it converts and what it logs; what is converted already is taken as it is."""
        self.name = program.name
        self._log = folder / "log"
        self.converted = folder / "converted"
        self.converted.mkdir(parents=True, exist_ok=True)
        self._environment = _variables(program, environments, threads)
        self._command = program.command(environments)
        self._convert = program.command(environments, CONVERT) if program.converts else None
        self._process: subprocess.Popen[str] | None = None

    def load(self, checkpoint: Path, **settings: int | str) -> str:
        """Convert, start and load, none of which is timed; returns the library's name and version.

        ``settings`` are the other fields of :class:`peer_protocol.Load`.
        """
        if not Path(self._command[0]).exists():
            raise PeerError("not installed")
        if self._convert and not any(self.converted.iterdir()):
            self._run_to_end([*self._convert, str(checkpoint), str(self.converted)])
        with self._log.open("a", encoding="utf-8") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=self._environment,
                # A group of its own can be stopped as one; if this process is killed, the system ends it.
                process_group=0,
            )
        answer = self._ask({"load": str(checkpoint), "converted": str(self.converted), **settings})
        self._signal(signal.SIGSTOP)
        return str(answer["version"])

    def run(self, jobs: Sequence[Job]) -> Run:
        """Its answers to all jobs, handed over at once."""
        with self._awake():
            return Run(**self._ask({"run": jobs}))

    def close(self) -> None:
        """End it."""
        process = self._process
        if process is None:
            return
        assert process.stdin is not None
        with contextlib.suppress(OSError):
            process.stdin.close()
        self._signal(signal.SIGCONT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_STOP_SECONDS)
        self._signal(signal.SIGKILL)
        process.wait()

    @contextmanager
    def _awake(self) -> Iterator[None]:
        """Let it run meanwhile. At all other times its threads must not spin, nor its processes poll."""
        self._signal(signal.SIGCONT)
        try:
            yield
        finally:
            self._signal(signal.SIGSTOP)

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def _ask(self, message: dict[str, object]) -> dict[str, Any]:
        process = self._process
        assert process is not None and process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(json.dumps(message) + "\n")
            process.stdin.flush()
            ready, _, _ = select.select([process.stdout], [], [], _PATIENCE)
        except OSError as error:
            raise PeerError(self._complaint("it is gone")) from error
        if not ready:
            raise PeerError(self._complaint(f"no answer within {_PATIENCE:.0f} s"))
        line = process.stdout.readline()
        if not line:
            raise PeerError(self._complaint("it ended"))
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _run_to_end(self, command: list[str]) -> None:
        with self._log.open("a", encoding="utf-8") as log:
            ended = subprocess.run(command, stdout=log, stderr=log, env=self._environment, check=False)
        if ended.returncode:
            shutil.rmtree(self.converted)  # what is there counts as converted
            raise PeerError(self._complaint("the conversion failed"))

    def _complaint(self, what: str) -> str:
        lines = self._log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return "; ".join([what, *lines[-_SHOWN_LINES:]])


def _variables(program: Program, environments: Path, threads: int) -> dict[str, str]:
    """The environment variables of a peer's processes."""
    project, python = Path(__file__).resolve().parent.parent, program.python(environments)
    given = os.environ | {
        "OMP_NUM_THREADS": str(threads),
        "HF_HUB_OFFLINE": "1",  # everything is in the folder; no loader has to look for more
        "DO_NOT_TRACK": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    if program.environment is None:  # ours, installed or not
        ours = [project, project / "worker", os.environ.get("PYTHONPATH", "")]
        return given | {"PYTHONPATH": os.pathsep.join(map(str, filter(None, ours)))}
    given.pop("PYTHONPATH", None)
    if program.preloads:
        libraries = [
            *python.parent.parent.glob("lib/libiomp5.so"),
            *Path("/usr/lib").glob("*/libtcmalloc_minimal.so.4"),
        ]
        given["LD_PRELOAD"] = ":".join(map(str, libraries))
    return given
