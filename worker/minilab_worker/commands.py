"""What other threads say to the engine loop."""

from __future__ import annotations

from dataclasses import dataclass

from minilab_worker.compiling import Compiled
from minilab_worker.job_run import JobRun


@dataclass(frozen=True, slots=True)
class Add:
    """Let a job in at the next step; one that has ended already is only published."""

    run: JobRun


@dataclass(frozen=True, slots=True)
class Cancel:
    """Cancel a job at the next step; an unknown id is ignored."""

    job_id: str


@dataclass(frozen=True, slots=True)
class Recheck:
    """Ask at the next step which jobs are still this worker's."""


@dataclass(frozen=True, slots=True)
class Drain:
    """End the loop when every job has ended."""


@dataclass(frozen=True, slots=True)
class Return:
    """End it now: publish what is chosen, return the rest. In a hurry an unavailable Redis is not waited for."""

    hurry: bool = False


Command = Add | Cancel | Recheck | Drain | Return | Compiled
