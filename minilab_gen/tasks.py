"""The function that RQ calls. It must work in any RQ worker that runs jobs in its own process, one at a time.

``minilab-worker`` runs the same jobs many at a time and does not call it.
"""

from __future__ import annotations

import contextlib
import os
import time
from concurrent.futures import Future, wait
from functools import cache
from pathlib import Path
from threading import Thread
from typing import Any, Final

from rq import get_current_job
from rq.job import Job
from rq.timeouts import JobTimeoutException

from minilab_gen.constraints.compiler import FormCompiler
from minilab_gen.errors import JobCancelledError, JobTimeoutError, MiniLabError, RequestError, StreamError
from minilab_gen.logprobs import prompt_to_text
from minilab_gen.protocol import keys
from minilab_gen.protocol.clock import server_time
from minilab_gen.protocol.endings import has_expired
from minilab_gen.protocol.events import EndReason, Event
from minilab_gen.protocol.jobs import seconds_to_run
from minilab_gen.protocol.streams import publish, published_tokens
from minilab_gen.protocol.transcript import Transcript
from minilab_gen.request import GenerationRequest
from minilab_gen.text.tokenizer import BASE_CHECKPOINT, Tokenizer

MODEL_VARIABLE = "MINILAB_CHECKPOINT"
"""Environment variable with the checkpoint folder that :func:`generate` serves; the base model without it."""


_BEFORE_THE_ALARM: Final = 0.05
"""Seconds by which the engine's deadline comes before RQ's alarm: most jobs then end between two tokens, and are not
interrupted wherever they happen to be."""

_LOOK: Final = 0.1
"""Seconds between two looks at whether the model is loaded: how late RQ's alarm is noticed where a wait is not
interrupted by it."""


def _served() -> tuple[Any, Tokenizer, FormCompiler]:
    """The model of this process, loaded once, its tokenizer, and what compiles forms for it."""
    loading = _loading()
    _wait_for(loading)
    if loading.exception() is not None:
        _loading.cache_clear()  # the next job may find the folder in order
    return loading.result()


def _wait_for(working: Future[Any]) -> None:
    while not wait([working], _LOOK).done:
        pass


def _constraint_of(request: GenerationRequest, answered: list[int], compiler: FormCompiler) -> Any:
    """That of a request with a form, made in a thread of its own for the same reason as :func:`_loading`."""
    form = request.form
    if form is None:
        return None
    making: Future[Any] = Future()

    def make() -> None:
        try:
            making.set_result(compiler.start(form, answered, request.stop_ids))
        except BaseException as error:  # noqa: BLE001 - the job that waits for it raises it
            making.set_exception(error)

    Thread(target=make, name="form", daemon=True).start()
    _wait_for(making)
    return making.result()


@cache
def _loading() -> Future[tuple[Any, Tokenizer, FormCompiler]]:
    """The model and its tokenizer as they are loaded, in a thread of its own.

    RQ's alarm interrupts the main thread wherever it is. In the middle of an import of torch that would leave half of
    it behind, and no later job of this process could import the rest.
    """
    loading: Future[tuple[Any, Tokenizer, FormCompiler]] = Future()
    Thread(target=_load_into, args=(loading,), name="load").start()
    return loading


def _load_into(loading: Future[tuple[Any, Tokenizer, FormCompiler]]) -> None:
    try:
        import minilab_gen.engine  # noqa: F401 - not in the main thread, for the same reason
        from minilab_gen.models.checkpoint import load  # torch comes with the first job, not with the import
        from minilab_gen.models.source import checkpoint_of

        path = Path(os.environ.get(MODEL_VARIABLE) or BASE_CHECKPOINT)
        model, tokenizer = load(path), checkpoint_of(path).tokenizer()
        loading.set_result((model, tokenizer, FormCompiler(tokenizer, model.config.vocab_size)))
    except BaseException as error:  # noqa: BLE001 - the job that waits for it raises it
        loading.set_exception(error)


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
        self._seconds = seconds_to_run(job)
        self._deadline = time.monotonic() + self._seconds - _BEFORE_THE_ALARM
        self._transcript = Transcript()
        self._sequence: Any = None  # of the engine, which needs the kernels

    def run(self) -> dict[str, Any]:
        """Generate to the end; whatever that is, the stream gets its terminal entry."""
        try:
            reason, details = self._generate()
        except JobTimeoutException:
            self._end_unfinished("timeout", phase="running")
            raise
        except JobTimeoutError:
            self._end_unfinished("timeout", phase="waiting")
            raise
        except JobCancelledError:
            self._end_unfinished("cancelled")
            raise
        except Exception as error:
            is_refused = True if isinstance(error, RequestError) else None
            self._end_unfinished("error", error=str(error), refused=is_refused)
            raise
        self._end(reason, **details)
        return self._transcript.result()

    def _generate(self) -> tuple[EndReason, dict[str, Any]]:
        request = GenerationRequest.from_payload(self._payload)
        self._transcript = Transcript(request)
        published, _ = published_tokens(self._connection, self._job.id)
        # One with tokens has started in time.
        if not published and has_expired(self._job, server_time(self._connection)):
            raise JobTimeoutError("the job waited longer than its ttl")
        model, tokenizer, compiler = _served()
        from minilab_gen.engine import Chosen, Engine, Sequence

        self._transcript = Transcript(request, tokenizer, published)
        if self._transcript.has_stopped():  # whatever published it was killed before it could end the job
            return "stop", {}
        answered = self._transcript.ids
        constraint = _constraint_of(request, answered, compiler)
        engine = Engine(model, 1)
        self._sequence = Sequence(self._job.id, request, answered, self._deadline, constraint)
        engine.add(self._sequence)
        while engine.has_work:
            if self._connection.exists(keys.cancel_flag(self._job.id)):
                raise JobCancelledError(f"job {self._job.id} was cancelled")
            for outcome in engine.step():
                if isinstance(outcome, Chosen):
                    event = self._transcript.add(outcome.token_id, outcome.logprobs)
                    if self._transcript.has_stopped():
                        return "stop", {}  # the token goes out with the end
                    self._publish(event)
                elif outcome.reason == "timeout":
                    raise JobTimeoutException(f"the job ran for longer than its timeout of {self._seconds} s")
                elif outcome.reason == "error":
                    raise MiniLabError(outcome.error or "the engine gave no reason")
                else:
                    return outcome.reason, {"stop_id": outcome.stop_id, "complete": outcome.is_complete}
        raise AssertionError("a sequence must leave the engine with a reason")

    def _end_unfinished(self, reason: EndReason, **details: Any) -> None:
        """End what was interrupted, perhaps between a token and its publication: the stream says how far it came."""
        try:
            self._return_to_stream()
        except JobTimeoutException:  # RQ's alarm rings once
            self._return_to_stream()
        self._end(reason, **details)

    def _return_to_stream(self) -> None:
        with contextlib.suppress(StreamError):  # that is why it fails; a reader is told the same
            published, _ = published_tokens(self._connection, self._job.id)
            self._transcript.restart(published)

    def _end(self, reason: EndReason, **details: Any) -> None:
        """Publish the terminal entry, even if RQ's alarm rings meanwhile; to send it twice changes nothing.

        The token that completed a stop text goes with it, so that a stream which holds that has an end.
        """
        self._transcript.close(reason, **details)
        last = self._transcript.events[-2:] if reason == "stop" else self._transcript.events[-1:]
        try:
            self._publish(*last)
        except JobTimeoutException:  # which rings once
            self._publish(*last)

    def _publish(self, *events: Event) -> None:
        entries = [(self._job.id, event) for event in events]
        end = self._transcript.end
        scores = self._sequence.prompt_logprobs if end is not None and end.succeeded and self._sequence else None
        written = None if scores is None else prompt_to_text(scores)
        publish(self._connection, entries, running_ttl=self._seconds + keys.RETENTION, prompt_logprobs=written)
