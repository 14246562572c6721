"""Which other kinds of processors a run can act, and that a limit really changes what torch uses."""

from __future__ import annotations

import pytest
from other_processor import FILES, KINDS, TESTS, Kind, capability_with, describe, features, others

pytestmark = pytest.mark.slow

AVX2 = frozenset({"sse4_1", "avx2"})


def names(present: frozenset[str], capability: str, *, can_act: bool) -> list[str]:
    return [kind.name for kind, can in others(present, capability) if can == can_act]


def test_a_processor_with_avx512_acts_the_others() -> None:
    present = AVX2 | {"avx512f"}

    assert names(present, "AVX512", can_act=True) == ["AVX2 and no AVX-512", "torch's own kernels without AVX2"]
    assert names(present, "AVX512", can_act=False) == []


def test_a_processor_without_avx512_says_that_it_cannot_act_it() -> None:
    assert names(AVX2, "AVX2", can_act=True) == ["torch's own kernels without AVX2"]
    assert names(AVX2, "AVX2", can_act=False) == ["AVX-512"]


def test_a_processor_of_another_make_can_act_none() -> None:
    assert names(frozenset({"asimd"}), "NO AVX", can_act=True) == []


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.limits], ids=lambda kind: kind.name)
def test_the_limits_of_a_kind_make_torch_compute_as_it_does(kind: Kind) -> None:
    if kind.needs not in features():
        pytest.skip(f"this processor has no {kind.needs}")

    assert capability_with(kind.limits) == kind.capability


def test_the_files_that_are_run_again_are_there() -> None:
    assert [file for file in FILES if not (TESTS / file).exists()] == []


def test_a_description_names_the_processor_and_what_torch_uses() -> None:
    told = describe()

    assert told.startswith("processor: ")
    assert " uses " in told
