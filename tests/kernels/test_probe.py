"""What a worker asks of its kernels before it serves: the probe's bits on every back end, and none that differ."""

from __future__ import annotations

import pytest

from minilab_gen.kernels.library import KernelError, numerics
from minilab_gen.models import probe
from minilab_gen.models.probe import check_probe, probe_hash


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_the_probe_has_its_bits_with_every_back_end(each_backend: str, threads: int) -> None:
    check_probe(threads)


def test_other_bits_are_refused_with_what_must_be_and_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "_HASHES", {numerics(): "0" * 32})

    with pytest.raises(
        KernelError, match=rf"must give the probe 0{{32}}, got {probe_hash(1)} with .*MINILAB_KERNELS=plain"
    ):
        check_probe()
