"""The model that a worker serves: loaded once, checked, described on a card."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from minilab_gen.errors import CheckpointError
from minilab_gen.kernels.decoder import WeightType
from minilab_gen.kernels.library import numerics
from minilab_gen.models.checkpoint import fingerprint, load, stamps
from minilab_gen.models.kernel_model import KernelModel
from minilab_gen.models.probe import check_probe
from minilab_gen.models.source import Checkpoint, checkpoint_of
from minilab_gen.protocol.cards import ModelCard, digest
from minilab_gen.text.tokenizer import Tokenizer
from minilab_worker.memory import tokens_that_fit
from minilab_worker.threads import try_threads

_log = logging.getLogger(__name__)

_PROGRESS_SECONDS: Final = 2.0
"""Between two lines that say how far a start is."""


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model ready to serve, with everything that its card says."""

    model: KernelModel
    tokenizer: Tokenizer
    card: ModelCard
    seconds: float
    """What loading and checking took."""
    kv_tokens: int
    """Tokens whose keys and values the engine may hold at a time."""
    threads: int
    """How many compute: what was asked for, or what a trial found."""


class _Progress:
    """Says how far loading is, every other second, so that a quick one says nothing."""

    def __init__(self) -> None:
        self._next = time.monotonic() + _PROGRESS_SECONDS

    def __call__(self, done: int, planned: int) -> None:
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + _PROGRESS_SECONDS
            _log.info("loading the model: %d of %d tensors", done, planned)


def load_served_model(
    path: Path,
    name: str,
    max_batch: int,
    threads: int | None,
    *,
    dtype: WeightType = "float32",
    kv_tokens: int | None = None,
) -> ServedModel:
    """Load a checkpoint, once the kernels have shown that they give the right bits on this machine.

    Without ``threads`` a trial decides how many compute. Without ``kv_tokens`` they are what memory allows. Raises
    CheckpointError, and KernelError where a probe gives other bits than it must.
    """
    start = time.monotonic()
    check_probe()
    before = stamps(path)
    checkpoint = checkpoint_of(path)
    model, tokenizer = load(path, dtype, threads=threads, on_progress=_Progress()), checkpoint.tokenizer()
    if threads is None:
        trial = try_threads(model, max_batch)
        threads = trial.threads
        _log.info("computing with %s", trial)
    context = model.config.context_length
    if kv_tokens is None:
        kv_tokens = tokens_that_fit(model.bytes_of_a_token, most=max_batch * context, least=context)
    card = ModelCard(
        name=name,
        context_length=context,
        vocab_size=model.config.vocab_size,
        stop_ids=_stop_ids(checkpoint, model.config.vocab_size),
        fingerprint=fingerprint(path, dtype),
        exactness=f"exact: numerics {numerics()}, a probe has the bits that it must have",
        tokenizer=digest(tokenizer.to_json()),
        kv_tokens=kv_tokens,
        chat=checkpoint.chat_format(),
    )
    if stamps(path) != before:  # else the fingerprint might be that of other weights
        raise CheckpointError(f"files of {path} changed while they were read; start the worker again")
    return ServedModel(model, tokenizer, card, time.monotonic() - start, kv_tokens, threads)


def _stop_ids(checkpoint: Checkpoint, vocab_size: int) -> tuple[int, ...]:
    """The model's own, which every request without others gets; so all of them must be ids that it can choose."""
    stop_ids = checkpoint.stop_ids()
    if stop_ids and max(stop_ids) >= vocab_size:
        raise CheckpointError(f"{checkpoint.path}: eos_token_id must be below {vocab_size}, got {max(stop_ids)}")
    return stop_ids
