"""Whether this machine keeps the exactness contract: the worker asks before it serves.

The engine runs random sequences in the batches that the worker will use, with prompts read in chunks and neighbours
that come and go, and every row of logits must equal that of the reference, which reads each sequence whole. The time
for it is limited; what it was not enough for is said.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import torch
from torch import Tensor

from minilab_gen.engine import Engine, Sequence
from minilab_gen.models.decoder import MiniLabModel
from minilab_gen.request import GenerationRequest

OnProgress = Callable[[int, int], None]
"""Gets how many sequences have been compared, and of how many, each time that something was computed."""

CHECK_SECONDS: Final = 10.0
"""What a check may take. On a quiet machine it is done in one or two; then it ends."""

_SEED: Final = 20_261_129
_LONGEST: Final = 300
"""Ids of a checked prompt at most: enough for several blocks of keys. One prompt has as many, whatever the model."""
_SHORTEST: Final = 8
"""Ids of the longest prompts where the model is so large that more would take minutes."""
_FEWEST_TOKENS, _MOST_TOKENS = 2, 6
"""Tokens that a sequence gets, each but the first by a step of decoding: prompts leave room for them."""
_WORK: Final = 2e10
"""Multiplications that the check may take: well under a second of two cores."""
_BATCHES: Final = (1, 3, 8)
"""Batch sizes checked besides the worker's own."""


@dataclass(slots=True)
class Verdict:
    """How many rows of logits were compared and how many differed."""

    rows: int = 0
    different: int = 0
    gap: float = 0.0
    """The largest difference of a logit."""
    sequences: int = 0
    """Those of which rows were compared,"""
    planned: int = 0
    """and those that were to be."""
    seconds: float = 0.0
    """How long the check took."""

    @property
    def is_exact(self) -> bool:
        return self.different == 0

    def __str__(self) -> str:
        if not self.is_exact:
            return f"not exact: {self.different} of {self.rows} rows of logits differ, by at most {self.gap:.1e}"
        exact = f"exact: {self.rows} rows of logits equal bit for bit"
        if self.sequences == self.planned:
            return exact
        return (
            f"{exact}, in {self.sequences} of {self.planned} sequences: checked for {self.seconds:.0f} s, then stopped"
        )


@dataclass(slots=True)
class _Batch:
    """Sequences that run in an engine of so many slots, and the logits that each of their tokens was chosen from."""

    slots: int
    sequences: list[Sequence]
    seen: dict[str, list[Tensor]] = field(default_factory=dict)


def check_exactness(
    model: MiniLabModel,
    max_batch: int,
    threads: int | None,
    *,
    seconds: float = CHECK_SECONDS,
    on_progress: OnProgress | None = None,
) -> Verdict:
    """Compare the engine with the reference on the shapes that a worker of ``max_batch`` slots will use.

    Each size of batch gets its share of the seconds, so that none is left out where they are too few.
    """
    if threads:
        torch.set_num_threads(threads)
    batches = _planned_batches(model, max_batch)
    verdict = Verdict(planned=sum(len(batch.sequences) for batch in batches))
    start = time.monotonic()

    def tell() -> None:
        if on_progress is not None:
            on_progress(verdict.sequences, verdict.planned)

    for number, batch in enumerate(batches):
        now = time.monotonic()
        share = max(0.0, start + seconds - now) / (len(batches) - number)
        _run(model, batch, now + share / 2, tell)
        _compare(model, batch, now + share, verdict, tell)
    verdict.seconds = time.monotonic() - start
    return verdict


def _planned_batches(model: MiniLabModel, max_batch: int) -> list[_Batch]:
    """Random sequences for each size of batch, small ones first."""
    dice = random.Random(_SEED)
    sizes = sorted({*_BATCHES, max_batch})
    longest = _longest_prompt(model, sum(sizes) + len(sizes))
    most = max(1, model.config.context_length - _MOST_TOKENS)
    batches = []
    for size in sizes:
        sequences = []
        for number in range(size + 1):  # one more than there are slots, so that one waits and takes over another's
            is_the_long_one = size == _BATCHES[-1] and number == size // 2
            length = _LONGEST if is_the_long_one else dice.randint(1, longest)
            prompt = tuple(dice.randrange(model.config.vocab_size) for _ in range(min(length, most)))
            tokens = dice.randint(_FEWEST_TOKENS, _MOST_TOKENS)
            sequences.append(Sequence(str(number), GenerationRequest(prompt, max_new_tokens=tokens)))
        batches.append(_Batch(size, sequences))
    return batches


def _longest_prompt(model: MiniLabModel, sequences: int) -> int:
    """How long the prompts of so many sequences may be: each is read twice, and half as long on average."""
    affordable = _WORK / (sequences * model.config.multiplications)
    return int(max(_SHORTEST, min(_LONGEST, affordable)))


def _run(model: MiniLabModel, batch: _Batch, until: float, tell: Callable[[], None]) -> None:
    """Let the engine choose tokens until all sequences have ended, or until that time once there is one to compare."""

    def see(sequence: Sequence, row: Tensor) -> None:
        batch.seen.setdefault(sequence.name, []).append(row.clone())

    engine = Engine(model, batch.slots, prefill_tokens=48, on_logits=see)
    for sequence in batch.sequences:
        engine.add(sequence)
    while engine.has_work and (not batch.seen or time.monotonic() < until):
        engine.step()
        tell()
    if not engine.has_work:
        engine.check_idle()


def _compare(model: MiniLabModel, batch: _Batch, until: float, verdict: Verdict, tell: Callable[[], None]) -> None:
    """Judge the rows that the engine has seen, those of one sequence in any case, and short ones before long ones."""
    seen = [sequence for sequence in batch.sequences if sequence.name in batch.seen]
    for number, sequence in enumerate(sorted(seen, key=lambda sequence: len(sequence.ids))):
        if number and time.monotonic() > until:
            return
        rows = batch.seen[sequence.name]
        prompt = len(sequence.request.prompt)
        with torch.no_grad():
            logits, _ = model(torch.tensor([sequence.ids[: prompt + len(rows) - 1]], device=model.device))
        for ours, theirs in zip(rows, logits[0, prompt - 1 :], strict=True):
            verdict.rows += 1
            if not torch.equal(ours, theirs):
                verdict.different += 1
                verdict.gap = max(verdict.gap, float((ours - theirs).abs().max()))
        verdict.sequences += 1
        tell()
