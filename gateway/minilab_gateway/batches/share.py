"""What the jobs of a batch may use of the limits of its key: they wait for room, and leave some for requests."""

from __future__ import annotations

from minilab_gateway.api_keys import ApiKey
from minilab_gateway.batches.batch import NewBatch
from minilab_gateway.limits import Limits
from minilab_gen.request import GenerationRequest


class Share:
    """The share of one batch. Its calls block, with one round trip each."""

    def __init__(self, asked: NewBatch, limits: Limits) -> None:
        self._limits = limits
        self._key = ApiKey(asked.owner, tokens_per_minute=asked.tokens_per_minute, jobs=asked.jobs)

    def admit(self, job_id: str, request: GenerationRequest) -> bool:
        """Count a job, once however often this is called; False where there is no room for it now."""
        refused, *_ = self._limits.reserve(self._key, [job_id], len(request.prompt), request.max_new_tokens)
        return not refused

    def give_back(self, job_id: str, request: GenerationRequest) -> None:
        """Count a job no more, since its queue has refused it."""
        self._limits.release(self._key, [job_id], len(request.prompt))


def share_of(asked: NewBatch, limits: Limits) -> Share | None:
    """The share of a batch; None where nothing limits its key."""
    return None if asked.jobs is None and asked.tokens_per_minute is None else Share(asked, limits)
