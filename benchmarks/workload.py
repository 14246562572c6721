"""Random jobs of every kind that the engine must answer exactly, and what the reference loop answers to them.

The reference is the slow part, so each job is answered once, by processes of one thread each, and every run of the
engine is held against the same answers.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import random
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt
import torch

from minilab_gen.generate import generate
from minilab_gen.kernels.decoder import WeightType
from minilab_gen.models.checkpoint import load
from minilab_gen.models.config import ModelConfig
from minilab_gen.request import GREEDY, MAX_SEED, MAX_STOP_IDS, GenerationRequest, SamplingSettings

SHORT_PROMPT: Final = 32
SHORT_ANSWER: Final = 20
"""Tokens at most of most prompts and answers: many short jobs meet more neighbours in the same time than a few long."""

_CHUNK: Final = 100
"""Jobs that a process answers before it reports: a few seconds, beside which loading the model does not count."""


@dataclass(frozen=True, slots=True)
class RandomJob:
    """A request and what befalls it."""

    name: str
    request: GenerationRequest
    answered: float
    """The share of its answer that an earlier worker gave before its lease expired."""
    cancelled_after: int | None
    """Steps of the engine after its arrival; it may be over by then."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What the reference loop gives."""

    tokens: tuple[int, ...]
    end: Literal["stop", "length", "context"]
    logits: npt.NDArray[np.float32] | None
    """(tokens, vocab), where they were asked for."""


def draw_jobs(count: int, config: ModelConfig, seed: int) -> list[RandomJob]:
    """Random jobs, the same for the same seed."""
    dice = random.Random(seed)
    return [
        RandomJob(
            name=f"job-{number}",
            request=_draw_request(dice, config),
            answered=dice.random() if _one_in(10, dice) else 0.0,
            cancelled_after=dice.randint(0, 2 * SHORT_ANSWER) if _one_in(10, dice) else None,
        )
        for number in range(count)
    ]


def _one_in(number: int, dice: random.Random) -> bool:
    return dice.randrange(number) == 0


def _draw_request(dice: random.Random, config: ModelConfig) -> GenerationRequest:
    longest = config.context_length - 1
    prompt = dice.randint(1, longest if _one_in(5, dice) else min(SHORT_PROMPT, longest))
    answer = dice.randint(1, config.context_length if _one_in(30, dice) else SHORT_ANSWER)
    stop_ids: list[int] = []
    if _one_in(2, dice):  # among the first ids, which are the most frequent ones
        stop_ids = [dice.randrange(min(512, config.vocab_size)) for _ in range(dice.randint(1, MAX_STOP_IDS))]
    ids = tuple(dice.randrange(config.vocab_size) for _ in range(prompt))
    return GenerationRequest(ids, answer, _draw_settings(dice, config, answer), tuple(stop_ids))


def _draw_settings(dice: random.Random, config: ModelConfig, answer: int) -> SamplingSettings:
    """Greedy settings, ordinary ones, and those at the edges of what is allowed."""
    edits = _draw_edits(dice, config.vocab_size, answer) if _one_in(2, dice) else {}
    if _one_in(3, dice):
        return replace(GREEDY, **edits)
    temperature = dice.choice((dice.uniform(0.05, 2.0), 1.0, 1e-30, 1e-3, 1e3, 1e38))
    top_k = dice.choice((None, 1, dice.randint(2, 100), config.vocab_size, 2 * config.vocab_size))
    top_p = dice.choice((None, 1e-9, dice.uniform(0.05, 1.0), 1.0))
    min_p = dice.choice((0.0, 0.0, dice.uniform(0.0, 0.3), 1.0))
    return SamplingSettings(temperature, top_k, top_p, dice.randint(0, MAX_SEED), min_p, **edits)


def _draw_edits(dice: random.Random, vocab_size: int, answer: int) -> dict[str, Any]:
    """Penalties, biases and masks. One id can always be chosen: no bad word ends in it, and it is no stop id."""
    free = vocab_size - 1

    def ids(most: int) -> tuple[int, ...]:  # among the most frequent ones, too
        return tuple(dice.randrange(dice.choice((min(512, free), free))) for _ in range(dice.randint(1, most)))

    return {
        "repetition_penalty": dice.choice((1.0, dice.uniform(0.5, 2.0), 1e-300, 1e300)),
        "presence_penalty": dice.choice((0.0, dice.uniform(-2.0, 2.0), 2.0)),
        "frequency_penalty": dice.choice((0.0, dice.uniform(-2.0, 2.0), -2.0)),
        "logit_bias": {token: dice.uniform(-100.0, 100.0) / 10 for token in ids(100)} if _one_in(3, dice) else {},
        "min_tokens": dice.choice((0, 0, answer, dice.randint(1, answer))),
        "allowed_token_ids": (free, *ids(200)) if _one_in(4, dice) else None,
        "bad_words_ids": tuple(ids(4) for _ in range(dice.randint(1, 50))) if _one_in(3, dice) else (),
    }


@dataclass(frozen=True, slots=True)
class Reference:
    """What answers: a checkpoint, how its weights are held, and the kernels' back end, None for this machine's best."""

    folder: Path
    dtype: WeightType = "float32"
    backend: str | None = None


def answer_all(reference: Reference, jobs: Sequence[RandomJob], sample_every: int) -> Iterator[list[Answer]]:
    """The reference's answers in order, some at a time; every ``sample_every``-th with its logits.

    On as many processes as there are cores.
    """
    starts = range(0, len(jobs), _CHUNK)
    chunks = [jobs[start : start + _CHUNK] for start in starts]
    processes = min(len(chunks), os.cpu_count() or 1)
    spawning = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, spawning, initializer=_choose_backend, initargs=(reference.backend,)) as pool:
        yield from pool.map(_answer, itertools.repeat(reference), chunks, starts, itertools.repeat(sample_every))


def _choose_backend(name: str | None) -> None:
    """In a process of its own, since the kernels choose one for good at their first use."""
    if name is not None:
        os.environ["MINILAB_KERNELS"] = name


def _answer(reference: Reference, jobs: Sequence[RandomJob], start: int, sample_every: int) -> list[Answer]:
    model = load(reference.folder, reference.dtype, threads=1)
    answers = []
    for number, job in enumerate(jobs, start):
        request = job.request
        steps = list(generate(model, request.prompt, request.max_new_tokens, request.settings, request.stop_ids))
        tokens = tuple(step.token_id for step in steps)
        logits = torch.stack([step.logits for step in steps]).numpy() if number % sample_every == 0 else None
        answers.append(Answer(tokens, _end_of(request, tokens), logits))
    return answers


def _end_of(request: GenerationRequest, tokens: tuple[int, ...]) -> Literal["stop", "length", "context"]:
    if tokens[-1] in request.stop_ids:
        return "stop"
    return "length" if len(tokens) == request.max_new_tokens else "context"
