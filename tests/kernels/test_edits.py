"""The kernels' bias, masks, penalties and min-p: torch's within rounding, the same bits on every back end."""

from __future__ import annotations

import ctypes
import hashlib
import random

import pytest
import torch
from support.random_settings import random_settings
from torch import Tensor

from minilab_gen.kernels.library import KernelError, check, library
from minilab_gen.kernels.sampler import TokenSampler
from minilab_gen.sampling import next_token_probabilities
from minilab_gen.sampling_settings import SamplingSettings

VOCAB = 97
"""No multiple of 16, nor of 32."""

CHOICES = "31a2d7f8872fbc2f"
"""What 60 random sequences choose on every machine."""


def rows_of_logits(rows: int, seed: int) -> Tensor:
    """Whole steps of 2^-20, which every machine makes alike."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-(2**22), 2**22, (rows, VOCAB), generator=generator).float() / 2**20


def probabilities(logits: Tensor, sampler: TokenSampler) -> Tensor:
    out = torch.empty(len(logits))
    check(library().mlk_probabilities(logits.data_ptr(), len(logits), sampler.address, out.data_ptr()))
    return out


def drawn_sequence(seed: int) -> tuple[SamplingSettings, list[int], Tensor, list[int]]:
    """Settings, prompt, logits of each step, and the tokens that one sampler chooses from them."""
    pick = random.Random(seed)
    settings = random_settings(pick, VOCAB)
    prompt = [pick.randrange(VOCAB) for _ in range(pick.choice([1, 5, 200]))]
    logits = rows_of_logits(12, seed)
    sampler = TokenSampler(settings, VOCAB, [3, 7])
    sampler.begin(prompt)
    return settings, prompt, logits, [sampler.choose_at(row.data_ptr()) for row in logits]


@pytest.mark.parametrize("seed", range(60))
def test_each_choice_is_that_of_the_chain_in_torch(each_backend: str, seed: int) -> None:
    settings, prompt, logits, tokens = drawn_sequence(seed)
    generator = torch.Generator().manual_seed(settings.seed)

    for number, row in enumerate(logits):
        said = tokens[:number]
        wanted = next_token_probabilities(row, settings, prompt=prompt, answered=said, stop_ids=[3, 7])
        if settings.is_greedy:
            assert tokens[number] == wanted.argmax()
            continue
        sampler = TokenSampler(settings, VOCAB, [3, 7])
        sampler.begin(prompt, said)
        assert torch.allclose(probabilities(row, sampler), wanted, atol=1e-6, rtol=0)
        assert tokens[number] == int(torch.multinomial(wanted, 1, generator=generator))


def test_choices_have_the_same_bits_on_every_machine(each_backend: str) -> None:
    digest = hashlib.sha256()
    for seed in range(60):
        settings, prompt, logits, tokens = drawn_sequence(seed)
        digest.update(repr(tokens).encode())
        if not settings.is_greedy:
            sampler = TokenSampler(settings, VOCAB, [3, 7])
            sampler.begin(prompt, tokens)
            digest.update(probabilities(logits[0], sampler).numpy().tobytes())

    assert digest.hexdigest()[:16] == CHOICES


@pytest.mark.parametrize("answered", [0, 1, 5, 11])
def test_a_sampler_that_is_told_what_was_answered_goes_on_as_the_one_that_answered(answered: int) -> None:
    for seed in range(60):
        settings, prompt, logits, tokens = drawn_sequence(seed)
        sampler = TokenSampler(settings, VOCAB, [3, 7])

        sampler.begin(prompt, tokens[:answered])

        assert [sampler.choose_at(row.data_ptr()) for row in logits[answered:]] == tokens[answered:]


def test_thousands_of_different_ids_are_counted(each_backend: str) -> None:
    vocab = 50_000
    pick = random.Random(0)
    settings = SamplingSettings(1.0, repetition_penalty=1.3, presence_penalty=0.5, frequency_penalty=0.2)
    prompt, answered = ([pick.randrange(vocab) for _ in range(count)] for count in (9000, 3000))
    logits = torch.randn(vocab, generator=torch.Generator().manual_seed(1)) * 3
    sampler = TokenSampler(settings, vocab)

    sampler.begin(prompt, answered)

    wanted = next_token_probabilities(logits, settings, prompt=prompt, answered=answered)
    assert torch.allclose(probabilities(logits, sampler), wanted, atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    "settings",
    [
        SamplingSettings(logit_bias={VOCAB: 1}),
        SamplingSettings(allowed_token_ids=(1, VOCAB)),
        SamplingSettings(bad_words_ids=((1, VOCAB),)),
        SamplingSettings(bad_words_ids=((VOCAB + 5, 1),)),
    ],
    ids=str,
)
def test_an_id_beyond_the_vocabulary_makes_no_sampler(settings: SamplingSettings) -> None:
    with pytest.raises(KernelError, match="ids must be from 0 to 96, got"):
        TokenSampler(settings, VOCAB)


def test_ids_beyond_the_vocabulary_are_refused_wherever_they_come_from() -> None:
    with pytest.raises(KernelError, match="ids must be from 0 to 96, got 97"):
        TokenSampler(SamplingSettings(), VOCAB, [97])
    for prompt, answered in (([97], []), ([1], [-1])):
        with pytest.raises(KernelError, match="ids must be from 0 to 96, got"):
            TokenSampler(SamplingSettings(repetition_penalty=2), VOCAB).begin(prompt, answered)
    with pytest.raises(KernelError, match="vocab must be at least 1, got 0"):
        TokenSampler(SamplingSettings(), 0)


def test_a_sampler_of_another_vocabulary_chooses_nothing() -> None:
    sampler, token = TokenSampler(SamplingSettings(logit_bias={90: 1}), VOCAB), ctypes.c_int32()
    address = (ctypes.c_void_p * 1)(sampler.address)

    check(library().mlk_choose(torch.zeros(50).data_ptr(), 0, 1, 50, address, ctypes.byref(token)))

    assert token.value == -3
    with pytest.raises(KernelError, match="vocab must be the sampler's, 97, got 50"):
        probabilities(torch.zeros(50), sampler)


def test_probabilities_where_no_token_is_left_are_refused() -> None:
    sampler = TokenSampler(SamplingSettings(1.0), VOCAB)
    sampler.mask([])

    with pytest.raises(KernelError, match="no token is left"):
        probabilities(torch.zeros(VOCAB), sampler)
