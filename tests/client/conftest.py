"""What tests of the client share: its Redis, and the files of ``minilab-client batch``. No assertion."""

from __future__ import annotations

from pathlib import Path

import pytest
import redis
from support.client_program import fake_redis


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Where the lines of a test stand."""
    return tmp_path / "in.jsonl"


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out.jsonl"


@pytest.fixture
def errors(tmp_path: Path) -> Path:
    """Where errors go when nothing else is said."""
    return tmp_path / "out.errors.jsonl"


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> redis.Redis:
    """The fake Redis that the program uses. It knows no INFO."""
    return fake_redis(monkeypatch)
