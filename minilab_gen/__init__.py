"""MiniLab Gen for programs: submit, tail, cancel, result. It must not import torch: a client has none.

Each function opens a connection of its own to ``redis_url``, else to ``MINILAB_REDIS_URL``, else to the private server
of this user. What goes wrong is an error of :mod:`minilab_gen.errors`.

>>> job_id = submit("Phileas Fogg", max_new_tokens=40)      # doctest: +SKIP
>>> for event in tail(job_id):                              # doctest: +SKIP
...     print(event.text, end="", flush=True)
"""

from minilab_gen.api import cancel, result, submit, tail, tail_async
from minilab_gen.errors import MiniLabError
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
    "cancel",
    "result",
    "submit",
    "tail",
    "tail_async",
]
