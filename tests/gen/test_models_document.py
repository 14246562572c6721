"""The tables of docs/models.md are what the code says."""

from __future__ import annotations

import importlib.util
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_tables_of_what_is_served_and_refused_are_those_that_the_code_gives() -> None:
    spec = importlib.util.spec_from_file_location("models_table", ROOT / "docs" / "models_table.py")
    assert spec is not None
    assert spec.loader is not None
    table = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(table)
    text = table.DOCUMENT.read_text(encoding="utf-8")

    assert table.written(text) == text, "run: python docs/models_table.py"
    assert "GPTNeoXForCausalLM" in text
