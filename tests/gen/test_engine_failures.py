"""What is raised within a step ends the sequence that it is about, or the step, and nothing else."""

from __future__ import annotations

import pytest
import torch
from support.watched_engine import (
    Watched,
    alone,
    assert_equal_alone,
    model_of,
    request_of,
    stand_in,
)

from minilab_gen.engine import Engine, Sequence
from minilab_gen.kernels.library import KernelError
from minilab_gen.models.kernel_model import KernelModel
from minilab_gen.request import GenerationRequest, SamplingSettings


class BrokenError(Exception):
    """What an observer, or a signal, raises in these tests."""


def model_that_raises_at(token: int, error: Exception) -> KernelModel:
    """A model whose decoder raises where an id is among those read."""

    def refuse(ids: list[int]) -> None:
        if token in ids:
            raise error

    return stand_in(model_of(), before=refuse)


@pytest.mark.parametrize("prefill_tokens", [4, 256])
def test_kernels_that_refuse_one_sequence_fail_that_one_alone(prefill_tokens: int) -> None:
    model = model_that_raises_at(61, KernelError("there is no memory for a step of 6 rows"))
    good = {f"good-{number}": request_of(3 + number, 6, SamplingSettings(1.0, seed=number)) for number in range(4)}
    assert not any(61 in alone(request).tokens for request in good.values())
    watched = Watched(model, max_batch=3, kernels_refuse=True, prefill_tokens=prefill_tokens)
    for name, request in good.items():
        watched.add(name, request)
        watched.add(f"bad-{name}", GenerationRequest((5, 6, 7, 8, 9, 61), 4))

    watched.run()

    assert_equal_alone(watched, good, model_of())
    assert {watched.errors[f"bad-{name}"] for name in good} == {"there is no memory for a step of 6 rows"}


def test_what_the_caller_is_interrupted_by_ends_the_step_and_no_sequence() -> None:
    """A signal may raise wherever it comes, around the kernels, too."""
    watched = Watched(model_that_raises_at(61, BrokenError("too hot")), kernels_refuse=True)
    watched.add("good", request_of(3, 6))
    watched.add("interrupted", GenerationRequest((5, 61), 4))

    with pytest.raises(BrokenError, match="too hot"):
        watched.step()

    assert watched.ends == {}


def test_an_observer_that_raises_is_not_taken_for_kernels_that_refuse() -> None:
    def object_to(sequence: Sequence, row: torch.Tensor) -> None:
        raise BrokenError("not what was expected")

    engine = Engine(model_of(), 2, on_logits=object_to)
    engine.add(Sequence("a", request_of(3, 6)))

    with pytest.raises(BrokenError, match="not what was expected"):
        engine.step()
