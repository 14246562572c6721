"""The model that a worker serves: loaded once, checked, described on a card. It must not know about jobs."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import torch

from minilab_gen.chat import read_chat_format
from minilab_gen.checkpoint import fingerprint, read_stop_ids
from minilab_gen.engine import bytes_of_a_token
from minilab_gen.errors import CheckpointError
from minilab_gen.linear import can_pack
from minilab_gen.model import MiniLabModel, load
from minilab_gen.protocol.cards import ModelCard, digest
from minilab_gen.tokenizer import Tokenizer, get_tokenizer
from minilab_worker.memory import tokens_that_fit
from minilab_worker.self_check import Verdict, check_exactness

Dtype = Literal["float32", "bfloat16"]
"""What weights are held in and products are made of."""

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


def _check_beside(model: MiniLabModel, max_batch: int, threads: int | None) -> Verdict:
    """The self-check in a thread like the engine's, which leaves the main thread without helpers of its own."""
    with ThreadPoolExecutor(1) as computing:
        return computing.submit(check_exactness, model, max_batch, threads).result()


def compute_beside_the_main_thread(threads: int | None) -> int:
    """How many threads are to compute, by default what torch would choose; the main thread from now on uses one.

    To be called before anything is computed. libgomp counts the threads that ever computed together; if these are more
    than the cores, waiting ones go to sleep at once, and each operation begins with waking them: a quarter of a step.
    """
    count = threads or torch.get_num_threads()
    torch.set_num_threads(1)
    return count


def load_served_model(
    folder: Path,
    name: str,
    max_batch: int,
    threads: int | None,
    *,
    dtype: Dtype = "float32",
    kv_tokens: int | None = None,
) -> ServedModel:
    """Load a checkpoint and check its exactness; falls back to padded layers where packed ones are not exact.

    Without ``kv_tokens`` they are what memory allows. Raises CheckpointError.
    """
    start = time.monotonic()
    model, tokenizer = load(folder, _TORCH[dtype]), get_tokenizer(folder)
    verdict = _check_beside(model, max_batch, threads)
    if not verdict.is_exact and can_pack(model.device, model.dtype):
        padded = load(folder, _TORCH[dtype], packed=False)
        padded_verdict = _check_beside(padded, max_batch, threads)
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
    return ServedModel(model, tokenizer, card, verdict, time.monotonic() - start, kv_tokens)


def _stop_ids(folder: Path, vocab_size: int) -> tuple[int, ...]:
    """The model's own, which every request without others gets; so all of them must be ids that it can choose."""
    stop_ids = read_stop_ids(folder)
    if stop_ids and max(stop_ids) >= vocab_size:
        raise CheckpointError(f"{folder}: eos_token_id must be below {vocab_size}, got {max(stop_ids)}")
    return stop_ids
