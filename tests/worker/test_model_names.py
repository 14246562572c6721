"""What a model is called for clients: like its folder, where that is a name."""

from __future__ import annotations

from pathlib import Path

import pytest
from minilab_worker.model_names import default_name

from minilab_gen.errors import RequestError
from minilab_gen.protocol import keys
from minilab_gen.text.tokenizer import BASE_CHECKPOINT


@pytest.mark.parametrize(
    ("folder", "name"),
    [
        ("SmolLM2-135M-Instruct", "SmolLM2-135M-Instruct"),
        ("Llama-3.2-1B", "Llama-3.2-1B"),
        ("Llama 3.2 (1B)", "Llama-3.2-1B"),
        (".hidden.", "hidden"),
        ("x" * 63 + ".2", "x" * 63),
        ("mine.high", "mine-high"),
        ("mine.v2.low", "mine.v2-low"),
        ("mine.normal", "mine-normal"),
        ("mon modèle", "mon-mod-le"),
        ("x" * 80, "x" * 64),
    ],
)
def test_a_model_is_called_like_its_folder(tmp_path: Path, folder: str, name: str) -> None:
    assert default_name(tmp_path / folder) == name
    assert keys.check_model_name(name) == name


def test_a_folder_given_as_a_dot_has_a_name_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine").mkdir()
    monkeypatch.chdir(tmp_path / "mine")

    assert default_name(Path()) == "mine"


def test_the_shipped_model_is_called_base() -> None:
    assert default_name(BASE_CHECKPOINT) == "base"


def test_a_folder_without_a_usable_name_must_be_given_one(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="choose one with --name"):
        default_name(tmp_path / "模型")
