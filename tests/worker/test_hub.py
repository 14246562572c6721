"""Models by their name on the Hub: found in its cache or fetched, and what is said where neither works."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from minilab_worker.hub import checkpoint_folder, repository_of
from minilab_worker.model_names import default_name

from minilab_gen.errors import CheckpointError

MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and a folder to work in where nothing is."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "cache"


def put(cache: Path, commit: str, *files: str) -> Path:
    """A snapshot in the cache, which ``main`` names from now on."""
    model = cache / "models--HuggingFaceTB--SmolLM2-135M-Instruct"
    snapshot = model / "snapshots" / commit
    snapshot.mkdir(parents=True)
    for name in files:
        (snapshot / name).touch()
    (model / "refs").mkdir(exist_ok=True)
    (model / "refs" / "main").write_text(commit)
    return snapshot


def fetching(monkeypatch: pytest.MonkeyPatch, outcome: Path | Exception) -> list[tuple[str, dict[str, Any]]]:
    """Put a double in the place of huggingface_hub; gives the calls that it gets."""
    calls: list[tuple[str, dict[str, Any]]] = []

    def snapshot_download(repository: str, **options: Any) -> str:
        calls.append((repository, options))
        if isinstance(outcome, Exception):
            raise outcome
        return str(outcome)

    monkeypatch.setitem(sys.modules, "huggingface_hub", SimpleNamespace(snapshot_download=snapshot_download))
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: object())
    return calls


def test_a_model_in_the_cache_is_served_from_its_newest_snapshot(cache: Path) -> None:
    put(cache, "aaa", "config.json", "model.safetensors")
    newest = put(cache, "bbb", "config.json", "model-00001-of-00002.safetensors")

    assert checkpoint_folder(Path(MODEL)) == newest
    assert default_name(newest) == "SmolLM2-135M-Instruct"


@pytest.mark.parametrize("variable", ["HF_HOME", "XDG_CACHE_HOME"])
def test_the_cache_is_where_the_hubs_own_variables_say(
    variable: str, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_HUB_CACHE")
    monkeypatch.delenv("HF_HOME", raising=False)
    monkeypatch.setenv(variable, str(tmp_path))
    folder = tmp_path / "hub" if variable == "HF_HOME" else tmp_path / "huggingface" / "hub"
    snapshot = put(folder, "aaa", "config.json", "model.safetensors")

    assert checkpoint_folder(Path(MODEL)) == snapshot


def test_a_folder_of_that_name_goes_first(cache: Path) -> None:
    put(cache, "aaa", "config.json", "model.safetensors")
    Path(MODEL).mkdir(parents=True)

    assert checkpoint_folder(Path(MODEL)) == Path(MODEL)
    assert default_name(Path(MODEL)) == "SmolLM2-135M-Instruct"


@pytest.mark.parametrize("given", ["models", "../models", "./models", "a/b/c", "/a/b", "~/models"])
def test_what_is_no_name_on_the_hub_is_a_path(cache: Path, given: str) -> None:
    assert checkpoint_folder(Path(given)) == Path(given)


@pytest.mark.parametrize("files", [(), ("config.json",)])
def test_a_snapshot_without_weights_is_fetched(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: tuple[str, ...]
) -> None:
    put(cache, "aaa", *files)
    calls = fetching(monkeypatch, tmp_path / "fetched")

    assert checkpoint_folder(Path(MODEL)) == tmp_path / "fetched"
    ((repository, options),) = calls
    assert repository == MODEL
    assert options["ignore_patterns"] == ["*/*"]


def test_a_model_that_cannot_be_fetched_is_named_with_the_reason(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fetching(monkeypatch, OSError("no network\nand more"))

    with pytest.raises(CheckpointError, match=f"^{MODEL} is no folder here, .*cannot be fetched: no network$"):
        checkpoint_folder(Path(MODEL))


def test_without_the_package_it_is_said_how_to_have_it_fetched(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)

    with pytest.raises(CheckpointError, match="`pip install huggingface_hub`"):
        checkpoint_folder(Path(MODEL))


def test_offline_nothing_is_asked_of_the_network(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)

    with pytest.raises(CheckpointError, match="cannot be fetched"):
        checkpoint_folder(Path(MODEL))


def test_other_folders_are_no_snapshots() -> None:
    assert repository_of(Path("/models/snapshots/abc")) is None
    assert repository_of(Path("/cache/models--owner--name/snapshots/abc")) == "name"
