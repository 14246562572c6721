"""Logprobs have the bits that the rules give, whatever else a step computes, and say what log_softmax says."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from kernels import reference
from kernels.driving import KINDS, decoder_of, sequences
from minilab_gen.kernels.decoder import Decoder
from minilab_gen.kernels.library import KernelError
from minilab_gen.kernels.logprobs import LogprobRoom, logprobs_at
from minilab_gen.logprobs import LEAST_LOGPROB, TokenLogprobs


def of_row(logits: Tensor, token_id: int, count: int) -> TokenLogprobs | None:
    return logprobs_at(logits.data_ptr(), len(logits), token_id, count)


def by_the_rules(logits: Tensor, token_id: int, count: int) -> TokenLogprobs:
    every = reference.logprobs(logits.numpy())
    decimals = [float(f"{number:.9g}") for number in every]
    top = reference.most_probable(logits.numpy(), count)
    return TokenLogprobs(decimals[token_id], tuple((token, decimals[token]) for token in top))


@pytest.mark.parametrize("vocab", [1, 15, 16, 83, 4000])
def test_every_back_end_gives_the_logprobs_that_the_rules_give(each_backend: str, vocab: int) -> None:
    generator = torch.Generator().manual_seed(vocab)
    for spread in (0.01, 1.0, 12.0, 3000.0):
        logits = torch.randn(vocab, generator=generator) * spread

        for token_id, count in ((0, 0), (vocab - 1, 20), (vocab // 2, 7)):
            assert of_row(logits, token_id, count) == by_the_rules(logits, token_id, count)


@pytest.mark.parametrize("vocab", [5, 2048, 151_936])
def test_logprobs_are_torchs_log_softmax_within_rounding(vocab: int) -> None:
    logits = torch.randn(vocab, generator=torch.Generator().manual_seed(1)) * 4
    wanted = torch.log_softmax(logits.double(), dim=0)

    found = of_row(logits, 3, 20)

    assert found is not None
    assert found.logprob == pytest.approx(wanted[3].item(), abs=1e-4)
    assert [token for token, _ in found.top] == wanted.topk(min(20, vocab)).indices.tolist()
    assert [logprob for _, logprob in found.top] == pytest.approx(wanted.topk(min(20, vocab)).values.tolist(), abs=1e-4)


def test_nine_digits_hold_all_bits_of_a_logprob() -> None:
    logits = torch.randn(500, generator=torch.Generator().manual_seed(4)) * 7
    every = reference.logprobs(logits.numpy())

    for token_id in range(500):
        found = of_row(logits, token_id, 0)
        assert found is not None
        assert np.float32(found.logprob).tobytes() == every[token_id].tobytes()


def test_of_equally_probable_tokens_the_lowest_ids_are_listed_first() -> None:
    logits = torch.tensor([0.0, 1.0, 0.0, 1.0, -0.0, 1.0])

    found = of_row(logits, 5, 5)

    assert found is not None
    assert [token for token, _ in found.top] == [1, 3, 5, 0, 2]


def test_what_is_impossible_has_the_least_logprob_and_no_infinity() -> None:
    for logits in (torch.tensor([0.0, -math.inf, 1.0]), torch.tensor([3e38, -3e38, 3e38])):
        found = of_row(logits, 1, 3)

        assert found is not None
        assert found.logprob == LEAST_LOGPROB
        assert [token for token, _ in found.top][-1] == 1
        assert all(math.isfinite(logprob) for _, logprob in found.top)


@pytest.mark.parametrize("damage", [math.nan, math.inf])
def test_logits_that_are_not_finite_have_no_logprobs(damage: float) -> None:
    assert of_row(torch.tensor([0.0, damage, 1.0]), 0, 2) is None


def run(decoder: Decoder, prompts: Sequence[Sequence[int]], counts: Sequence[int]) -> tuple[list[int], LogprobRoom]:
    """Each prompt in a slot of its own, an output at each row; those before the last of a prompt judge the next id."""
    ids = [token for prompt in prompts for token in prompt]
    slots = [slot for slot, prompt in enumerate(prompts) for _ in prompt]
    positions = [position for prompt in prompts for position in range(len(prompt))]
    judged = [token for prompt in prompts for token in [*prompt[1:], -1]]
    room = LogprobRoom([count for count, prompt in zip(counts, prompts, strict=True) for _ in prompt], judged)
    return decoder.run(ids, slots, positions, range(len(ids)), logprobs=room), room


@pytest.mark.parametrize("kind", ["odd", "granite"])
@pytest.mark.parametrize("threads", [1, 3])
def test_neighbours_and_threads_change_no_logprob_and_logprobs_change_no_token(kind: str, threads: int) -> None:
    config = KINDS[kind]
    prompts = sequences(config, [20, 3, 40, 1])
    counts = [5, -1, 0, 20]
    plain = decoder_of(config, slots=4).run(
        *_columns(prompts), range(sum(map(len, prompts)))
    )  # nothing is listed, nothing is judged

    tokens, room = run(decoder_of(config, slots=4, threads=threads), prompts, counts)

    first = 0
    for prompt, count in zip(prompts, counts, strict=True):
        alone_tokens, alone = run(decoder_of(config, slots=1), [prompt], [count])
        logits = torch.empty(len(prompt), config.vocab_size)
        decoder_of(config, slots=1).run(*_columns([prompt]), range(len(prompt)), logits=logits.data_ptr())
        for at, target in enumerate([*prompt[1:], alone_tokens[-1]]):
            wanted = None if count < 0 else by_the_rules(logits[at], target, count)
            assert room.of(first + at) == alone.of(at) == wanted
        first += len(prompt)
    assert tokens == plain


def _columns(prompts: Sequence[Sequence[int]]) -> tuple[list[int], list[int], list[int]]:
    ids = [token for prompt in prompts for token in prompt]
    slots = [slot for slot, prompt in enumerate(prompts) for _ in prompt]
    return ids, slots, [position for prompt in prompts for position in range(len(prompt))]


def test_a_judged_id_must_be_one_of_the_models() -> None:
    config = KINDS["odd"]
    room = LogprobRoom([0], [config.vocab_size])

    with pytest.raises(KernelError, match=r"judged ids must be below 83, got 83 for output 0"):
        decoder_of(config).run([1], [0], [0], [0], logprobs=room)
    with pytest.raises(KernelError, match=r"a token must be below 3, got 3"):
        of_row(torch.zeros(3), 3, 0)
