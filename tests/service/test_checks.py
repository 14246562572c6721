"""The checks of a developer: which tests are slow, and that CONTRIBUTING says how to leave them out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent


def test_a_test_that_may_start_workers_is_slow(
    request: pytest.FixtureRequest, start_worker: Callable[..., object]
) -> None:
    assert request.node.get_closest_marker("slow") is not None


def test_a_test_that_starts_nothing_is_not_slow(request: pytest.FixtureRequest) -> None:
    assert request.node.get_closest_marker("slow") is None


def test_contributing_says_how_to_run_the_quick_tests_and_what_is_slow() -> None:
    contributing = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (rule,) = (line for line in contributing.splitlines() if line.startswith("A test is `slow` if"))

    assert "make quick" in contributing
    assert "starts workers, programs or servers of its own" in rule
    assert 'pytest -m "not slow"' in (ROOT / "Makefile").read_text(encoding="utf-8")
