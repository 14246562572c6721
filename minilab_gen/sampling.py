"""From logits to the next token, always in this order.

Bias, masks, penalties, temperature, softmax, top-k, top-p, min-p, renormalisation, draw. docs/sampling.md has the
formulas. Sources: Fan et al. 2018, "Hierarchical Neural Story Generation" (top-k); Holtzman et al. 2020, "The Curious
Case of Neural Text Degeneration" (top-p); Nguyen et al. 2024, "Turning Up the Heat" (min-p); Keskar et al. 2019, "CTRL"
(repetition penalty); OpenAI's API (presence and frequency penalty, logit bias).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from minilab_gen.errors import MiniLabError
from minilab_gen.kernels.sampler import NO_TOKEN, TokenSampler
from minilab_gen.sampling_settings import SamplingSettings


class NonFiniteLogitsError(MiniLabError):
    """A model that answered NaN or infinity: there is no next token."""


class NoTokenLeftError(MiniLabError):
    """Settings that exclude every token."""


def next_token_probabilities(
    logits: Tensor,
    settings: SamplingSettings,
    *,
    prompt: Sequence[int] = (),
    answered: Sequence[int] = (),
    stop_ids: Sequence[int] = (),
) -> Tensor:
    """Probabilities (vocab,) of the next token, from its logits (vocab,). Sum 1, never NaN, at least one above 0.

    Penalties, ``bad_words_ids`` and ``min_tokens`` look at the ids of the prompt and of the answer so far. The logits
    themselves stay as they are. Raises NoTokenLeftError where the settings exclude every token.
    """
    if settings.edits_logits:
        logits = _edited(logits, settings, prompt, answered, stop_ids)
    if settings.is_greedy:
        return torch.zeros_like(logits, dtype=torch.float32).index_fill_(0, logits.argmax(), 1.0)
    logits = logits.float()
    probabilities = torch.softmax((logits - logits.max()) / settings.divisor, dim=-1)
    if settings.top_k is not None and settings.top_k < len(probabilities):
        kth = probabilities.topk(settings.top_k).values[-1]
        probabilities = probabilities.masked_fill(probabilities < kth, 0.0)
    if settings.top_p is not None and settings.top_p < 1:
        probabilities = _nucleus(probabilities, settings.top_p)
    if settings.min_p > 0:
        probabilities = probabilities.masked_fill(probabilities < settings.min_p * probabilities.max(), 0.0)
    return probabilities / _total(probabilities)


def _edited(
    logits: Tensor, settings: SamplingSettings, prompt: Sequence[int], answered: Sequence[int], stop_ids: Sequence[int]
) -> Tensor:
    """A copy of logits (vocab,) with bias, masks and penalties; what cannot be chosen is at minus infinity."""
    logits = logits.float().clone()
    for token, bias in settings.logit_bias.items():
        logits[token] += bias
    if settings.allowed_token_ids is not None:
        excluded = torch.ones_like(logits, dtype=torch.bool).index_fill_(0, _ids(settings.allowed_token_ids), False)
        logits.masked_fill_(excluded, -math.inf)
    if len(answered) < settings.min_tokens:
        logits[_ids(stop_ids)] = -math.inf
    said = [*prompt, *answered]
    for *before, last in settings.bad_words_ids:
        if not before or said[-len(before) :] == before:
            logits[last] = -math.inf
    logits = _penalized(logits, settings, said, answered)
    if logits.max() == -math.inf:
        raise NoTokenLeftError(NO_TOKEN[-2])
    return logits


def _penalized(logits: Tensor, settings: SamplingSettings, said: Sequence[int], answered: Sequence[int]) -> Tensor:
    """Repetition penalty of what stands in prompt or answer, then frequency and presence penalty of the answer."""
    if settings.repetition_penalty != 1:
        ids = _ids(set(said))
        old, largest = logits[ids], torch.finfo(torch.float32).max
        new = torch.where(old > 0, old / settings.penalty, old * settings.penalty).clamp(-largest, largest)
        logits[ids] = torch.where(old == -math.inf, old, new)
    counts = Counter(answered)
    ids, times = _ids(counts), torch.tensor(list(counts.values()), dtype=torch.float32)
    logits[ids] -= settings.frequency_penalty * times
    logits[ids] -= settings.presence_penalty
    return logits


def _ids(ids: Iterable[int]) -> Tensor:
    return torch.tensor(list(ids), dtype=torch.long)


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
        """The next token id from its logits (vocab,). Raises NonFiniteLogitsError, NoTokenLeftError."""
        row = logits.to("cpu", torch.float32).contiguous()
        token = self.choose_at(row.data_ptr())
        if token == -1:
            raise NonFiniteLogitsError(f"{NO_TOKEN[token]}: the highest is {row.max().item()}")
        if token < 0:
            raise NoTokenLeftError(NO_TOKEN[token])
        return token
