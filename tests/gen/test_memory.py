"""How many tokens a worker makes room for."""

from __future__ import annotations

from pathlib import Path

import pytest
from minilab_worker import memory
from minilab_worker.memory import free_bytes, tokens_that_fit

from minilab_gen.models.config import ModelConfig
from minilab_gen.models.kernel_model import KernelModel


def test_a_token_of_the_base_model_takes_1024_bytes() -> None:
    model = KernelModel(ModelConfig())

    assert model.bytes_of_a_token == 1024  # 4 layers, 1 key head of 32, keys and values, 4 bytes


def test_values_take_whole_vectors() -> None:
    model = KernelModel(ModelConfig(n_layer=1, n_head=2, n_kv_head=2, own_head_dim=20))

    assert model.bytes_of_a_token == 2 * (20 + 32) * 4


def test_half_of_the_free_memory_is_for_keys_and_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free_bytes", lambda: 1_000_000)

    assert tokens_that_fit(1000, most=10_000, least=1) == 500
    assert tokens_that_fit(1000, most=300, least=1) == 300
    assert tokens_that_fit(1000, most=10_000, least=8192) == 8192


def test_a_container_leaves_what_its_limit_leaves(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text("5000000\n")
    (tmp_path / "memory.current").write_text("2000000\n")
    monkeypatch.setattr(memory, "_CONTROL_GROUP", tmp_path)

    assert free_bytes() == 3_000_000


@pytest.mark.parametrize("limit", ["max\n", None])
def test_without_a_limit_the_machine_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, limit: str | None) -> None:
    if limit:
        (tmp_path / "memory.max").write_text(limit)
        (tmp_path / "memory.current").write_text("2000000\n")
    monkeypatch.setattr(memory, "_CONTROL_GROUP", tmp_path)

    assert free_bytes() > 10_000_000
