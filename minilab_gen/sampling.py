"""From logits to the next token: temperature, softmax, top-k, top-p, renormalisation, draw, always in this order.

Sources: Fan et al. 2018, "Hierarchical Neural Story Generation" (top-k); Holtzman et al. 2020, "The Curious Case of
Neural Text Degeneration" (top-p).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from minilab_gen.errors import MiniLabError
from minilab_gen.kernels.sampler import TokenSampler
from minilab_gen.request import SamplingSettings


class NonFiniteLogitsError(MiniLabError):
    """A model that answered NaN or infinity: there is no next token."""


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
        probabilities = _nucleus(probabilities, settings.top_p)
    return probabilities / _total(probabilities)


def _total(probabilities: Tensor) -> Tensor:
    """The sum, added from left to right on however many threads."""
    return probabilities.cumsum(0)[-1]


def _nucleus(probabilities: Tensor, top_p: float) -> Tensor:
    """Probabilities (vocab,) with all but their nucleus set to 0; of equals the lowest ids stay."""
    falling, ids = probabilities.sort(descending=True, stable=True)
    before = F.pad(falling.cumsum(0)[:-1], (1, 0))
    outside = before >= top_p * _total(probabilities)
    outside[0] = False  # one token stays, however small top_p
    return probabilities.masked_fill(torch.zeros_like(outside).scatter_(0, ids, outside), 0.0)


class Sampler(TokenSampler):
    """Chooses the tokens of one sequence from logits, by the chain above in the kernels' arithmetic.

    It draws as ``torch.multinomial`` does with a generator of the request's seed.
    """

    def choose(self, logits: Tensor) -> int:
        """The next token id from its logits (vocab,). Raises NonFiniteLogitsError where there is none."""
        row = logits.to("cpu", torch.float32).contiguous()
        token = self.choose_at(row.data_ptr())
        if token < 0:
            raise NonFiniteLogitsError(f"non-finite logits: the highest is {row.max().item()}")
        return token
