"""The library is compiled from what stands here before it is tested, and a test may ask for each back end."""

from __future__ import annotations

import pytest

from minilab_gen.kernels.build import build
from minilab_gen.kernels.library import backends

EVERY_BACKEND = ("avx512", "avx2", "neon", "plain")


@pytest.fixture(scope="session", autouse=True)
def _compiled() -> None:
    build()


@pytest.fixture(params=EVERY_BACKEND)
def each_backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a back end that the test runs with; those that this processor lacks are skipped, and said so."""
    name: str = request.param
    if name not in backends():
        pytest.skip(f"SKIPPED: this processor cannot run the back end {name}; it has {', '.join(backends())}")
    monkeypatch.setenv("MINILAB_KERNELS", name)
    return name
