"""The families of models: each computes what transformers computes, with the same bits in every batch."""

from __future__ import annotations

import random
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest
import torch
from support.family_checkpoints import CONTEXT, KINDS, SHAPE, write
from torch import Tensor

from minilab_gen.engine import Engine, Sequence
from minilab_gen.generate import generate
from minilab_gen.kernels.decoder import WEIGHT_TYPES, WeightType
from minilab_gen.models.checkpoint import load
from minilab_gen.models.kernel_model import KernelModel
from minilab_gen.models.kv_cache import KVCache
from minilab_gen.models.torch_checkpoint import read_model
from minilab_gen.request import GenerationRequest, SamplingSettings

# transformers asks for newer Python features in ways that warn, and its warnings are not about our code.
pytestmark = pytest.mark.filterwarnings("ignore")

CLOSE = 1e-4
"""How far a logit of transformers may be from ours."""
STEPS = 64


@pytest.fixture(scope="module", params=KINDS)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, KernelModel]:
    """A model of transformers and ours, read from the folder that it wrote."""
    folder = tmp_path_factory.mktemp("family")
    return write(folder, KINDS[request.param]), load(folder, threads=1)


def prompts() -> list[tuple[int, ...]]:
    dice = random.Random(0)
    return [tuple(dice.randrange(3, SHAPE["vocab_size"]) for _ in range(dice.randint(1, 63))) for _ in range(32)]


def run_together(
    model: KernelModel, requests: list[GenerationRequest], batch: int
) -> list[tuple[list[int], list[Tensor]]]:
    """The answers of an engine of so many slots, and the logits that each token was chosen from."""
    seen: dict[str, list[Tensor]] = {}
    engine = Engine(model, batch, on_logits=lambda s, row: seen.setdefault(s.name, []).append(row.clone()))
    sequences = [Sequence(str(index), request) for index, request in enumerate(requests)]
    for sequence in sequences:
        engine.add(sequence)
    while engine.has_work:
        engine.step()
    return [(sequence.ids[len(sequence.request.prompt) :], seen[sequence.name]) for sequence in sequences]


def their_logits(model: Any, ids: Collection[int]) -> Tensor:
    with torch.no_grad():
        logits: Tensor = model(torch.tensor([list(ids)])).logits[0]
    return logits


# What is computed


def test_logits_are_those_of_transformers(pair: tuple[Any, KernelModel]) -> None:
    theirs, ours = pair
    ids = [index * 7 % SHAPE["vocab_size"] for index in range(CONTEXT)]

    with torch.no_grad():
        logits = ours(torch.tensor([ids]))[0][0]

    gap = (logits - their_logits(theirs, ids)).abs().max().item()
    assert gap < CLOSE
    assert logits.std().item() > 0.1  # they say something


@pytest.mark.parametrize("kind", KINDS)
def test_the_torch_decoder_is_a_witness_of_every_kind(tmp_path: Path, kind: str) -> None:
    write(tmp_path, KINDS[kind], seed=1)
    witness, ours = read_model(tmp_path), load(tmp_path, threads=1)
    ids = torch.tensor([[index * 5 % SHAPE["vocab_size"] for index in range(CONTEXT)]])
    cache = KVCache(witness.config.n_layer)

    with torch.no_grad():
        logits = ours(ids)[0]
        chunks = [witness(ids[:, start : start + 50], cache=cache)[0] for start in range(0, CONTEXT, 50)]
        assert (witness(ids)[0] - logits).abs().max() < CLOSE
        assert (torch.cat(chunks, 1) - logits).abs().max() < CLOSE


def test_greedy_tokens_are_those_of_transformers(pair: tuple[Any, KernelModel]) -> None:
    theirs, ours = pair
    answers = run_together(ours, [GenerationRequest(prompt, STEPS) for prompt in prompts()], 32)

    for prompt, (tokens, _) in zip(prompts(), answers, strict=True):
        chosen = their_logits(theirs, [*prompt, *tokens[:-1]]).argmax(-1)[len(prompt) - 1 :]
        assert tokens == chosen.tolist()
        assert len(tokens) == STEPS


@pytest.mark.parametrize("weights", WEIGHT_TYPES)
def test_logits_have_the_same_bits_in_every_batch(
    pair: tuple[Any, KernelModel], weights: WeightType, tmp_path: Path
) -> None:
    theirs, ours = pair
    if weights != "float32":
        theirs.save_pretrained(tmp_path)
        ours = load(tmp_path, weights, threads=1)
    sampled = [SamplingSettings(temperature=0.8, seed=seed) for seed in range(32)]
    requests = [GenerationRequest(prompt, 16, settings) for prompt, settings in zip(prompts(), sampled, strict=True)]
    alone = [list(generate(ours, request.prompt, 16, request.settings)) for request in requests]

    for batch in (1, 7, 32):
        for steps, (tokens, rows) in zip(alone, run_together(ours, requests, batch), strict=True):
            assert tokens == [step.token_id for step in steps]
            assert all(torch.equal(row, step.logits) for row, step in zip(rows, steps, strict=True))
