"""A shortened chaos run: a few seeds of what ``make chaos`` does with twenty."""

from __future__ import annotations

from pathlib import Path

import pytest
from chaos.checkpoint import Answers, write_slow_checkpoint, written_references
from chaos.http_load import all_requests
from chaos.report import table
from chaos.seed import Scale, Seed
from chaos.server import BINARY

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(BINARY is None, reason="needs redis-server or valkey-server on the PATH"),
    # Seconds: its own limits, of workers that start and of jobs that settle, come first and say more.
    pytest.mark.timeout(900),
]

SCALE = Scale(seconds=5.0, jobs=150)


@pytest.fixture(scope="module")
def chatting_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The slow model with a template for chats."""
    return write_slow_checkpoint(tmp_path_factory.mktemp("chats"), chats=True)


@pytest.fixture(scope="module")
def expected(chatting_checkpoint: Path) -> Answers:
    """What ``generate`` alone answers to the requests that all seeds draw from."""
    return written_references(chatting_checkpoint, all_requests())


@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_no_token_is_missing_or_doubled_whatever_breaks(
    chatting_checkpoint: Path, expected: Answers, seed: int
) -> None:
    report = Seed(seed, SCALE, chatting_checkpoint, expected).run()

    print(table([report]))
    print(report.logs)
    again = f"python -m chaos --seeds 1 --first {seed} --seconds {SCALE.seconds:g} --jobs {SCALE.jobs}"
    assert report.findings.all == [], f"to see it again: PYTHONPATH=tests {again}"
