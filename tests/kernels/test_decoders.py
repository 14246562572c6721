"""The kernels compute what the torch decoder and transformers compute, for every family."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from support import family_checkpoints

from minilab_gen.generate import generate
from minilab_gen.kernels.decoder import Decoder, WeightType
from minilab_gen.kernels.sampler import TokenSampler
from minilab_gen.models.checkpoint import load, read_model
from minilab_gen.models.config import ModelConfig
from minilab_gen.request import SamplingSettings
from minilab_gen.text.tokenizer import BASE_CHECKPOINT

CLOSE = 1e-4


@pytest.fixture(scope="module", params=family_checkpoints.KINDS)
def written(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A random checkpoint, and transformers' model of it."""
    folder = tmp_path_factory.mktemp(request.param)
    return folder, family_checkpoints.write(folder, family_checkpoints.KINDS[request.param])


def load_decoder(folder: Path, weights: WeightType = "float32", *, slots: int, threads: int) -> Decoder:
    return load(folder, weights).decoder(slots, threads)


def logits_of(decoder: Decoder, ids: torch.Tensor, slot: int = 0) -> torch.Tensor:
    """(length, vocab), the prompt read at once."""
    count = len(ids)
    out = torch.empty(count, decoder.config.vocab_size)
    decoder.run(ids.tolist(), [slot] * count, range(count), range(count), logits=out.data_ptr())
    return out


def test_logits_are_those_of_torch_and_transformers(written: tuple[Path, Any]) -> None:
    folder, theirs = written
    ids = torch.arange(100) * 7 % 96
    found = logits_of(load_decoder(folder, slots=2, threads=2), ids)

    with torch.inference_mode():
        torch_logits, _ = read_model(folder)(ids[None])
        their_logits = theirs(ids[None]).logits

    assert (found - torch_logits[0]).abs().max() < CLOSE
    assert (found - their_logits[0]).abs().max() < CLOSE


@pytest.mark.parametrize(("weights", "close"), [("bfloat16", 0.5), ("int8", 0.5)])
def test_fewer_bits_stay_near(weights: Any, close: float) -> None:
    ids = torch.arange(100) * 13 % 2048
    full = logits_of(load_decoder(BASE_CHECKPOINT, slots=1, threads=2), ids)
    few = logits_of(load_decoder(BASE_CHECKPOINT, weights, slots=1, threads=2), ids)

    assert (few - full).abs().mean() < close / 5
    assert (few.argmax(1) == full.argmax(1)).float().mean() > 0.9


def test_types_take_the_memory_that_they_say() -> None:
    sizes = {
        w: load_decoder(BASE_CHECKPOINT, w, slots=1, threads=1).weight_bytes for w in ("float32", "bfloat16", "int8")
    }

    assert sizes["float32"] == 4 * ModelConfig().parameters
    assert sizes["bfloat16"] == sizes["float32"] / 2
    assert sizes["int8"] < sizes["float32"] / 4 * 1.02


def test_a_slot_that_is_released_gives_its_memory_back() -> None:
    decoder = load_decoder(BASE_CHECKPOINT, slots=4096, threads=1)
    ids = torch.arange(128) % 2048
    before = resident()
    for slot in range(256):
        logits_of(decoder, ids, slot)
    full = resident()
    for slot in range(256):
        decoder.release(slot)

    assert full - before > 25_000_000
    assert resident() - before < 5_000_000


def resident() -> int:
    """Bytes of this process that are in memory."""
    pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    return int(pages) * 4096


def test_greedy_text_goes_on_as_torch_goes_on_and_sampled_text_as_well() -> None:
    model, decoder = read_model(BASE_CHECKPOINT), load_decoder(BASE_CHECKPOINT, slots=1, threads=2)
    for settings in (SamplingSettings(), SamplingSettings(temperature=0.8, top_k=40, top_p=0.95, seed=3)):
        prompt = [17, 300, 4]
        wanted = [step.token_id for step in generate(model, prompt, 60, settings)]
        sampler = TokenSampler(settings, 2048)
        tokens = decoder.run(prompt, [0] * 3, range(3), [2], samplers=[sampler])
        while len(tokens) < 60:
            tokens += decoder.run(tokens[-1:], [0], [len(tokens) + 2], [0], samplers=[sampler])
        assert tokens == wanted
