"""Whether this machine keeps the exactness contract: the worker asks before it serves. It must not know about Redis.

The engine runs random sequences in the batches that the worker will use, with prompts read in chunks and neighbours
that come and go, and every row of logits must equal that of the reference, which reads each sequence whole.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from minilab_gen.engine import Engine, Sequence
from minilab_gen.model import MiniLabModel
from minilab_gen.request import GenerationRequest

_SEED: Final = 20_261_129
_LONGEST: Final = 300
"""Ids of a checked prompt at most: enough for several blocks of keys. One prompt has as many, whatever the model."""
_SHORTEST: Final = 8
"""Ids of the longest prompts where the model is so large that more would take minutes."""
_WORK: Final = 1e11
"""Multiplications that the check may take: a second or two of two cores."""
_BATCHES: Final = (1, 3, 8)
"""Batch sizes checked besides the worker's own."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """How many rows of logits were compared and how many differed."""

    rows: int
    different: int
    gap: float
    """The largest difference of a logit."""

    @property
    def is_exact(self) -> bool:
        return self.different == 0

    def __str__(self) -> str:
        if self.is_exact:
            return f"exact: {self.rows} rows of logits equal bit for bit"
        return f"not exact: {self.different} of {self.rows} rows of logits differ, by at most {self.gap:.1e}"


def check_exactness(model: MiniLabModel, max_batch: int, threads: int | None) -> Verdict:
    """Compare the engine with the reference on the shapes that a worker of ``max_batch`` places will use."""
    if threads:
        torch.set_num_threads(threads)
    dice = random.Random(_SEED)
    batches = sorted({*_BATCHES, max_batch})
    longest = _longest_prompt(model, sum(batches) + len(batches))
    rows = different = 0
    gap = 0.0
    for batch in batches:
        for sequence, chosen_from in _run(model, batch, longest, dice):
            with torch.no_grad():
                logits, _ = model(torch.tensor([sequence.ids[:-1]], device=model.device))
            expected = logits[0, len(sequence.request.prompt) - 1 :]
            for ours, theirs in zip(chosen_from, expected, strict=True):
                rows += 1
                if not torch.equal(ours, theirs):
                    different += 1
                    gap = max(gap, float((ours - theirs).abs().max()))
    return Verdict(rows, different, gap)


def _longest_prompt(model: MiniLabModel, sequences: int) -> int:
    """How long the prompts of so many sequences may be: each is read twice, and half as long on average."""
    affordable = _WORK / (sequences * model.config.multiplications)
    return int(max(_SHORTEST, min(_LONGEST, affordable)))


def _run(model: MiniLabModel, batch: int, longest: int, dice: random.Random) -> list[tuple[Sequence, list[Tensor]]]:
    """Random sequences through an engine of ``batch`` places, with the logits that each token was chosen from."""
    most = model.config.context_length - 1
    seen: dict[str, list[Tensor]] = {}
    engine = Engine(
        model, batch, prefill_tokens=48, on_logits=lambda s, row: seen.setdefault(s.name, []).append(row.clone())
    )
    sequences = []
    for number in range(batch + 1):  # one more than there are places, so that one waits and takes over another's
        is_the_long_one = batch == _BATCHES[-1] and number == batch // 2
        length = _LONGEST if is_the_long_one else dice.randint(1, longest)
        prompt = tuple(dice.randrange(model.config.vocab_size) for _ in range(min(length, most)))
        sequences.append(Sequence(str(number), GenerationRequest(prompt, max_new_tokens=dice.randint(2, 6))))
        engine.add(sequences[-1])
    while engine.has_work:
        engine.step()
    engine.check_books()
    return [(sequence, seen[sequence.name]) for sequence in sequences]
