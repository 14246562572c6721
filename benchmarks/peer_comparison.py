"""What a peer's runs say beside the engine's: pace, memory, and whether its tokens are the same."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

from peer_process import Run
from peer_protocol import Job

from minilab_gen.generate import generate
from minilab_gen.models.kernel_model import KernelModel

HEAD: Final = ("", "library", "tokens/s", "lowest", "highest", "of the engine", "peak MB", "same tokens")
_MILLION: Final = 1e6


@dataclass(slots=True)
class Record:
    """A peer's runs, round by round, until it failed."""

    name: str
    version: str = ""
    runs: list[Run] = field(default_factory=list)
    failure: str | None = None


@dataclass(frozen=True, slots=True)
class Difference:
    """The earliest token at which a peer chose another token than the engine."""

    job: int
    token: int
    """Both counted from 0."""
    gap: float
    """Between our two best logits there: where it is next to nothing, rounding decides."""

    def __str__(self) -> str:
        where = f"token {self.token + 1} of job {self.job + 1}"
        return f"other tokens from {where} on, where our two best logits are {self.gap:.2g} apart"

    def to_json(self) -> dict[str, Any]:
        return {"job": self.job, "token": self.token, "logit_gap": self.gap}


@dataclass(frozen=True, slots=True)
class Comparison:
    """A peer that ran, as the table and the JSON file show it."""

    name: str
    version: str
    rates: list[float]
    """Tokens per second, round by round."""
    times_engine: float
    """The median over the rounds."""
    peak_mb: int | None
    jobs: int
    equal_jobs: int
    """Jobs whose tokens are all the same, in the round with the fewest."""
    difference: Difference | None

    @classmethod
    def of(cls, record: Record, engine: Record, jobs: Sequence[Job], model: KernelModel) -> Comparison:
        """A peer that ran in every round that the engine ran in."""
        pairs = list(zip(record.runs, engine.runs, strict=True))
        differing = max((find_differences(ours.tokens, theirs.tokens) for theirs, ours in pairs), key=len)
        earliest = min(differing.items(), key=lambda found: found[1], default=None)
        peak = record.runs[-1].peak_bytes
        return cls(
            name=record.name,
            version=record.version,
            rates=[round(run.rate, 1) for run in record.runs],
            times_engine=round(statistics.median(theirs.rate / ours.rate for theirs, ours in pairs), 3),
            peak_mb=None if peak is None else round(peak / _MILLION),
            jobs=len(jobs),
            equal_jobs=len(jobs) - len(differing),
            difference=None if earliest is None else _describe(*earliest, jobs[earliest[0]], model),
        )

    @property
    def tokens_per_second(self) -> float:
        """The median of the rounds."""
        return statistics.median(self.rates)

    def cells(self) -> list[str]:
        """As :data:`HEAD` names them."""
        paces = [f"{pace:,.0f}" for pace in (self.tokens_per_second, min(self.rates), max(self.rates))]
        memory = "-" if self.peak_mb is None else str(self.peak_mb)
        return [
            self.name,
            self.version,
            *paces,
            f"{self.times_engine:.2f}",
            memory,
            f"{self.equal_jobs} of {self.jobs}",
        ]

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "library": self.version,
            "tokens_per_second": self.tokens_per_second,
            "rounds": self.rates,
            "times_engine": self.times_engine,
            "peak_mb": self.peak_mb,
            "jobs_with_equal_tokens": self.equal_jobs,
            "first_difference": self.difference and self.difference.to_json(),
        }


def find_differences(ours: Sequence[list[int]], theirs: Sequence[list[int]]) -> dict[int, int]:
    """For each job whose tokens differ, the number of the first that does; a missing token is a different one."""
    found = {}
    for job, (mine, other) in enumerate(zip(ours, theirs, strict=True)):
        if mine != other:
            equal = [a == b for a, b in zip(mine, other, strict=False)]
            found[job] = equal.index(False) if False in equal else len(equal)
    return found


def _describe(number: int, token: int, job: Job, model: KernelModel) -> Difference:
    """A difference, with the gap that the reference loop finds there."""
    steps = generate(model, job.prompt, max(token + 1, job.max_new_tokens))
    logits = next(islice(steps, token, None)).logits
    best, second = logits.topk(2).values.tolist()
    return Difference(number, token, best - second)
