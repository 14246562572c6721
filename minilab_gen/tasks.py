"""The function that RQ calls. It must work in any RQ worker that runs jobs in its own process, one at a time.

``minilab-worker`` runs the same jobs many at a time and does not call it.
"""

from __future__ import annotations

import os
from functools import cache
from typing import Any

from rq import get_current_job
from rq.job import Job
from rq.timeouts import JobTimeoutException

from minilab_gen.errors import JobCancelledError, JobTimeoutError, MiniLabError
from minilab_gen.protocol import keys
from minilab_gen.protocol.endings import has_expired
from minilab_gen.protocol.events import EndReason, Event
from minilab_gen.protocol.streams import publish, published_tokens
from minilab_gen.protocol.transcript import Transcript
from minilab_gen.request import GenerationRequest
from minilab_gen.tokenizer import BASE_CHECKPOINT, Tokenizer, get_tokenizer

MODEL_VARIABLE = "MINILAB_CHECKPOINT"
"""Environment variable with the checkpoint folder that :func:`generate` serves; the base model without it."""


@cache
def _served() -> tuple[Any, Tokenizer]:
    """The model of this process, loaded once, and its tokenizer."""
    from minilab_gen.model import load  # torch comes with the first job, not with the import

    folder = os.environ.get(MODEL_VARIABLE) or BASE_CHECKPOINT
    return load(folder), get_tokenizer(folder)


def generate(request: dict[str, Any]) -> dict[str, Any]:
    """Run one job to its end, publishing each token as it is chosen; returns the result that RQ keeps.

    A job that was interrupted goes on after the tokens in its stream. A job that fails, is cancelled or runs out of
    time gets its terminal entry and then raises, so that RQ records it.
    """
    job = get_current_job()
    if job is None:
        raise MiniLabError("generate must be called by an RQ worker, got no current job")
    return _Task(job, request).run()


class _Task:
    """One job in an ordinary RQ worker."""

    def __init__(self, job: Job, payload: dict[str, Any]) -> None:
        self._job, self._payload, self._connection = job, payload, job.connection
        self._running_ttl = int(job.timeout or keys.DEFAULT_TIMEOUT) + keys.RETENTION
        self._transcript = Transcript()

    def run(self) -> dict[str, Any]:
        """Generate to the end; whatever that is, the stream gets its terminal entry."""
        try:
            reason, stop_id = self._generate()
        except JobTimeoutException:
            self._end("timeout", phase="running")
            raise
        except JobTimeoutError:
            self._end("timeout", phase="waiting")
            raise
        except JobCancelledError:
            self._end("cancelled")
            raise
        except Exception as error:
            self._end("error", error=str(error))
            raise
        self._end(reason, stop_id=stop_id)
        return self._transcript.result()

    def _generate(self) -> tuple[EndReason, int | None]:
        from minilab_gen.engine import Chosen, Engine, Sequence

        request = GenerationRequest.from_payload(self._payload)
        self._transcript = Transcript(request)
        published, _ = published_tokens(self._connection, self._job.id)
        if not published and has_expired(self._job):  # one with tokens has started in time
            raise JobTimeoutError("the job waited longer than its ttl")
        model, tokenizer = _served()
        self._transcript = Transcript(request, tokenizer, published)
        engine = Engine(model, 1)
        engine.add(Sequence(self._job.id, request, self._transcript.ids))
        while engine.has_work:
            if self._connection.exists(keys.cancel_flag(self._job.id)):
                raise JobCancelledError(f"job {self._job.id} was cancelled")
            for outcome in engine.step():
                if isinstance(outcome, Chosen):
                    self._publish(self._transcript.add(outcome.token_id))
                elif outcome.reason == "error":
                    raise MiniLabError(outcome.error or "the engine gave no reason")
                else:
                    return outcome.reason, self._transcript.ids[-1] if outcome.reason == "stop" else None
        raise AssertionError("a sequence must leave the engine with a reason")

    def _end(self, reason: EndReason, **details: Any) -> None:
        self._publish(self._transcript.close(reason, **details))

    def _publish(self, event: Event) -> None:
        publish(self._connection, [(self._job.id, event)], running_ttl=self._running_ttl)
