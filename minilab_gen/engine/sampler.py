"""The next token of many sequences at once, each by its own settings and generator, bit-equal to the reference.

It must not know about caches or places. :mod:`minilab_gen.sampling` is the reference; a test holds the two together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from minilab_gen.sampling import Sampler, nucleus_of_rows, total_of_rows

_NUCLEUS = 128
"""Most probable tokens among which a nucleus is looked for first."""


def choose(logits: Tensor, samplers: Sequence[Sampler]) -> list[int | None]:
    """The next token id of each row of logits (rows, vocab); None where the logits are not finite."""
    best, ids = logits.max(dim=-1)
    chosen: list[int | None] = [
        token if math.isfinite(highest) else None for token, highest in zip(ids.tolist(), best.tolist(), strict=True)
    ]
    drawn = [row for row, sampler in enumerate(samplers) if chosen[row] is not None and not sampler.settings.is_greedy]
    if drawn:
        tokens = _draw(logits[drawn].float().cpu(), [samplers[row] for row in drawn])
        for row, token in zip(drawn, tokens, strict=True):
            chosen[row] = token
    return chosen


def _draw(logits: Tensor, samplers: list[Sampler]) -> list[int]:
    """Draw one id from each row: where probability / noise is highest, as ``torch.multinomial`` does."""
    probabilities = _probabilities(logits, samplers)
    noise = torch.empty_like(probabilities)
    for row, sampler in zip(noise, samplers, strict=True):
        sampler.fill_noise(row)
    tokens: list[int] = (probabilities / noise).argmax(dim=-1).tolist()
    return tokens


def _probabilities(logits: Tensor, samplers: list[Sampler]) -> Tensor:
    """:func:`~minilab_gen.sampling.next_token_probabilities` of each row, (rows, vocab)."""
    settings = [sampler.settings for sampler in samplers]
    temperature = torch.tensor([s.divisor for s in settings])[:, None]
    probabilities = torch.softmax((logits - logits.max(dim=-1, keepdim=True).values) / temperature, dim=-1)
    vocab = probabilities.shape[-1]
    kept = [min(s.top_k or vocab, vocab) for s in settings]
    cut = [row for row, k in enumerate(kept) if k < vocab]
    if cut:
        k = torch.tensor([kept[row] for row in cut])
        falling = probabilities[cut].topk(int(k.max())).values
        kth = falling.gather(1, k[:, None] - 1)
        probabilities[cut] = probabilities[cut].masked_fill(probabilities[cut] < kth, 0.0)
    cut = [row for row, s in enumerate(settings) if s.top_p is not None and s.top_p < 1]
    if cut:
        top_p = torch.tensor([settings[row].top_p for row in cut])[:, None]
        probabilities[cut] = _nucleus(probabilities[cut], top_p)
    return probabilities / total_of_rows(probabilities)


def _nucleus(probabilities: Tensor, top_p: Tensor) -> Tensor:
    """:func:`~minilab_gen.sampling.nucleus_of_rows` without sorting whole rows (rows, vocab), where that is enough.

    The nucleus is usually a few of the most probable tokens, and finding those is ten times quicker than a sort. The
    sums over them are the same numbers, since both add from the most probable on.
    """
    looked_at = min(_NUCLEUS, probabilities.shape[-1])
    falling = probabilities.topk(looked_at).values
    before = falling.cumsum(-1).roll(1, -1)
    before[:, 0] = 0.0
    inside = before < top_p.to(probabilities) * total_of_rows(probabilities)
    inside[:, 0] = True
    kept = inside.sum(-1, keepdim=True)  # how many tokens each nucleus holds, (rows, 1)
    least = falling.gather(1, kept - 1)  # the probability of the last of them
    equals = probabilities == least
    wanted = kept - (probabilities > least).sum(-1, keepdim=True)  # of those equal to it, the lowest ids stay
    narrowed = probabilities.masked_fill((probabilities < least) | (equals & (equals.cumsum(-1) > wanted)), 0.0)
    wide = (kept[:, 0] == looked_at).nonzero()[:, 0]  # rows whose nucleus may be larger than what was looked at
    if len(wide):
        narrowed[wide] = nucleus_of_rows(probabilities[wide], top_p[wide])
    return narrowed
