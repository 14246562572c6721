"""Checkpoints, folders and GGUF files alike: read for the kernels, and fingerprinted. It must not load torch."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

from minilab_gen.kernels.decoder import WeightType
from minilab_gen.kernels.library import numerics
from minilab_gen.kernels.processors import processors
from minilab_gen.models.config import ModelConfig
from minilab_gen.models.kernel_model import KernelModel
from minilab_gen.models.source import Weights, checkpoint_of
from minilab_gen.models.tensors import StoredTensor, stored_tensors
from minilab_gen.models.weights import RawTensor

_PIECE = 1 << 20
"""Bytes of a file that are hashed at a time."""


def read_stop_ids(path: Path) -> tuple[int, ...]:
    """The ids at which the model ends a text by itself."""
    return checkpoint_of(path).stop_ids()


def load(
    path: str | Path,
    weights: WeightType = "float32",
    *,
    threads: int | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> KernelModel:
    """The model of a checkpoint, computed by the kernels with its weights held as ``weights``.

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


def fingerprint(path: Path, weights: WeightType) -> str:
    """A hash of the checkpoint's files, of how weights are held and of the numerics: equal ones give equal tokens.

    The processor is no part of it, since the kernels give the same bits on all.
    """
    digest = hashlib.sha256(f"numerics {numerics()}, weights in {weights}\n".encode())
    for part in checkpoint_of(path).identity():
        if isinstance(part, str):
            digest.update(part.encode())
            continue
        with part.open("rb") as opened:
            while piece := opened.read(_PIECE):
                digest.update(piece)
    return digest.hexdigest()[:32]


def stamps(path: Path) -> list[tuple[int, int, int]]:
    """What changes when a file of a checkpoint is replaced or written: size, time and number of each that is there."""
    present = [file.stat() for file in checkpoint_of(path).files() if file.exists()]
    return [(status.st_size, status.st_mtime_ns, status.st_ino) for status in present]


def open_checkpoint(path: Path) -> tuple[Weights, ModelConfig]:
    """The tensors of a checkpoint, which are all there, and the shape of the model without ids that have no text."""
    return checkpoint_of(path).open()


def read_tensor(weights: Weights, each: StoredTensor) -> RawTensor:
    """A tensor of a model from where a checkpoint has it; of the rows that are stored only those that the model has."""
    return weights.read(each.stored, None if each.cut else each.shape[0]).part(each.cut)
