"""Logprobs are those that transformers gives."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from support.family_checkpoints import CONTEXT, KINDS, SHAPE, write
from support.small_models import kernel_model

from minilab_gen.engine import Engine, Sequence
from minilab_gen.logprobs import (
    TokenLogprobs,
)
from minilab_gen.models.checkpoint import load
from minilab_gen.request import GenerationRequest, SamplingSettings

MODEL = kernel_model()
PROMPT = tuple(random.Random(1).randrange(64) for _ in range(20))
HOT = SamplingSettings(temperature=1.5, seed=3)
DECIMALS = st.floats(-9999, 0, width=32).map(lambda number: float(f"{number:.9g}"))
LISTED = st.builds(TokenLogprobs, DECIMALS, st.lists(st.tuples(st.integers(0, 200_000), DECIMALS)).map(tuple))


# What they mean


# What others compute


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["llama-3", "qwen-3", "gemma-3", "granite", "gpt-2"])
def test_logprobs_are_those_of_transformers(tmp_path: Path, kind: str) -> None:
    theirs = write(tmp_path, KINDS[kind])
    ours = load(tmp_path, threads=1)
    prompt = tuple(index * 7 % SHAPE["vocab_size"] for index in range(CONTEXT))
    with torch.no_grad():
        wanted = torch.log_softmax(theirs(torch.tensor([prompt])).logits[0].double(), dim=-1)

    engine, sequence = Engine(ours, 1), Sequence("x", GenerationRequest(prompt, 0, prompt_logprobs=3))
    engine.add(sequence)
    while engine.has_work:
        engine.step()

    listed = sequence.prompt_logprobs
    assert listed is not None
    for at, one in enumerate(listed[1:]):
        assert one is not None
        assert one.logprob == pytest.approx(wanted[at, prompt[at + 1]].item(), abs=1e-4)
        assert [logprob for _, logprob in one.top] == pytest.approx(wanted[at].topk(3).values.tolist(), abs=1e-4)
    assert np.std([one.logprob for one in listed[1:] if one is not None]) > 0.1  # they say something
