"""CTranslate2 as a peer: static batches in which a callback ends each answer at its own length.

It must not know what the tokens mean.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ctranslate2  # type: ignore[import-not-found]
from peer_protocol import Job, Load, Peer, main

_BATCH = 32
"""Jobs of one call. Sorted by length, smaller batches waste less on waiting for the longest; larger ones compute more
at a time."""


def convert(checkpoint: Path, folder: Path) -> None:
    """Convert with the library's own converter, which goes through transformers."""
    # Here, because torch comes along, which a round does not need.
    from ctranslate2.converters import TransformersConverter  # type: ignore[import-not-found]

    TransformersConverter(str(checkpoint)).convert(str(folder), quantization="float32", force=True)


def load(told: Load) -> Peer:
    generator = ctranslate2.Generator(
        str(told.converted),
        device="cpu",
        compute_type="float32",
        inter_threads=1,
        intra_threads=told.threads,
    )
    names = json.loads((told.converted / "vocabulary.json").read_text(encoding="utf-8"))

    def run(jobs: list[Job]) -> list[list[int]]:
        # It batches what one call brings and admits nobody later. So jobs of like length share a call: all calls are
        # queued at once, and none waits long for its longest.
        order = sorted(range(len(jobs)), key=lambda number: len(jobs[number].prompt) + jobs[number].max_new_tokens)
        groups = [order[first : first + _BATCH] for first in range(0, len(order), _BATCH)]
        queued = [_generate(generator, names, [jobs[number] for number in group]) for group in groups]
        answers: dict[int, list[int]] = {}
        for group, results in zip(groups, queued, strict=True):
            for number, result in zip(group, results, strict=True):
                answers[number] = result.result().sequences_ids[0]
        return [answers[number] for number in range(len(jobs))]

    return Peer(f"ctranslate2 {ctranslate2.__version__}", run)


def _generate(generator: Any, names: list[str], jobs: list[Job]) -> Any:
    """Queue one batch."""
    return generator.generate_batch(
        [[names[token] for token in job.prompt] for job in jobs],
        max_length=max(job.max_new_tokens for job in jobs),
        include_prompt_in_result=False,  # the documentation's advice for speed: prompts are read at once
        end_token=[],
        sampling_topk=1,
        callback=_stop_at_length(jobs),
        asynchronous=True,
    )


def _stop_at_length(jobs: list[Job]) -> Callable[[Any], bool]:
    """What ends an answer at its length; without it, all would be as long as the batch's longest.

    Prompts are read together up to the shortest, so the steps of a longer one begin inside its prompt.
    """
    shortest = min(len(job.prompt) for job in jobs)
    lasts = [len(job.prompt) - shortest + job.max_new_tokens - 1 for job in jobs]
    return lambda step: step.step >= lasts[step.batch_id]


if __name__ == "__main__":
    main(load, convert)
