"""Logprobs: natural logarithms of the probabilities that a model gives to tokens, before any setting of the request.

How they are held and spelled. It must know neither torch nor Redis.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from minilab_gen.errors import RequestError

MOST_LISTED: Final = 20
"""Most probable tokens that may be listed with each token: as many as OpenAI's API and vLLM list."""

MAX_OF_PROMPT: Final = 131_072
"""Logprobs of one prompt: those of its own tokens and those listed with them. They are kept as one value, of about 20
bytes for each; the longest prompt that is taken can have those of its own tokens."""

LEAST_LOGPROB: Final = -9999.0
"""What stands for the logarithm of 0, since JSON has no infinity: OpenAI's number for it."""


class TokenLogprobs(NamedTuple):
    """The logprob of one token, and of the most probable ones in its position. A tuple, as one is made per token.

    Each number is a float32 in its 9 significant digits, which hold all of its bits.
    """

    logprob: float
    top: tuple[tuple[int, float], ...] = ()
    """Ids and logprobs, most probable first, of equals the lowest ids. The token itself may be among them."""

    def to_json(self) -> dict[str, Any]:
        """As results and events show it."""
        return {"logprob": self.logprob, "top_logprobs": [list(pair) for pair in self.top]}

    @classmethod
    def from_json(cls, content: Any) -> TokenLogprobs:
        """The reverse of :meth:`to_json`. Raises ValueError for anything else."""
        try:
            return _read([content["logprob"], *content["top_logprobs"]])
        except (TypeError, KeyError) as error:
            raise ValueError(f"logprobs must be an object with logprob and top_logprobs, got {content!r}") from error

    def to_text(self) -> str:
        """As an entry of a token stream holds it: ``[logprob, [id, logprob], ...]``."""
        return json.dumps([self.logprob, *self.top], separators=(",", ":"), allow_nan=False)

    @classmethod
    def from_text(cls, text: str) -> TokenLogprobs:
        """The reverse of :meth:`to_text`. Raises ValueError for anything else."""
        return _read(json.loads(text))


def check_prompt_size(prompt_tokens: int, count: int | None) -> None:
    """Raise RequestError where logprobs of a prompt, with ``count`` tokens listed for each id, are too many to keep."""
    each = 0 if count is None else 1 + count
    if prompt_tokens * each > MAX_OF_PROMPT:
        raise RequestError(
            f"prompt_logprobs must come to at most {MAX_OF_PROMPT} logprobs, got {prompt_tokens} ids with {each} each; "
            f"list fewer than {count}, or score the text in parts"
        )


PromptLogprobs = tuple[TokenLogprobs | None, ...]
"""For each id of a prompt, given the ids before it; None for the first, before which there are none."""


def prompt_to_text(listed: Sequence[TokenLogprobs | None]) -> str:
    """As it is kept beside a token stream: a list of what an entry would hold, and null."""
    content = [None if one is None else [one.logprob, *one.top] for one in listed]
    return json.dumps(content, separators=(",", ":"), allow_nan=False)


def prompt_from_text(text: str) -> PromptLogprobs:
    """The reverse of :func:`prompt_to_text`. Raises ValueError for anything else."""
    content = json.loads(text)
    try:
        return tuple(None if one is None else _read(one) for one in content)
    except TypeError as error:
        raise ValueError(f"logprobs of a prompt must be a list, got {content!r}") from error


def prompt_to_json(listed: Sequence[TokenLogprobs | None]) -> list[dict[str, Any] | None]:
    """As results show it."""
    return [None if one is None else one.to_json() for one in listed]


def _read(content: Any) -> TokenLogprobs:
    try:
        own, *others = content
        made = TokenLogprobs(float(own), tuple((int(token), float(logprob)) for token, logprob in others))
    except TypeError as error:
        raise ValueError(f"logprobs must be a number and pairs of an id and a number, got {content!r}") from error
    if not all(map(math.isfinite, (made.logprob, *(logprob for _, logprob in made.top)))):
        raise ValueError(f"logprobs must be finite, got {content!r}")
    return made
