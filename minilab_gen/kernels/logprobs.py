"""Logprobs as the kernels compute them: room for those of a step, and those of one row of logits."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from minilab_gen.kernels.library import Listing, check, library
from minilab_gen.logprobs import TokenLogprobs


class LogprobRoom:
    """Which outputs of a step want logprobs, and what the step has said of them."""

    def __init__(self, counts: Sequence[int], judged: Sequence[int]) -> None:
        """For each output, ``counts`` most probable tokens are listed, -1 where nothing is wanted.

        ``judged`` are the ids whose own logprob is wanted, -1 for the one that is chosen.
        """
        outputs, self._most = len(counts), max(0, *counts)
        listed = bytes(4 * outputs * self._most)
        self._counts, self._judged = array("i", counts), array("i", judged)
        self._of_tokens = array("f", bytes(4 * outputs))
        self._ids, self._of_ids = array("i", listed), array("f", listed)
        rooms = (self._counts, self._judged, self._of_tokens, self._ids, self._of_ids)
        self.listing = Listing(self._most, *(room.buffer_info()[0] for room in rooms))
        """What a step is given; it points into this room."""

    def of(self, output: int) -> TokenLogprobs | None:
        """What is said of an output; None where that was not wanted, or its logits are not finite."""
        first, count = output * self._most, self._counts[output]
        if count < 0:
            return None
        return _made(self._of_tokens[output], self._ids[first : first + count], self._of_ids[first : first + count])


def logprobs_at(logits: int, vocab_size: int, token_id: int, count: int) -> TokenLogprobs | None:
    """Of a token and the ``count`` most probable ones, from logits (vocab,) of float32 at an address.

    None where they are not finite. Raises KernelError for an unknown id.
    """
    of_token, ids, of_ids = array("f", [0.0]), array("i", bytes(4 * count)), array("f", bytes(4 * count))
    addresses = [room.buffer_info()[0] for room in (of_token, ids, of_ids)]
    check(library().mlk_logprobs(logits, vocab_size, token_id, count, *addresses))
    return _made(of_token[0], ids, of_ids)


def _made(of_token: float, ids: Sequence[int], of_ids: Sequence[float]) -> TokenLogprobs | None:
    if of_token != of_token:  # noqa: PLR0124 - NaN
        return None
    top = tuple((token, _decimal(logprob)) for token, logprob in zip(ids, of_ids, strict=True) if token >= 0)
    return TokenLogprobs(_decimal(of_token), top)


def _decimal(number: float) -> float:
    """A float32 in 9 digits, which give its bits back and are half as long as those of its double."""
    return float(f"{number:.9g}")
