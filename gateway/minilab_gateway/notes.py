"""What a completion's job says about the request that made it, so that any gateway process can answer for it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from rq.job import Job

from minilab_gen.protocol.submission import notes_of

RouteName = Literal["chat", "text"]


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
    echo: bool = False
    """Whether the text of an answer begins with the prompt."""
    calls: dict[str, Any] | None = None
    """How calls of tools in the answers are read, as :class:`CallReading` has it; None where they stay text."""

    def to_json(self) -> dict[str, Any]:
        content = asdict(self)
        if self.calls is None:
            del content["calls"]  # gateways of earlier releases do not know it
        return content


def note_of(job: Job, route: RouteName) -> Note:
    """The note on a job; for a job that no gateway made, one that says what can be known of it."""
    try:
        return Note(**notes_of(job)["gateway"])
    except (KeyError, TypeError):
        return Note(route, "", int(job.created_at.timestamp()), "")
