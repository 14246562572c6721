"""Models by their name on the Hugging Face Hub: found in its cache on this machine, and fetched into it where possible.

The cache's layout is described in huggingface_hub's documentation, "Understand caching": ``refs/main`` of a model's
folder holds the name of the snapshot that is the newest. Only to fetch a model takes the package itself.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import re
from pathlib import Path
from typing import Final

from minilab_gen.errors import CheckpointError

_log = logging.getLogger(__name__)

_REPOSITORY: Final = re.compile(r"([A-Za-z0-9_.-]+)/([A-Za-z0-9_.-]+)")

_FILES: Final = ("*.json", "*.safetensors", "*.jinja")
"""What of a repository is fetched; nothing from its folders, which hold other formats."""


def checkpoint_folder(given: Path) -> Path:
    """The folder that was given; for ``owner/name``, which is none, its snapshot in the Hub's cache.

    It is fetched first where it is not there, huggingface_hub is, and no switch of that says "offline". Raises
    CheckpointError for a model that is neither there nor to be had.
    """
    repository = _REPOSITORY.fullmatch(str(given))
    is_path = given.exists() or given.suffix == ".gguf"
    if is_path or not repository or "." in (repository[1], repository[2]) or ".." in repository.groups():
        return given
    cached = _snapshot(repository[1], repository[2])
    return cached if cached is not None else _fetched(str(given))


def repository_of(folder: Path) -> str | None:
    """The name, without its owner, of the model whose snapshot in the Hub's cache this is; None for other folders."""
    is_snapshot = folder.parent.name == "snapshots" and folder.parent.parent.name.startswith("models--")
    return folder.parent.parent.name.rpartition("--")[2] if is_snapshot else None


def _snapshot(owner: str, name: str) -> Path | None:
    """The newest snapshot of a model in the cache, if it has weights, too."""
    model = _cache() / f"models--{owner}--{name}"
    main = model / "refs" / "main"
    if not main.is_file():
        return None
    snapshot = model / "snapshots" / main.read_text(encoding="utf-8").strip()
    return snapshot if (snapshot / "config.json").exists() and any(snapshot.glob("*.safetensors")) else None


def _cache() -> Path:
    """Where huggingface_hub keeps models, by the variables that it reads."""
    if named := os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE"):
        return Path(named).expanduser()
    caches = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache"))
    return Path(os.environ.get("HF_HOME", caches / "huggingface")).expanduser() / "hub"


def _fetched(repository: str) -> Path:
    missing = f"{repository} is no folder here, and not in the Hub's cache {_cache()}"
    if importlib.util.find_spec("huggingface_hub") is None:
        raise CheckpointError(
            f"{missing}; `pip install huggingface_hub`, and it is fetched, or give the path of a checkpoint folder"
        )
    from huggingface_hub import snapshot_download

    _log.info("%s: fetching it from the Hub", repository)
    try:
        return Path(snapshot_download(repository, allow_patterns=list(_FILES), ignore_patterns=["*/*"]))
    except (OSError, ValueError) as error:  # what it raises without a network, for an unknown name, and offline
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise CheckpointError(f"{missing}, and cannot be fetched: {reason}") from error
