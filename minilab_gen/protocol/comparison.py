"""Whether two token streams give the same answer, and if not, where they part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from minilab_gen.logprobs import PromptLogprobs
from minilab_gen.protocol.events import EndEvent, TokenEvent


@dataclass(frozen=True, slots=True)
class EndedStream:
    """The contents of a stream that has ended."""

    tokens: Sequence[TokenEvent]
    end: EndEvent
    prompt_logprobs: PromptLogprobs | None = None
    """What is kept beside it."""


@dataclass(frozen=True, slots=True)
class Difference:
    """The first thing in which two answers differ."""

    message: str
    """In words."""
    token: int | None = None
    """The number of the token; None where the ends differ."""
    stored: TokenEvent | None = None
    recomputed: TokenEvent | None = None


def first_difference(stored: EndedStream, recomputed: EndedStream) -> Difference | None:
    """Compare token ids, texts, logprobs, and the ends, of which those of a job that was stopped say nothing."""
    difference = _of_tokens(stored.tokens, recomputed.tokens)
    if difference is not None or len(stored.tokens) != len(recomputed.tokens):
        return difference or _longer(stored, recomputed)
    if not stored.end.succeeded:
        return None
    for name in ("reason", "stop_id", "stop_text", "complete", "text"):
        one_end, other_end = getattr(stored.end, name), getattr(recomputed.end, name)
        if one_end != other_end:
            return Difference(f"the end differs in its {name}: stored {one_end!r}, recomputed {other_end!r}")
    return _of_prompts(stored.prompt_logprobs, recomputed.prompt_logprobs)


def _of_tokens(stored: Sequence[TokenEvent], recomputed: Sequence[TokenEvent]) -> Difference | None:
    """The first difference as far as both go."""
    for one, other in zip(stored, recomputed, strict=False):
        if one.token_id != other.token_id:
            message = f"token {one.number} differs: stored {_shown(one)}, recomputed {_shown(other)}"
            return Difference(message, one.number, one, other)
        if one.text != other.text:
            message = f"the text of token {one.number} differs: stored {one.text!r}, recomputed {other.text!r}"
            return Difference(message, one.number, one, other)
        if one.logprobs != other.logprobs:
            message = f"the logprobs of token {one.number} differ: stored {_listed(one)}, recomputed {_listed(other)}"
            return Difference(message, one.number, one, other)
    return None


def _of_prompts(stored: PromptLogprobs | None, recomputed: PromptLogprobs | None) -> Difference | None:
    """The first difference in what was kept; it may have been lost."""
    for position, (one, other) in enumerate(zip(stored or (), recomputed or (), strict=False)):
        if one != other:
            return Difference(f"the logprobs of prompt token {position} differ: stored {one}, recomputed {other}")
    if stored is not None and len(stored) != len(recomputed or ()):
        return Difference(f"{len(stored)} prompt tokens have logprobs, recomputed {len(recomputed or ())}")
    return None


def _longer(stored: EndedStream, recomputed: EndedStream) -> Difference:
    """One answer begins like the other and goes on."""
    ours, others = len(stored.tokens), len(recomputed.tokens)
    if ours > others:
        token = stored.tokens[others]
        message = f"token {token.number} differs: stored {_shown(token)}, recomputed none"
        return Difference(message, token.number, token, None)
    token = recomputed.tokens[ours]
    return Difference(
        f"token {token.number} differs: stored none, recomputed {_shown(token)}", token.number, None, token
    )


def _listed(token: TokenEvent) -> str:
    return "none" if token.logprobs is None else token.logprobs.to_text()


def _shown(token: TokenEvent) -> str:
    return f"{token.token_id} ({token.text!r})"
