"""Checkpoint folders in the layout of Hugging Face: read for the kernels, and fingerprinted. It must not load torch.

A folder holds ``config.json``, ``tokenizer.json`` and weights.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

from minilab_gen.errors import CheckpointError
from minilab_gen.json_file import read_json
from minilab_gen.kernels.decoder import WeightType
from minilab_gen.kernels.library import numerics
from minilab_gen.kernels.processors import processors
from minilab_gen.models.checkpoint_folder import log_left_over, read_config, spoken_vocabulary
from minilab_gen.models.config import ModelConfig
from minilab_gen.models.kernel_model import KernelModel
from minilab_gen.models.tensors import StoredTensor, names_of, stored_tensors
from minilab_gen.models.weights import RawTensor, StoredWeights, weight_files
from minilab_gen.text.declared_tokens import read_declared_tokens
from minilab_gen.text.tokenizer import get_tokenizer
from minilab_gen.text.tokenizer_config import DECLARING_FILES

_log = logging.getLogger(__name__)

_FOLLOWING: Final = (
    *("rotary_emb.inv_freq", "attn.bias", "attn.masked_bias"),
    *("attention.bias", "attention.masked_bias"),
)
"""Ends of names that may stand in a folder besides: angles and masks, which follow from the config."""

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
    out, so that no id without a text can be chosen. Each tensor is read, copied and let go, so that loading needs
    little more memory than the model. Its calls compute with ``threads``, by default with all processors that this
    process may use. ``on_progress`` gets how many tensors have been read, and of how many. Raises
    :class:`~minilab_gen.errors.CheckpointError` naming the tensor that is wrong, and KernelError for lack of memory.
    """
    files, config = open_checkpoint(Path(path))
    model = KernelModel(config, weights, threads=threads or processors())
    tensors = list(stored_tensors(config))
    for number, each in enumerate(tensors, 1):
        model.set(each.kernel, read_tensor(files, each), each.layer)
        if on_progress is not None:
            on_progress(number, len(tensors))
    return model


def fingerprint(folder: Path, weights: WeightType) -> str:
    """A hash of the folder's files, of how weights are held and of the numerics: equal ones give equal tokens.

    The processor is no part of it, since the kernels give the same bits on all.
    """
    digest = hashlib.sha256(f"numerics {numerics()}, weights in {weights}\n".encode())
    digest.update(read_declared_tokens(folder).described().encode())  # not all of their files: a template has no id
    for file in (folder / "config.json", *weight_files(folder), folder / "tokenizer.json"):
        with file.open("rb") as opened:
            while piece := opened.read(_PIECE):
                digest.update(piece)
    return digest.hexdigest()[:32]


def stamps(folder: Path) -> list[tuple[int, int, int]]:
    """What changes when a file of a checkpoint is replaced or written: size, time and number of each that is there."""
    names = ("config.json", "tokenizer.json", *DECLARING_FILES)
    files = (*(folder / name for name in names), *weight_files(folder))
    present = [file.stat() for file in files if file.exists()]
    return [(status.st_size, status.st_mtime_ns, status.st_ino) for status in present]


def open_checkpoint(folder: Path) -> tuple[StoredWeights, ModelConfig]:
    """The tensors in a folder, which are all there, and the shape of the model without ids that have no text."""
    config = read_config(folder)
    log_left_over(folder)
    files = StoredWeights(folder)
    config = _with_its_head(config, files)
    ignored = (*_FOLLOWING, names_of(config)["head"])  # and a tied head that is stored again
    files.check({each.stored: each.stored_shape for each in stored_tensors(config)}, ignored)
    return files, replace(config, vocab_size=_spoken_vocabulary(folder, config.vocab_size))


def read_tensor(files: StoredWeights, each: StoredTensor) -> RawTensor:
    """A tensor of a model from where a checkpoint has it; of the rows that are stored only those that the model has."""
    return files.read(each.stored, None if each.cut else each.shape[0]).part(each.cut)


def _with_its_head(config: ModelConfig, files: StoredWeights) -> ModelConfig:
    """The shape with the head that is stored: as in transformers, one that differs from the embedding is not tied."""
    head, embedding = names_of(config)["head"], names_of(config)["embedding"]
    if not config.tied_embeddings or head not in files:
        return config
    if embedding not in files:
        files.rename(head, embedding)  # some store what is tied under its other name
    elif not files.equal(head, embedding):
        _log.warning("tie_word_embeddings is true, but %s is stored and differs from %s: it is used", head, embedding)
        return replace(config, tied_embeddings=False)
    return config


def _spoken_vocabulary(folder: Path, vocab_size: int) -> int:
    """How many ids the model may choose from, all of them where there is no tokenizer."""
    if not (folder / "tokenizer.json").exists():
        return vocab_size
    return spoken_vocabulary(folder, get_tokenizer(folder), vocab_size)
