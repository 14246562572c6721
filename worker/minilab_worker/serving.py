"""The model that a worker serves: loaded once, checked, described on a card."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import torch

from minilab_gen.engine import bytes_of_a_token
from minilab_gen.errors import CheckpointError
from minilab_gen.models.checkpoint import fingerprint, load, read_stop_ids
from minilab_gen.models.decoder import MiniLabModel
from minilab_gen.models.linear import can_pack
from minilab_gen.protocol.cards import ModelCard, digest
from minilab_gen.text.chat import read_chat_format
from minilab_gen.text.tokenizer import Tokenizer, get_tokenizer
from minilab_worker.memory import tokens_that_fit
from minilab_worker.self_check import Verdict, check_exactness
from minilab_worker.threads import processors, try_threads

_log = logging.getLogger(__name__)

Dtype = Literal["float32", "bfloat16"]
"""What weights are held in and products are made of."""

_PROGRESS_SECONDS: Final = 2.0
"""Between two lines that say how far a start is."""

_TORCH: Final[dict[Dtype, torch.dtype]] = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model ready to serve, with everything that its card says."""

    model: MiniLabModel
    tokenizer: Tokenizer
    card: ModelCard
    verdict: Verdict
    seconds: float
    """What loading and checking took."""
    kv_tokens: int
    """Tokens whose keys and values the engine may hold at a time."""
    threads: int
    """How many compute: what was asked for, or what a trial found."""


class Progress:
    """Says how far a start is, every other second, so that a quick one says nothing."""

    def __init__(self) -> None:
        self._next = time.monotonic() + _PROGRESS_SECONDS

    def of(self, doing: str, what: str) -> Callable[[int, int], None]:
        """Takes how many there are done, and of how many."""

        def tell(done: int, planned: int) -> None:
            if time.monotonic() >= self._next:
                self._next = time.monotonic() + _PROGRESS_SECONDS
                _log.info("%s: %d of %d %s", doing, done, planned, what)

        return tell


def compute_beside_the_main_thread() -> int:
    """The most threads that may compute; the main thread from now on uses one.

    To be called before anything is computed. libgomp counts the threads that ever computed together; if these are more
    than the cores, waiting ones go to sleep at once, and each operation begins with waking them: a quarter of a step.
    """
    most = min(torch.get_num_threads(), processors())
    torch.set_num_threads(1)
    return most


def load_served_model(
    folder: Path,
    name: str,
    max_batch: int,
    threads: int | None,
    *,
    most_threads: int | None = None,
    dtype: Dtype = "float32",
    kv_tokens: int | None = None,
) -> ServedModel:
    """Load a checkpoint and check its exactness; falls back to padded layers where packed ones are not exact.

    Without ``threads`` a trial decides how many compute, up to ``most_threads``. Without ``kv_tokens`` they are what
    memory allows. Raises CheckpointError.
    """
    start, progress = time.monotonic(), Progress()
    # Beside: a thread like the engine's, which leaves the main thread without helpers of its own.
    with ThreadPoolExecutor(1) as beside:

        def read(*, packed: bool | None = None) -> MiniLabModel:
            return load(folder, _TORCH[dtype], packed=packed, on_progress=progress.of("loading the model", "parts"))

        def check(model: MiniLabModel, threads: int) -> Verdict:
            checking = progress.of("checking exactness", "sequences")
            return beside.submit(check_exactness, model, max_batch, threads, on_progress=checking).result()

        model, tokenizer = read(), get_tokenizer(folder)
        if threads is None:
            trial = beside.submit(try_threads, model, max_batch, most_threads or torch.get_num_threads()).result()
            threads = trial.threads
            _log.info("computing with %s", trial)
        verdict = check(model, threads)
        if not verdict.is_exact and can_pack(model.device, model.dtype):
            _log.info("%s; trying padded layers", verdict)
            padded = read(packed=False)
            padded_verdict = check(padded, threads)
            if padded_verdict.is_exact:
                model, verdict = padded, padded_verdict
    context = model.config.context_length
    if kv_tokens is None:
        kv_tokens = tokens_that_fit(bytes_of_a_token(model.config), most=max_batch * context, least=context)
    card = ModelCard(
        name=name,
        context_length=context,
        vocab_size=model.config.vocab_size,
        stop_ids=_stop_ids(folder, model.config.vocab_size),
        fingerprint=fingerprint(folder, model),
        exactness=str(verdict),
        tokenizer=digest(tokenizer.to_json()),
        kv_tokens=kv_tokens,
        chat=read_chat_format(folder),
    )
    return ServedModel(model, tokenizer, card, verdict, time.monotonic() - start, kv_tokens, threads)


def _stop_ids(folder: Path, vocab_size: int) -> tuple[int, ...]:
    """The model's own, which every request without others gets; so all of them must be ids that it can choose."""
    stop_ids = read_stop_ids(folder)
    if stop_ids and max(stop_ids) >= vocab_size:
        raise CheckpointError(f"{folder}: eos_token_id must be below {vocab_size}, got {max(stop_ids)}")
    return stop_ids
