"""The answers to one line that asks for several: each from a job of its own, and written together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from minilab_gen.batch.line import Line
from minilab_gen.batch.pending_jobs import EndedLine, Failure
from minilab_gen.protocol.groups import requests_of
from minilab_gen.protocol.results import Answer


def choices_of(line: Line) -> list[Line]:
    """The line once for each answer that it asks for, as what each job is to do; for one answer the line itself."""
    if line.n == 1:
        return [line]
    requests = requests_of(line.request, line.n)
    seeds = [None if line.seed is None else request.settings.seed for request in requests]
    return [
        replace(line, request=request, seed=seed, choice=index)
        for index, (request, seed) in enumerate(zip(requests, seeds, strict=True))
    ]


class Choices:
    """Keeps what has come of the lines of which some jobs have not ended."""

    def __init__(self) -> None:
        self._ended: dict[str, dict[int, EndedLine]] = {}  # digest of a line: its choices

    def add(self, ended: EndedLine) -> list[EndedLine] | None:
        """All that came of the line, in the order of its answers, once there is no more to wait for; else None."""
        if ended.line.choice is None:
            return [ended]
        together = self._ended.setdefault(ended.line.digest, {})
        together[ended.line.choice] = ended
        if len(together) < ended.line.n:
            return None
        del self._ended[ended.line.digest]
        return [together[index] for index in range(ended.line.n)]


def failed_of(together: Sequence[EndedLine]) -> tuple[EndedLine, Failure] | None:
    """The first choice without an answer, and why: the line has none then."""
    for ended in together:
        if isinstance(ended.outcome, Failure):
            place = "" if ended.line.choice is None else f"answer {ended.line.choice} of {ended.line.n}, from 0: "
            return ended, replace(ended.outcome, reason=f"{place}{ended.outcome.reason}")
    return None


def answers_of(together: Sequence[EndedLine]) -> list[tuple[Line, str, Answer]]:
    """Each choice with its job and its answer."""
    return [(ended.line, ended.job_id, ended.outcome) for ended in together if isinstance(ended.outcome, Answer)]
