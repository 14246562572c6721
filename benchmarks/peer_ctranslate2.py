"""CTranslate2 as a peer: static batches in which a callback ends each answer at its own length."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ctranslate2  # type: ignore[import-not-found]
from peer_protocol import Job, Load, Peer, main


def convert(checkpoint: Path, folder: Path) -> None:
    """Convert with the library's own converter, which goes through transformers."""
    # Here, because torch comes along, which a round does not need.
    from ctranslate2.converters import TransformersConverter  # type: ignore[import-not-found]

    TransformersConverter(str(checkpoint)).convert(str(folder), quantization="float32", force=True)


def load(settings: Load) -> Peer:
    batches = min(settings.threads, settings.max_batch)
    generator = ctranslate2.Generator(
        str(settings.converted),
        device="cpu",
        compute_type="float32",
        # Batches side by side, each on one thread: what its documentation advises for throughput, and 1.3 times as fast
        # here as one batch on all threads. One job alone gets them all.
        inter_threads=batches,
        intra_threads=settings.threads // batches,
    )
    names = json.loads((settings.converted / "vocabulary.json").read_text(encoding="utf-8"))

    def run(jobs: list[Job]) -> list[list[int]]:
        # It batches what one call brings and admits none later. So there is one call for each thread, and jobs are
        # dealt out by length, that all take equally long: 1.2 times as fast as jobs of like length together.
        order = sorted(range(len(jobs)), key=lambda number: len(jobs[number].prompt) + jobs[number].max_new_tokens)
        hands = [hand for first in range(batches) if (hand := order[first::batches])]
        queued = [_generate(generator, names, [jobs[number] for number in hand]) for hand in hands]
        answers: dict[int, list[int]] = {}
        for hand, results in zip(hands, queued, strict=True):
            for number, result in zip(hand, results, strict=True):
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
