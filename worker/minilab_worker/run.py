"""A run: one job while this worker serves it. It must not know about its neighbours or about threads."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from minilab_gen.engine import Chosen, Ended, Sequence
from minilab_gen.errors import RequestError
from minilab_gen.protocol import keys
from minilab_gen.protocol.events import EndEvent, EndReason, Event, TokenEvent
from minilab_gen.protocol.jobs import seconds_to_run
from minilab_gen.request import GenerationRequest
from minilab_gen.stream_decoder import StreamDecoder
from minilab_gen.tokenizer import Tokenizer
from minilab_worker.claims import Claim


class Run:
    """A job, its sequence in the engine, and every event of its stream until it has ended.

    The events are kept so that a stream can be made whole after a lost connection.
    """

    def __init__(self, claim: Claim, request: GenerationRequest | None, tokenizer: Tokenizer) -> None:
        """``request`` is None where the job holds none that can run; then :meth:`end_at_once` must follow."""
        self.job, self.execution = claim.job, claim.execution
        self.job_id = str(claim.job.id)
        self._tokenizer = tokenizer
        self._prompt, self._stop_ids = (request.prompt, request.stop_ids) if request else ((), ())
        self.events: list[Event] = list(claim.stream)
        self.confirmed = self.sent = len(self.events)
        """Events that stand in the stream for sure, and that are on their way there."""
        self.resumed_at = len(self._tokens)
        """Tokens that other workers chose before."""
        self.began = time.monotonic()
        self.submitted = _submitted_at(claim)
        """On the same clock; None where RQ does not say."""
        self.last_token: float | None = None
        """When this worker chose one for it last."""
        self._decoder = self._decoder_after(self._tokens)
        timeout = seconds_to_run(claim.job)
        self.running_ttl = timeout + keys.RETENTION
        """Seconds that the stream lives if nobody ends it."""
        self.sequence: Sequence | None = None
        """None where there is nothing to compute."""
        if request is not None and self.end is None:
            answered = [token.token_id for token in self._tokens]
            self.sequence = Sequence(self.job_id, request, answered, deadline=time.monotonic() + timeout)

    @property
    def end(self) -> EndEvent | None:
        """Its terminal entry, once there is one."""
        last = self.events[-1] if self.events else None
        return last if isinstance(last, EndEvent) else None

    @property
    def is_refused(self) -> bool:
        """Whether its job holds no request that can run."""
        return not self.prompt_tokens

    @property
    def tokens(self) -> int:
        """Tokens of the answer so far."""
        return len(self.events) - (self.end is not None)

    @property
    def text(self) -> str:
        """The answer so far."""
        return "".join(event.text for event in self.events)

    @property
    def is_published(self) -> bool:
        """Whether its terminal entry stands in the stream."""
        return self.end is not None and self.confirmed == len(self.events)

    @property
    def holder(self) -> tuple[str, str]:
        """A sorted set in RQ's books and the member that it has while this worker holds the job."""
        return str(self.job.execution_registry.key), str(self.execution.id)

    def take(self, outcome: Chosen | Ended) -> None:
        """Add the event that an outcome of the engine makes."""
        if isinstance(outcome, Chosen):
            text = self._text_of(outcome.token_id, self._decoder)
            self.events.append(TokenEvent(outcome.number, outcome.token_id, text))
            return
        stop_id = outcome.sequence.ids[-1] if outcome.reason == "stop" else None
        phase = "running" if outcome.reason == "timeout" else None
        self.end_at_once(outcome.reason, stop_id=stop_id, error=outcome.error, phase=phase)

    def end_at_once(self, reason: EndReason, **details: Any) -> None:
        """Add the terminal entry, unless there is one."""
        if self.end is None:
            text = self._decoder.flush()
            self.events.append(EndEvent(reason, len(self.events), self.prompt_tokens, text=text, **details))

    def fail(self, error: Exception) -> None:
        """Add the terminal entry for something that went wrong with this job alone."""
        self._decoder = self._tokenizer.decoder(())  # the one in use may be what failed
        why = str(error) if isinstance(error, RequestError) else f"{type(error).__name__}: {error}"
        self.end_at_once("error", error=why)

    def agree_with(self, stream: list[Event]) -> None:
        """Make the run go on from what its stream holds, which others may have written, too.

        They write the same tokens, but can be ahead, and can have ended the job; one end is all that it may have.
        """
        if stream and isinstance(stream[-1], EndEvent):
            self.events = list(stream)
        elif self.end is not None and len(stream) >= self.end.number:
            self._decoder = self._decoder_after(stream)
            end = replace(self.end, tokens=len(stream), text=self._decoder.flush())
            self.events = [*stream, end]
        self.confirmed = self.sent = min(len(stream), len(self.events))

    def result(self) -> dict[str, Any]:
        """What RQ keeps as the return value of the job."""
        end = self.end
        assert end is not None, "a result is asked of a run that has ended"
        return {"ids": [token.token_id for token in self._tokens]} | end.to_json() | {"text": self.text}

    @property
    def _tokens(self) -> list[TokenEvent]:
        return [event for event in self.events if isinstance(event, TokenEvent)]

    @property
    def prompt_tokens(self) -> int:
        return len(self._prompt)

    def _decoder_after(self, events: Iterable[Event]) -> StreamDecoder:
        """A decoder that has seen these tokens."""
        decoder = self._tokenizer.decoder(self._prompt)
        for event in events:
            if isinstance(event, TokenEvent):
                self._text_of(event.token_id, decoder)
        return decoder

    def _text_of(self, token_id: int, decoder: StreamDecoder) -> str:
        """What becomes printable with a token; nothing with the one that ends the text."""
        return "" if token_id in self._stop_ids else decoder.push(token_id)


def _submitted_at(claim: Claim) -> float | None:
    """When a job was put into its queue, on the monotonic clock; that of the client, which noted it, may differ."""
    noted = claim.job.enqueued_at
    return None if noted is None else time.monotonic() - max(0.0, time.time() - noted.timestamp())
