"""Bits per byte: each token of a text is judged once, whatever the windows, with enough of the text before it."""

from __future__ import annotations

import math

import pytest
import torch
from support.small_models import EIGHT_TO_ONE, kernel_model, random_model

from minilab_gen.training.quality import bits_per_byte

TOKENS, SIZE = 77, 100
TEXT = torch.randint(EIGHT_TO_ONE.vocab_size, (TOKENS,), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("window", [2, 3, 16, 32])
def test_each_token_but_the_first_is_judged_once(window: int) -> None:
    model = random_model()
    with torch.no_grad():
        for weight in model.parameters():
            weight.zero_()  # every token is as probable as every other

    bits = bits_per_byte(model, TEXT, SIZE, window)

    assert bits == pytest.approx((TOKENS - 1) * math.log2(EIGHT_TO_ONE.vocab_size) / SIZE)


def test_a_token_is_judged_after_at_least_half_a_window() -> None:
    model, window = kernel_model(), 16
    nats = 0.0
    for judged in range(1, TOKENS):
        fresh = window // 2 + 1  # tokens of each window but the first
        first = max(0, -(-(judged - window) // fresh) * fresh)
        logits, _ = model(TEXT[None, first:judged])
        nats -= float(torch.log_softmax(logits[0, -1], -1)[TEXT[judged]])
        assert judged - first >= min(judged, window // 2)

    assert bits_per_byte(model, TEXT, SIZE, window) == pytest.approx(nats / math.log(2) / SIZE)


def test_the_kernels_predict_a_text_as_torch_does() -> None:
    ours, theirs = (bits_per_byte(model, TEXT, SIZE, 32) for model in (kernel_model(), random_model()))

    assert ours == pytest.approx(theirs, abs=1e-4)
