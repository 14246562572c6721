"""From logits to the next token: temperature, softmax, top-k, top-p, renormalisation, draw, always in this order.

Sources: Fan et al. 2018, "Hierarchical Neural Story Generation" (top-k); Holtzman et al. 2020, "The Curious Case of
Neural Text Degeneration" (top-p).
"""

from __future__ import annotations

import torch
from torch import Tensor

from minilab_gen.errors import MiniLabError
from minilab_gen.request import SamplingSettings


class NonFiniteLogitsError(MiniLabError):
    """A model that answered NaN or infinity: there is no next token."""


def check_finite(logits: Tensor) -> None:
    """Raise NonFiniteLogitsError unless every logit is a number below infinity and one is above minus infinity."""
    highest = logits.max()  # NaN wins over everything
    if not torch.isfinite(highest):
        raise NonFiniteLogitsError(f"non-finite logits: the highest is {highest.item()}")


def next_token_probabilities(logits: Tensor, settings: SamplingSettings) -> Tensor:
    """Probabilities (vocab,) of the next token, from its logits (vocab,). Sum 1, never NaN, at least one above 0."""
    if settings.is_greedy:
        return torch.zeros_like(logits, dtype=torch.float32).index_fill_(0, logits.argmax(), 1.0)
    logits = logits.float()
    probabilities = torch.softmax((logits - logits.max()) / settings.divisor, dim=-1)
    if settings.top_k is not None and settings.top_k < len(probabilities):
        kth = probabilities.topk(settings.top_k).values[-1]
        probabilities = probabilities.masked_fill(probabilities < kth, 0.0)
    if settings.top_p is not None and settings.top_p < 1:
        probabilities = nucleus_of_rows(probabilities[None], torch.tensor([[settings.top_p]]))[0]
    return probabilities / total_of_rows(probabilities)


def total_of_rows(probabilities: Tensor) -> Tensor:
    """The sum over the last dimension, kept as a dimension of 1, added from left to right whatever stands beside it.

    ``sum`` splits a lone long row between threads and many rows otherwise, so the two would differ in the last bit.
    """
    return probabilities.cumsum(-1)[..., -1:]


def nucleus_of_rows(probabilities: Tensor, top_p: Tensor) -> Tensor:
    """Rows (rows, vocab) with all but their nucleus at ``top_p`` (rows, 1) set to 0; of equals the lowest ids stay."""
    falling, ids = probabilities.sort(dim=-1, descending=True, stable=True)
    before = falling.cumsum(-1).roll(1, -1)
    before[:, 0] = 0.0
    outside = before >= top_p.to(probabilities) * total_of_rows(probabilities)
    outside[:, 0] = False  # one token stays, however small top_p
    return probabilities.masked_fill(torch.zeros_like(outside).scatter_(-1, ids, outside), 0.0)


class Sampler:
    """Chooses the tokens of one sequence, with a generator of its own that moves once per token."""

    def __init__(self, settings: SamplingSettings, vocab_size: int) -> None:
        self.settings = settings
        self._vocab_size = vocab_size
        self._generator = torch.Generator().manual_seed(settings.seed)

    def choose(self, logits: Tensor) -> int:
        """The next token id from its logits (vocab,). Raises NonFiniteLogitsError where there is none."""
        check_finite(logits)
        if self.settings.is_greedy:
            return int(logits.argmax())
        probabilities = next_token_probabilities(logits.cpu(), self.settings)
        return int(torch.multinomial(probabilities, 1, generator=self._generator))

    def fill_uniform(self, row: Tensor) -> None:
        """Fill a float64 row (vocab,) with the numbers of one draw, from 0 to 1, each of which decides about one token.

        ``torch.multinomial`` draws one sample by a race: it makes -log(1 - u) of each number u and takes the token for
        which probability over that is highest. Taking the numbers out of it lets many sequences be decided at once.
        """
        row.uniform_(generator=self._generator)

    def skip(self, tokens: int) -> None:
        """Move the generator past tokens that were chosen before, so that a resumed sequence goes on as it would."""
        if not self.settings.is_greedy:
            row = torch.empty(self._vocab_size, dtype=torch.float64)
            for _ in range(tokens):
                self.fill_uniform(row)
