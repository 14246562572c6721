"""The transcript of a job: every event of its stream so far, and the text that its next token will add."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from minilab_gen.logprobs import TokenLogprobs
from minilab_gen.protocol.events import EndEvent, EndReason, Event, TokenEvent
from minilab_gen.request import GenerationRequest
from minilab_gen.text.stop_texts import StopTexts
from minilab_gen.text.stream_decoder import StreamDecoder
from minilab_gen.text.tokenizer import Tokenizer


class Transcript:
    """Token events, then one terminal event.

    ``request`` is None where the job holds none that can run; such a job gets its terminal event and no token.
    """

    def __init__(
        self, request: GenerationRequest | None = None, tokenizer: Tokenizer | None = None, events: Iterable[Event] = ()
    ) -> None:
        """``events`` are those that the stream holds already."""
        self._prompt, self._stop_ids = (request.prompt, request.stop_ids) if request else ((), ())
        self._stop, self._include_stop = (request.stop, request.include_stop) if request else ((), False)
        self._lists = request.logprobs if request else None
        self._min_tokens = request.settings.min_tokens if request else 0
        self._has_form = request is not None and request.form is not None
        self._tokenizer = tokenizer
        self.events: list[Event] = []
        self.restart(events)

    @property
    def prompt_tokens(self) -> int:
        return len(self._prompt)

    @property
    def end(self) -> EndEvent | None:
        """The terminal event, once there is one."""
        last = self.events[-1] if self.events else None
        return last if isinstance(last, EndEvent) else None

    @property
    def tokens(self) -> int:
        """Tokens of the answer so far."""
        return len(self.events) - (self.end is not None)

    @property
    def ids(self) -> list[int]:
        """The token ids of the answer so far."""
        return [event.token_id for event in self.events if isinstance(event, TokenEvent)]

    @property
    def text(self) -> str:
        """The answer so far."""
        return "".join([event.text for event in self.events])

    def has_stopped(self) -> bool:
        """Whether a stop text is complete: the answer has ended, and no token may follow."""
        return self._stops is not None and self._stops.found is not None

    def add(self, token_id: int, logprobs: TokenLogprobs | None = None) -> TokenEvent:
        """Append the event of the next token."""
        assert self._decoder is not None, "a job without a request has no tokens"
        number = len(self.events) + 1
        text = "" if token_id in self._stop_ids else self._decoder.push(token_id)
        if self._stops is not None:
            text = self._stops.push(text, counts=number > self._min_tokens)
        event = TokenEvent(number, token_id, text, logprobs)
        self.events.append(event)
        return event

    def close(self, reason: EndReason, **details: Any) -> EndEvent:
        """Append the terminal event, with what text is left.

        Its reason is ``stop`` where a whole answer holds a stop text, also in what is left of it.
        """
        assert self.end is None, "a transcript ends once"
        return self._append_end(EndEvent(reason, len(self.events), self.prompt_tokens, **details))

    def adopt(self, stream: list[Event]) -> None:
        """Go on from what the stream holds, to which another worker may have written.

        It writes the same tokens, but can be ahead, and can have ended the job. A job has one end: that in the stream,
        or else ours, behind the tokens there.
        """
        if stream and isinstance(stream[-1], EndEvent):
            self.events = list(stream)
        elif self.end is not None and len(stream) >= self.end.number:
            end = self.end
            self.restart(stream)
            reason = "stop" if self.has_stopped() else end.reason
            self._append_end(replace(end, reason=reason, tokens=len(stream)))

    def restart(self, events: Iterable[Event]) -> None:
        """Begin again behind these events."""
        self.events = list(events)
        self._decoder = self._tokenizer.decoder(self._prompt) if self._tokenizer else None
        self._stops = StopTexts(self._stop, include=self._include_stop) if self._stop else None
        if self._decoder is not None:
            self._read(self._decoder, self.ids)

    def drop_decoder(self) -> None:
        """Add no more text: the decoder failed."""
        self._tokenizer = self._decoder = None

    def result(self) -> dict[str, Any]:
        """What RQ keeps as the return value of the job."""
        end = self.end
        assert end is not None, "a result is asked of a job that has ended"
        listed = {} if self._lists is None else {"logprobs": [one.to_json() for one in self._logprobs]}
        return {"ids": self.ids} | end.to_json() | {"text": self.text} | listed

    @property
    def _logprobs(self) -> list[TokenLogprobs]:
        return [event.logprobs for event in self.events if isinstance(event, TokenEvent) and event.logprobs is not None]

    def _read(self, decoder: StreamDecoder, ids: Iterable[int]) -> None:
        """Have what tells the text of the next token see the tokens before it."""
        for number, token_id in enumerate(ids, start=1):
            text = "" if token_id in self._stop_ids else decoder.push(token_id)
            if self._stops is not None:
                self._stops.push(text, counts=number > self._min_tokens)

    def _append_end(self, end: EndEvent) -> EndEvent:
        end = replace(end, text=self._rest(end.tokens))
        if end.succeeded and self._stops is not None and self._stops.found is not None:
            complete = False if self._has_form else None  # the text was cut within the form
            end = EndEvent(
                "stop", end.tokens, end.prompt_tokens, end.text, stop_text=self._stops.found, complete=complete
            )
        self.events.append(end)
        return end

    def _rest(self, tokens: int) -> str:
        text = self._decoder.flush() if self._decoder else ""
        if self._stops is None:
            return text
        return self._stops.push(text, counts=tokens > self._min_tokens) + self._stops.flush()
