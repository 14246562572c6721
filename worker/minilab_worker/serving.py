"""The model that a worker serves: loaded once, checked, described on a card. It must not know about jobs."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from minilab_gen.checkpoint import fingerprint, read_stop_ids
from minilab_gen.model import MiniLabModel, load
from minilab_gen.protocol.cards import ModelCard, digest
from minilab_gen.tokenizer import Tokenizer, get_tokenizer
from minilab_worker.self_check import Verdict, check_exactness


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model ready to serve, with everything that its card says."""

    model: MiniLabModel
    tokenizer: Tokenizer
    card: ModelCard
    verdict: Verdict
    seconds: float
    """What loading and checking took."""


def load_served_model(folder: Path, name: str, max_batch: int, threads: int | None) -> ServedModel:
    """Load a checkpoint and check its exactness; falls back to padded layers where packed ones are not exact.

    Raises CheckpointError.
    """
    start = time.monotonic()
    model, tokenizer = load(folder), get_tokenizer(folder)
    verdict = check_exactness(model, max_batch, threads)
    if not verdict.is_exact:
        padded = load(folder, packed=False)
        padded_verdict = check_exactness(padded, max_batch, threads)
        if padded_verdict.is_exact:
            model, verdict = padded, padded_verdict
    card = ModelCard(
        name=name,
        context_length=model.config.context_length,
        vocab_size=model.config.vocab_size,
        stop_ids=read_stop_ids(folder),
        fingerprint=fingerprint(folder, model),
        exactness=str(verdict),
        tokenizer=digest(tokenizer.to_json()),
    )
    return ServedModel(model, tokenizer, card, verdict, time.monotonic() - start)
