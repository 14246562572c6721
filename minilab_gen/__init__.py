"""MiniLab Gen for programs: submit, tail, cancel, result. It must not import torch: a client has none.

Each function opens a connection of its own to ``redis_url``, else to ``MINILAB_REDIS_URL``, else to the private server
of this user. What goes wrong is an error of :mod:`minilab_gen.errors`.

>>> job_id = submit("Phileas Fogg", max_new_tokens=40)      # doctest: +SKIP
>>> for event in tail(job_id):                              # doctest: +SKIP
...     print(event.text, end="", flush=True)

A name is loaded when it is first used, since every import of a module below comes through here, and RQ and redis-py
take a quarter of a second.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from minilab_gen.api import cancel, job_ids, result, results, submit, tail, tail_async
    from minilab_gen.errors import MiniLabError
    from minilab_gen.logprobs import TokenLogprobs
    from minilab_gen.protocol.events import EndEvent, TokenEvent
    from minilab_gen.protocol.results import JobResult
    from minilab_gen.request import GREEDY, GenerationRequest, SamplingSettings

__all__ = [
    "GREEDY",
    "EndEvent",
    "GenerationRequest",
    "JobResult",
    "MiniLabError",
    "SamplingSettings",
    "TokenEvent",
    "TokenLogprobs",
    "cancel",
    "job_ids",
    "result",
    "results",
    "submit",
    "tail",
    "tail_async",
]

_HOMES = {
    **dict.fromkeys(("cancel", "job_ids", "result", "results", "submit", "tail", "tail_async"), "minilab_gen.api"),
    **dict.fromkeys(("GREEDY", "GenerationRequest", "SamplingSettings"), "minilab_gen.request"),
    **dict.fromkeys(("EndEvent", "TokenEvent"), "minilab_gen.protocol.events"),
    "JobResult": "minilab_gen.protocol.results",
    "MiniLabError": "minilab_gen.errors",
    "TokenLogprobs": "minilab_gen.logprobs",
}
"""The module of each name."""


def __getattr__(name: str) -> Any:
    """Load a name's module (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(_HOMES[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
