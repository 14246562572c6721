"""Checkpoint folders in the layout of Hugging Face: read, written, fingerprinted.

A folder holds ``config.json``, ``tokenizer.json`` and weights.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from minilab_gen.errors import CheckpointError
from minilab_gen.json_file import read_json
from minilab_gen.kernels.decoder import WeightType
from minilab_gen.kernels.library import numerics
from minilab_gen.kernels.processors import processors
from minilab_gen.models.checkpoint_folder import read_config
from minilab_gen.models.config import ModelConfig
from minilab_gen.models.decoder import MiniLabModel
from minilab_gen.models.families import described
from minilab_gen.models.kernel_model import KernelModel
from minilab_gen.models.tensors import stored_tensors
from minilab_gen.models.weights import SINGLE_FILE, StoredWeights, weight_files
from minilab_gen.text.tokenizer import END_OF_TEXT, Tokenizer, get_tokenizer

_IGNORED = ("rotary_emb.inv_freq", "lm_head.weight")
"""Tensors that may stand in a folder besides: angles that follow from the config, and a tied head stored again."""

_PIECE = 1 << 20
"""Bytes of a file that are hashed at a time."""


def read_stop_ids(folder: Path) -> tuple[int, ...]:
    """The ids at which the model ends a text by itself, from ``generation_config.json`` or ``config.json``."""
    for name in ("generation_config.json", "config.json"):
        if (folder / name).exists():
            stop = read_json(folder / name).get("eos_token_id")
            ids = stop if isinstance(stop, list) else [stop]
            if stop is not None and all(type(token) is int and token >= 0 for token in ids):
                return tuple(ids)
            if stop is not None:
                raise CheckpointError(f"{folder / name}: eos_token_id must be an id or a list of ids, got {stop!r}")
    return ()


def load(
    path: str | Path,
    weights: WeightType = "float32",
    *,
    threads: int | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> KernelModel:
    """The model of a checkpoint folder, computed by the kernels with its weights held as ``weights``.

    Its vocabulary ends where the tokenizer's does. The rows beyond, which some models have for round numbers, are left
    out, so that no id without a text can be chosen. Each tensor is mapped, copied and let go, so that loading needs
    little more memory than the model. Its calls compute with ``threads``, by default with all processors that this
    process may use. ``on_progress`` gets how many tensors have been read, and of how many. Raises
    :class:`~minilab_gen.errors.CheckpointError` naming the tensor that is wrong, and KernelError for lack of memory.
    """
    files, config = _opened(Path(path))
    model = KernelModel(config, weights, threads=threads or processors())
    tensors = list(stored_tensors(config))
    for number, each in enumerate(tensors, 1):
        model.set(each.kernel, files.read(each.stored)[: each.shape[0]].contiguous(), each.layer)
        if on_progress is not None:
            on_progress(number, len(tensors))
    return model


def read_model(folder: str | Path) -> MiniLabModel:
    """The same as a torch decoder in float32: to train on, for other devices, or to compare the kernels with."""
    files, config = _opened(Path(folder))
    model = MiniLabModel(config)
    with torch.no_grad():
        for each in stored_tensors(config):
            rows = slice(each.first, each.first + each.shape[0])
            model.get_parameter(each.parameter)[rows] = files.read(each.stored)[: each.shape[0]]
    return model.eval()


def write_checkpoint(folder: Path, model: MiniLabModel, tokenizer: Tokenizer) -> None:
    """Write a folder that :func:`load` and the transformers library open alike.

    A user that may read its config may read its weights, a worker under a user of its own for instance.
    """
    folder.mkdir(parents=True, exist_ok=True)
    end_of_text = tokenizer.token_id(END_OF_TEXT)
    content = {
        **described(model.config),
        "bos_token_id": end_of_text,
        "eos_token_id": end_of_text,
        "torch_dtype": "float32",
    }
    (folder / "config.json").write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    (folder / "tokenizer.json").write_text(tokenizer.to_json(), encoding="utf-8")
    save_file(_tensors_to_store(model), folder / SINGLE_FILE, metadata={"format": "pt"})
    shutil.copymode(folder / "config.json", folder / SINGLE_FILE)  # safetensors lets only the owner read


def fingerprint(folder: Path, weights: WeightType) -> str:
    """A hash of the folder's files, of how weights are held and of the numerics: equal ones give equal tokens.

    The processor is no part of it, since the kernels give the same bits on all.
    """
    digest = hashlib.sha256(f"numerics {numerics()}, weights in {weights}\n".encode())
    for file in (folder / "config.json", *weight_files(folder), folder / "tokenizer.json"):
        with file.open("rb") as opened:
            while piece := opened.read(_PIECE):
                digest.update(piece)
    return digest.hexdigest()[:32]


def _opened(folder: Path) -> tuple[StoredWeights, ModelConfig]:
    """The tensors in a folder, which are all there, and the shape of the model without ids that have no text."""
    config = read_config(folder)
    files = StoredWeights(folder)
    files.check({each.stored: each.shape for each in stored_tensors(config)}, _IGNORED)
    return files, replace(config, vocab_size=_spoken_vocabulary(folder, config.vocab_size))


def _spoken_vocabulary(folder: Path, vocab_size: int) -> int:
    """How many ids the model may choose from: those that its tokenizer knows, all of them where there is none."""
    if not (folder / "tokenizer.json").exists():
        return vocab_size
    known = get_tokenizer(folder).vocab_size
    if known > vocab_size:
        raise CheckpointError(
            f"{folder / 'tokenizer.json'} must know at most the {vocab_size} ids of the model, got {known}"
        )
    return known


def _tensors_to_store(model: MiniLabModel) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for each in stored_tensors(model.config):
        rows = slice(each.first, each.first + each.shape[0])
        tensors[each.stored] = model.get_parameter(each.parameter).detach()[rows].contiguous()
    return tensors
