"""The next token of many sequences at once, each by its own settings and generator, bit-equal to the reference.

It knows logits and settings only. :mod:`minilab_gen.sampling` is the reference; a test holds the two together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from minilab_gen.sampling import Sampler, nucleus_of_rows, total_of_rows

_NUCLEI = (128, 4096)
"""Most probable tokens among which a nucleus is looked for, before all are sorted."""

_LATE = 11.0
"""Noise above which it is made exactly at once: the random number is then so near 1, closer than 2e-5, that float32 has
lost what is left to 1, or takes it for 1, and no such token could win. That is one number in sixty thousand."""

_NEARLY = 0.98
"""Share of the best score in float32 that a token must have to be scored exactly. Where the noise is just not late, a
score in float32 is wrong by up to two parts in ten thousand."""

_LEAST_NOISE = 1e-30
"""In place of 0, by which nothing can be divided."""


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
    """Draw one id from each row: where probability / noise is highest, as ``torch.multinomial`` does.

    The noise is -log(1 - u), in float64. That takes most of the time, so it is made in float32, and again exactly for
    the few tokens for which that is not enough or that come near the best.
    """
    probabilities = _probabilities(logits, samplers)
    uniform = torch.empty(probabilities.shape, dtype=torch.float64)
    for row, sampler in zip(uniform, samplers, strict=True):
        sampler.fill_uniform(row)
    noise = uniform.float().neg_().log1p_().neg_().clamp_(min=_LEAST_NOISE)
    late = (noise > _LATE).nonzero(as_tuple=True)
    noise[late] = _exact_noise(uniform[late])
    scores = torch.div(probabilities, noise, out=noise)
    near = scores >= _NEARLY * scores.max(dim=-1, keepdim=True).values
    rows, ids = near.nonzero(as_tuple=True)
    scores = probabilities[rows, ids] / _exact_noise(uniform[rows, ids])
    winners: dict[int, tuple[float, int]] = {}
    for row, token, score in zip(rows.tolist(), ids.tolist(), scores.tolist(), strict=True):
        if row not in winners or score > winners[row][0]:  # of equals the first
            winners[row] = (score, token)
    return [winners[row][1] for row in range(len(samplers))]


def _exact_noise(uniform: Tensor) -> Tensor:
    """-log(1 - u) of a few numbers (count,), rounded once."""
    return torch.tensor([-math.log1p(-u) for u in uniform.tolist()], dtype=torch.float64).float()


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
        kth = torch.zeros(len(settings), 1)
        kth[cut] = falling.gather(1, k[:, None] - 1)
        probabilities.masked_fill_(probabilities < kth, 0.0)
    cut = [row for row, s in enumerate(settings) if s.top_p is not None and s.top_p < 1]
    if cut:
        top_p = torch.tensor([settings[row].top_p for row in cut])[:, None]
        probabilities[cut] = _nucleus(probabilities[cut], top_p)
    return probabilities / total_of_rows(probabilities)


def _nucleus(probabilities: Tensor, top_p: Tensor, widths: Sequence[int] = _NUCLEI) -> Tensor:
    """:func:`~minilab_gen.sampling.nucleus_of_rows` without sorting whole rows (rows, vocab), where that is enough.

    The nucleus is usually a few of the most probable tokens, and finding those is ten times quicker than a sort. The
    sums over them are the same numbers, since both add from the most probable on.
    """
    if not widths or widths[0] >= probabilities.shape[-1]:
        return nucleus_of_rows(probabilities, top_p)
    falling = probabilities.topk(widths[0]).values
    before = falling.cumsum(-1).roll(1, -1)
    before[:, 0] = 0.0
    inside = before < top_p.to(probabilities) * total_of_rows(probabilities)
    inside[:, 0] = True
    kept = inside.sum(-1, keepdim=True)  # how many tokens each nucleus holds, (rows, 1)
    least = falling.gather(1, kept - 1)  # the probability of the last of them
    outside = probabilities < least
    narrowed = probabilities.masked_fill(outside, 0.0)
    # Not so where the nucleus may hold more tokens than were looked at, or where not all that equal its last are in it.
    wide = kept[:, 0] == widths[0]
    tied = outside.sum(-1) < probabilities.shape[-1] - kept[:, 0]
    for rows, further in ((wide, widths[1:]), (tied & ~wide, ())):
        if rows.any():
            narrowed[rows] = _nucleus(probabilities[rows], top_p[rows], further)
    return narrowed
