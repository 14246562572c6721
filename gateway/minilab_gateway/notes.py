"""What a completion's job says about the request that made it, so that any gateway process can answer for it."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal

from rq.job import Job

from minilab_gen.protocol.submission import notes_of

RouteName = Literal["chat", "text", "response"]


@dataclass(frozen=True, slots=True)
class Note:
    """Part of the meta of each job of a completion."""

    route: RouteName
    owner: str
    """The name of the key; empty where none was asked for."""
    created: int
    """Unix time in seconds: every chunk gives it."""
    digest: str
    """Of the body: the same Idempotency-Key must come with the same one."""
    usage: bool = False
    """Whether the stream ends with a chunk of the usage."""
    event_ids: bool = True
    """Whether the events of the stream have ids; some readers take only lines of data."""
    echo: bool = False
    """Whether the text of an answer begins with the prompt."""
    calls: dict[str, Any] | None = None
    """How calls of tools in the answers are read, as :class:`CallReading` has it; None where they stay text."""
    response: list[Any] | None = None
    """What a response says besides; see :mod:`minilab_gateway.responses.notes`."""
    prompts: int = 1
    """How many there are: the first share of the jobs answers the first one, and so on."""
    new_tokens: int = 0
    """Of each answer at most; 0 where that is not known."""
    form: str = ""
    """The field of the body that says what form the answers must have."""

    def to_json(self) -> dict[str, Any]:
        """Without what is as usual, which gateways of earlier releases may not know."""
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        usual = {field.name: field.default for field in fields(self)}
        return {name: value for name, value in given.items() if value != usual[name]}


def note_of(job: Job, route: RouteName) -> Note:
    """The note on a job; for a job that no gateway made, one that says what can be known of it."""
    try:
        return Note(**notes_of(job)["gateway"])
    except (KeyError, TypeError):
        return Note(route, "", int(job.created_at.timestamp()), "")
