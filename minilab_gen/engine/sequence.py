"""A sequence: a job inside the engine; and what a step says of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from minilab_gen.constraint import Constraint
from minilab_gen.kernels.sampler import TokenSampler
from minilab_gen.logprobs import PromptLogprobs, TokenLogprobs
from minilab_gen.request import GenerationRequest

EngineEnd = Literal["stop", "length", "context", "cancelled", "timeout", "error"]


class Sequence:
    """Ids so far, how many of them the cache holds, and the random generator of one job."""

    def __init__(
        self,
        name: str,
        request: GenerationRequest,
        answered: Iterable[int] = (),
        deadline: float | None = None,
        constraint: Constraint | None = None,
    ) -> None:
        """``answered`` are tokens chosen in an earlier run; ``deadline`` is on the clock of ``time.monotonic``.

        ``constraint`` is for a request with a form, of which the engine knows nothing; it has seen ``answered``.
        """
        self.name = name
        self.request = request
        self.deadline = deadline
        self.ids = [*request.prompt, *answered]
        self._prompt_tokens, self._most = len(request.prompt), len(request.prompt) + request.max_new_tokens
        self.read = 0
        """Ids whose keys and values are in the cache."""
        self.slot: int | None = None
        """Its row in the cache while it runs."""
        self.arrival = 0
        """Its turn: the number of its arrival in the engine."""
        self.sampler: TokenSampler | None = None
        """None for a sequence that takes the highest logits, and before the engine has it."""
        self.constraint = constraint
        """What its form allows; None where it may be anything."""

        self.scores: list[TokenLogprobs] = []
        """Logprobs of the prompt's tokens from the second on, as far as it is read, where they are wanted."""
        self.wants_logprobs = request.logprobs is not None or request.prompt_logprobs is not None
        """Of its tokens, or of its prompt's."""
        self.is_scored = request.prompt_logprobs is None or self._prompt_tokens == 1
        """Whether they are all there."""
        self.over: EngineEnd | None = None
        """Why no token will follow, where only these logprobs are to be computed."""

    @property
    def tokens(self) -> int:
        """Tokens of the answer so far."""
        return len(self.ids) - self._prompt_tokens

    @property
    def stop_id(self) -> int | None:
        """The stop id that ends the answer so far; None where none does."""
        last = self.ids[-1]
        return last if self.tokens and last in self.request.stop_ids else None

    @property
    def is_complete(self) -> bool | None:
        """Whether the answer so far is whole by its form; None where it has none."""
        return None if self.constraint is None else self.constraint.may_end

    @property
    def unread(self) -> int:
        """Ids that the cache does not hold yet: one while decoding, more before the prompt is read."""
        return (len(self.ids) if self.over is None else self._prompt_tokens - 1) - self.read

    def judged(self, tokens: int) -> range:
        """Positions among the next ``tokens`` unread ones after which a prompt's logprobs are still to be computed."""
        if self.is_scored:
            return range(0)
        return range(max(self.read, len(self.scores)), min(self.read + tokens, self._prompt_tokens - 1))

    def score(self, logprobs: TokenLogprobs) -> None:
        """Add what is known of the next token of the prompt."""
        self.scores.append(logprobs)
        self.is_scored = len(self.scores) == self._prompt_tokens - 1

    @property
    def prompt_logprobs(self) -> PromptLogprobs | None:
        """One for each id of the prompt, the first of which has none; None where they are not wanted, or not whole."""
        return (None, *self.scores) if self.is_scored and self.request.prompt_logprobs is not None else None

    def take(self, token_id: int) -> None:
        """Go on with the next token of the answer."""
        self.ids.append(token_id)
        if self.constraint is not None and token_id not in self.request.stop_ids:
            self.constraint.accept(token_id)

    def end_after(self, context_length: int) -> EngineEnd | None:
        """Why the sequence ends with its last token, or None if it goes on."""
        ids, stop_ids = self.ids, self.request.stop_ids
        length = len(ids)
        if length > self._prompt_tokens and stop_ids and ids[-1] in stop_ids:
            return "stop"
        if self.constraint is not None and self.constraint.must_end:
            return "stop"
        if length >= self._most:
            return "length"
        if length >= context_length:
            return "context"
        return None


class Chosen(NamedTuple):
    """A token was chosen for a sequence."""

    sequence: Sequence
    number: int
    """Its position in the answer, from 1."""
    token_id: int
    logprobs: TokenLogprobs | None = None
    """Where they are wanted."""


@dataclass(frozen=True, slots=True)
class Ended:
    """A sequence is no longer in the engine."""

    sequence: Sequence
    reason: EngineEnd
    error: str | None = None

    @property
    def stop_id(self) -> int | None:
        """The stop id that ended the answer, for ``stop``; None where its form did, after which nothing may come."""
        return self.sequence.stop_id if self.reason == "stop" else None

    @property
    def is_complete(self) -> bool | None:
        """Whether an answer that has a form is whole; None without one, or where it was not ended by itself."""
        return self.sequence.is_complete if self.reason in ("stop", "length", "context") else None


Outcome = Chosen | Ended
