"""The kernels' sampling is torch's, within rounding, and the same on every back end."""

from __future__ import annotations

import ctypes
import math

import pytest
import torch
from torch import Tensor

from kernels.driving import KINDS, decoder_of, sequences
from minilab_gen.kernels.library import check, library
from minilab_gen.kernels.sampler import TokenSampler
from minilab_gen.request import SamplingSettings
from minilab_gen.sampling import next_token_probabilities

SETTINGS = [
    SamplingSettings(temperature=1.0, seed=1),
    SamplingSettings(temperature=0.7, top_k=20, seed=2),
    SamplingSettings(temperature=1.3, top_p=0.9, seed=3),
    SamplingSettings(temperature=0.9, top_k=50, top_p=0.5, seed=4),
    SamplingSettings(temperature=2.0, top_k=1, seed=5),
    SamplingSettings(temperature=1.0, top_p=1e-6, seed=6),
    SamplingSettings(temperature=5.0, top_k=1000, top_p=0.999, seed=2**32 - 1),
    SamplingSettings(temperature=1e-3, seed=8),
    SamplingSettings(seed=9),
]


LEAST = 1e-36
"""Below it we have 0 where torch may have a subnormal number: no draw of 2^53 steps can tell."""


def rows_of_logits(vocab: int, rows: int = 40, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, vocab, generator=generator) * torch.linspace(0.1, 12, rows)[:, None]


class TorchSampler:
    """The chain in torch, which the kernels must follow."""

    def __init__(self, settings: SamplingSettings) -> None:
        self._settings, self._generator = settings, torch.Generator().manual_seed(settings.seed)

    def choose(self, logits: Tensor) -> int:
        probabilities = next_token_probabilities(logits, self._settings)
        if self._settings.is_greedy:  # which moves no generator
            return int(probabilities.argmax())
        return int(torch.multinomial(probabilities, 1, generator=self._generator))


def probabilities(logits: Tensor, settings: SamplingSettings) -> Tensor:
    out = torch.empty(len(logits))
    sampler = TokenSampler(settings, len(logits))
    check(library().mlk_probabilities(logits.data_ptr(), len(logits), sampler.address, out.data_ptr()))
    return out


def choose(logits: Tensor, samplers: list[TokenSampler]) -> list[int]:
    """A token for each row (rows, vocab)."""
    tokens = (ctypes.c_int32 * len(samplers))()
    addresses = (ctypes.c_void_p * len(samplers))(*(sampler.address for sampler in samplers))
    check(library().mlk_choose(logits.data_ptr(), logits.stride(0), len(logits), logits.shape[1], addresses, tokens))
    return list(tokens)


@pytest.mark.parametrize("vocab", [1, 17, 2048, 50_000])
@pytest.mark.parametrize("settings", [s for s in SETTINGS if not s.is_greedy], ids=str)
def test_probabilities_are_those_of_torch_within_rounding(
    each_backend: str, settings: SamplingSettings, vocab: int
) -> None:
    for logits in rows_of_logits(vocab, 4):
        wanted, found = next_token_probabilities(logits, settings), probabilities(logits, settings)
        kept = wanted > LEAST
        assert ((found > LEAST) != kept).sum() <= (settings.top_p is not None)  # the last of a nucleus, by a rounding
        assert torch.allclose(found, wanted, rtol=2e-5, atol=1e-7)


@pytest.mark.parametrize("vocab", [96, 2048, 20_000])
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_draws_are_those_of_torch_multinomial(each_backend: str, settings: SamplingSettings, vocab: int) -> None:
    ours, reference = TokenSampler(settings, vocab), TorchSampler(settings)
    logits = rows_of_logits(vocab, 15)

    assert [choose(row[None], [ours])[0] for row in logits] == [reference.choose(row) for row in logits]


def test_equal_logits_are_kept_and_drawn_as_torch_does(each_backend: str) -> None:
    logits = torch.tensor([3.0, 1, 3, 2, 2, 3, -1, 2] * 20)
    for settings in SETTINGS:
        ours, reference = TokenSampler(settings, len(logits)), TorchSampler(settings)
        assert [choose(logits[None], [ours])[0] for _ in range(50)] == [reference.choose(logits) for _ in range(50)]


def test_skipping_tokens_moves_the_generator_as_drawing_them_does(each_backend: str) -> None:
    settings = SamplingSettings(temperature=1.0, seed=11)
    logits = rows_of_logits(333, 30)
    drawn, skipped = TokenSampler(settings, 333), TokenSampler(settings, 333)
    tokens = [choose(row[None], [drawn])[0] for row in logits]

    skipped.begin(answered=tokens[:17])

    assert [choose(row[None], [skipped])[0] for row in logits[17:]] == tokens[17:]


def test_a_step_draws_what_its_logits_give_whoever_stands_beside(each_backend: str) -> None:
    config = KINDS["odd"]
    prompts = sequences(config, [12] * 6)
    rows = [(ids[at], slot, at) for slot, ids in enumerate(prompts) for at in range(12)]
    ids, slots, positions = zip(*rows, strict=True)
    outputs = [slot * 12 + 11 for slot in range(6)]
    settings = [*SETTINGS[:5], SETTINGS[-1]]
    out = torch.empty(6, config.vocab_size)

    for threads in (1, 3):
        samplers = [TokenSampler(s, config.vocab_size) for s in settings]
        decoder = decoder_of(config, threads=threads)
        tokens = decoder.run(ids, slots, positions, outputs, samplers=samplers, logits=out.data_ptr())
        assert tokens == [TorchSampler(s).choose(row) for row, s in zip(out, settings, strict=True)]


def test_a_random_number_just_below_one_decides_as_torch_decides(each_backend: str) -> None:
    """Two tokens whose scores nearly agree, one of them by a number that float32 takes for 1, or nearly."""
    close = [(39313, 53), (10575, 6), (17338, 48), (36257, 10), (645760, 22), (55323, 25), (287721, 0), (228316, 41)]
    for seed, first in close:
        settings, other = SamplingSettings(temperature=1.0, seed=seed), (first + 1) % 64
        uniform = torch.empty(64, dtype=torch.float64).uniform_(generator=torch.Generator().manual_seed(seed))
        noise = [-math.log1p(-float(uniform[token])) for token in (first, other)]
        chosen = set()
        for shift in [sign * 2.0**exponent for sign in (-1, 1) for exponent in range(-17, -3)]:
            logits = torch.full((64,), -math.inf)
            logits[[first, other]] = torch.tensor(noise).log() + torch.tensor([shift, 0.0])

            chosen.add(TokenSampler(settings, 64).choose_at(logits.data_ptr()))

            assert TokenSampler(settings, 64).choose_at(logits.data_ptr()) == TorchSampler(settings).choose(logits)
        assert chosen == {first, other}
