"""Several answers to one request: a group of jobs, each like any other, found again by the one id of the group.

No key holds a group. The ids of its jobs follow from its own, and each job's meta says to which group it belongs and
how many there are: so a group is known as long as one of its jobs is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import redis
from rq.job import Job

from minilab_gen.errors import RequestError
from minilab_gen.protocol import keys
from minilab_gen.protocol.events import JobState
from minilab_gen.request import MAX_ANSWERS, MAX_SEED, GenerationRequest

_MARK: Final = "group"
"""Field of a job's meta: ``id`` and ``n`` of its group, and its own ``index`` there."""


@dataclass(frozen=True, slots=True)
class Group:
    """The jobs that answer one request, by their common id."""

    group_id: str
    n: int

    @property
    def job_ids(self) -> list[str]:
        """In the order of their seeds."""
        return [_job_id(self.group_id, index) for index in range(self.n)]

    def mark(self, index: int) -> dict[str, Any]:
        """What the meta of one of its jobs says about it."""
        return {_MARK: {"id": self.group_id, "index": index, "n": self.n}}


def group_in(meta: Mapping[str, Any]) -> str | None:
    """The id of the group that the meta of a job names; None where it names none."""
    try:
        named = meta[_MARK]["id"]
    except (KeyError, TypeError):
        return None
    return named if isinstance(named, str) else None


def check_group_id(group_id: str) -> str:
    """The id, if the jobs of the largest group may be named after it; else RequestError."""
    longest = keys.LONGEST_JOB_ID - len(_job_id("", MAX_ANSWERS - 1))
    if len(keys.check_job_id(group_id)) > longest:
        raise RequestError(f"the job id of a group must be at most {longest} characters long, got {len(group_id)}")
    return group_id


def job_ids_of(name: str, n: int) -> list[str]:
    """The ids of the jobs that so many answers of this name have; one answer is a job with the very name."""
    return [name] if n == 1 else Group(name, n).job_ids


def seed_of(first: int, index: int) -> int:
    """The seed of an answer: the first one's, the next, and so on; after the largest comes 0."""
    return (first + index) % (MAX_SEED + 1)


def requests_of(request: GenerationRequest, n: int) -> list[GenerationRequest]:
    """The request of each answer: they differ in their seeds, where it is sampled."""
    return [request.with_seed(seed_of(request.settings.seed, index)) for index in range(n)]


def possible_keys(group_id: str) -> list[str]:
    """RQ's records of all jobs that a group of this id may have."""
    return [Job.key_for(_job_id(group_id, index)) for index in range(MAX_ANSWERS)]


def find_group(connection: redis.Redis, group_id: str) -> Group | None:
    """The group of this id; None where there is none, or all of its jobs have expired. Raises RequestError."""
    records = possible_keys(keys.check_job_id(group_id))
    if not connection.exists(*records):
        return None
    with connection.pipeline(transaction=False) as pipeline:
        for record in records:
            pipeline.hget(record, "meta")
        metas = pipeline.execute(raise_on_error=False)
    sizes = (_size(meta, group_id, index) for index, meta in enumerate(metas))
    return next((Group(group_id, n) for n in sizes if n is not None), None)


def jobs_named(connection: redis.Redis, name: str) -> list[str]:
    """The ids of the jobs of a group, or the name itself where it is that of a job, or of nothing that is known."""
    if connection.exists(Job.key_for(keys.check_job_id(name))):
        return [name]
    group = find_group(connection, name)
    return [name] if group is None else group.job_ids


def state_of_all(states: Sequence[JobState]) -> JobState:
    """The state of a group: it is over when all of its jobs are, and ends like the one that ended worst.

    A job that is cancelled while the others wait has started nothing.
    """
    if "queued" in states and all(state in ("queued", "cancelled") for state in states):
        return "queued"
    if any(state in ("queued", "started") for state in states):
        return "started"
    return "failed" if "failed" in states else "cancelled" if "cancelled" in states else "finished"


def _job_id(group_id: str, index: int) -> str:
    return f"{group_id}-{index}"


def _size(meta: Any, group_id: str, index: int) -> int | None:
    """How many jobs the group of this id has, by what the meta of its job says; None where it says something else."""
    try:
        mark = json.loads(meta)[_MARK]
        said = mark["id"], mark["index"], mark["n"]
    except (ValueError, TypeError, KeyError, RecursionError):  # no job, one of no group, or another program's
        return None
    n = said[2]
    is_ours = type(n) is int and index < n <= MAX_ANSWERS and said[:2] == (group_id, index)
    return n if is_ours else None
