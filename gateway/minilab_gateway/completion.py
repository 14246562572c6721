"""A completion: the jobs that answer one request, found again by its id. It must not know HTTP."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import redis

from minilab_gateway.notes import Note, RouteName, note_of
from minilab_gen.errors import RequestError, UnknownJobError
from minilab_gen.protocol.groups import jobs_named
from minilab_gen.protocol.jobs import fetch, model_of, request_of
from minilab_gen.text.call_reader import CallReading
from minilab_gen.text.tokenizer import Tokenizer

PREFIXES: Final[dict[RouteName, str]] = {"chat": "chatcmpl-", "text": "cmpl-", "response": "resp_"}
"""What OpenAI's ids begin with. Behind it stands the id of the job, or of the group of jobs."""


@dataclass(frozen=True, slots=True)
class Found:
    """What Redis holds about a completion."""

    name: str
    """The id of its job, or of their group."""
    job_ids: tuple[str, ...]
    model: str
    prompts: tuple[tuple[int, ...], ...]
    note: Note


@dataclass(frozen=True, slots=True)
class Completion:
    """A completion that can be answered: what Redis holds about it, and the tokenizer of its model."""

    found: Found
    tokenizer: Tokenizer

    @property
    def job_ids(self) -> tuple[str, ...]:
        return self.found.job_ids

    @property
    def model(self) -> str:
        return self.found.model

    def prompt_of(self, index: int) -> tuple[int, ...]:
        """The prompt that the answer at this place answers."""
        return self.prompts[index * len(self.prompts) // len(self.job_ids)]

    @property
    def prompts(self) -> tuple[tuple[int, ...], ...]:
        return self.found.prompts

    @property
    def note(self) -> Note:
        return self.found.note

    @property
    def calls(self) -> CallReading | None:
        """How calls of tools in the answers are read; None where they stay text."""
        return CallReading.of(self.note.calls)

    @property
    def public_id(self) -> str:
        return public_id(self.found.name, self.note.route)


def public_id(name: str, route: RouteName) -> str:
    """The id that a client is given."""
    return PREFIXES[route] + name


def find(connection: redis.Redis, given: str, route: RouteName, owner: str) -> Found | None:
    """The completion of this id, with its prefix or without; None where it is unknown, or another owner's.

    Without keys, that is to say for the owner "", also a job that no gateway made.
    """
    try:
        name = given.removeprefix(PREFIXES[route])
        job_ids = jobs_named(connection, name)
        job = fetch(connection, job_ids[0])
        note = note_of(job, route)
        count = note.prompts if len(job_ids) > 1 else 1  # the name may be that of one job of several
        others = [fetch(connection, each) for each in job_ids[:: len(job_ids) // count][1:]]
        prompts = tuple(request_of(each).prompt for each in (job, *others))
    except (RequestError, UnknownJobError):
        return None
    if note.owner != owner or note.route != route:
        return None
    return Found(name, tuple(job_ids), model_of(job), prompts, note)
