"""Checkpoint folders in the layout of Hugging Face: read, written, fingerprinted.

A folder holds ``config.json``, ``tokenizer.json`` and weights. On disk the query, key and value projections are three
tensors; here they are one, so that one product makes all three.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import cast

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from minilab_gen.errors import CheckpointError
from minilab_gen.json_file import read_json
from minilab_gen.models.checkpoint_folder import read_config
from minilab_gen.models.config import ModelConfig
from minilab_gen.models.decoder import MiniLabModel
from minilab_gen.models.families import described
from minilab_gen.models.linear import Linear, can_pack
from minilab_gen.models.weights import SINGLE_FILE, StoredWeights, weight_files
from minilab_gen.text.tokenizer import END_OF_TEXT, Tokenizer, get_tokenizer

_TENSORS = {
    "embedding.weight": "model.embed_tokens.weight",
    "norm.weight": "model.norm.weight",
    "head.weight": "lm_head.weight",
}
"""Our name of a tensor: that on disk."""

_BLOCK_TENSORS = {
    "attention_norm.weight": "input_layernorm.weight",
    "head_norm.query": "self_attn.q_norm.weight",
    "head_norm.key": "self_attn.k_norm.weight",
    "output.weight": "self_attn.o_proj.weight",
    "feed_forward_norm.weight": "post_attention_layernorm.weight",
    "gate.weight": "mlp.gate_proj.weight",
    "up.weight": "mlp.up_proj.weight",
    "down.weight": "mlp.down_proj.weight",
}
"""The same within a layer."""

_QKV_MODULES = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")

_IGNORED = ("rotary_emb.inv_freq", "lm_head.weight")
"""Tensors that may stand in a folder besides: angles that follow from the config, and a tied head stored again."""

_PROBE_LENGTH = 16
"""Tokens of the fixed probe whose logits go into the fingerprint."""

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
    dtype: torch.dtype = torch.float32,
    *,
    packed: bool | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> MiniLabModel:
    """The model of a checkpoint folder, frozen for inference, computing in ``dtype``; ``packed`` as in ``freeze``.

    Each layer is laid out as soon as it is read, so that loading needs little more memory than the model.
    ``on_progress`` gets how many parts have been read, and of how many. Raises
    :class:`~minilab_gen.errors.CheckpointError`.
    """
    packed = can_pack(torch.device("cpu"), dtype) if packed is None else packed
    model = read_model(Path(path), dtype, (lambda layer: layer.freeze(packed=True)) if packed else None, on_progress)
    return model.freeze(packed=packed)


def read_model(
    folder: Path,
    dtype: torch.dtype = torch.float32,
    on_layer: Callable[[Linear], None] | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> MiniLabModel:
    """The model in a folder, not yet frozen. Raises CheckpointError naming the tensor that is wrong.

    Its vocabulary ends where the tokenizer's does. The rows beyond, which some models have for round numbers, are left
    out, so that no id without a text can be chosen.

    With ``on_layer`` weights are mapped from their files where they need no change: it gets each linear layer as soon
    as its weight is there and should lay it out in memory of its own. The embedding stays mapped, as it is stored.
    ``on_progress`` gets how many parts of the model have been read, and of how many.
    """
    stored_config = read_config(folder)
    config = replace(stored_config, vocab_size=spoken_vocabulary(folder, stored_config.vocab_size))
    weights = StoredWeights(folder)
    weights.check(expected_tensors(stored_config), _IGNORED)
    model = _without_weights(config)
    modules = list(model.named_modules())
    for number, (name, module) in enumerate(modules, 1):
        is_mapped = on_layer is not None and isinstance(module, nn.Embedding | Linear)
        for kind, wanted in list(module.named_parameters(recurse=False)):
            parts = [weights.read(part) for part in _stored_parts(f"{name}.{kind}", wanted.shape, config)]
            weight = (torch.cat(parts) if len(parts) > 1 else parts[0])[: len(wanted)]
            if not isinstance(module, nn.Embedding) or on_layer is None:
                weight = weight.to(dtype, copy=not is_mapped)
            setattr(module, kind, nn.Parameter(weight))
            del parts, weight  # so that nothing mapped outlives its layer
        if isinstance(module, Linear) and on_layer is not None:
            on_layer(module)
        if on_progress is not None:
            on_progress(number, len(modules))
    if config.tied_embeddings and on_layer is None:
        model.head.weight = cast(nn.Parameter, model.embedding.weight)
    return model


def write_checkpoint(folder: Path, model: MiniLabModel, tokenizer: Tokenizer) -> None:
    """Write a folder that :func:`read_model` and the transformers library open alike. The model must not be packed.

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


def fingerprint(folder: Path, model: MiniLabModel) -> str:
    """A hash of the folder's files and of the logits of a fixed probe: equal ones give equal tokens."""
    digest = hashlib.sha256()
    for file in (folder / "config.json", *weight_files(folder), folder / "tokenizer.json"):
        with file.open("rb") as opened:
            while piece := opened.read(_PIECE):
                digest.update(piece)
    length = min(_PROBE_LENGTH, model.config.context_length)
    probe = torch.arange(length, device=model.device) % model.config.vocab_size
    with torch.no_grad():
        logits, _ = model(probe[None])
    digest.update(logits.float().cpu().numpy().tobytes())
    return digest.hexdigest()[:32]


def spoken_vocabulary(folder: Path, vocab_size: int) -> int:
    """How many ids the model may choose from: those that its tokenizer knows, all of them where there is none."""
    if not (folder / "tokenizer.json").exists():
        return vocab_size
    known = get_tokenizer(folder).vocab_size
    if known > vocab_size:
        raise CheckpointError(
            f"{folder / 'tokenizer.json'} must know at most the {vocab_size} ids of the model, got {known}"
        )
    return known


def _without_weights(config: ModelConfig) -> MiniLabModel:
    """A model of which only the shapes are there.

    Nothing may be computed for a shape: torch would load its compiler for that, seconds of each start of a worker.
    """
    with torch.device("meta"):
        return MiniLabModel(config)


def expected_tensors(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """The tensors that a folder must hold, and their shapes."""
    expected: dict[str, tuple[int, ...]] = {}
    for name, weight in _without_weights(config).named_parameters():  # a tied head is no parameter of its own
        expected |= _stored_parts(name, weight.shape, config)
    return expected


def _stored_parts(name: str, shape: tuple[int, ...], config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """The tensors on disk that make up one of ours, in order, and their shapes."""
    if name == "head.weight" and config.tied_embeddings:
        name = "embedding.weight"
    if name in _TENSORS:
        return {_TENSORS[name]: tuple(shape)}
    _, layer, part = name.split(".", 2)
    if not part.startswith("qkv."):
        return {f"model.layers.{layer}.{_BLOCK_TENSORS[part]}": tuple(shape)}
    kind = part.removeprefix("qkv.")
    modules = zip(_QKV_MODULES, config.qkv_sizes, strict=True)
    return {f"model.layers.{layer}.{module}.{kind}": (size, *shape[1:]) for module, size in modules}


def _tensors_to_store(model: MiniLabModel) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for name, weight in model.named_parameters():
        parts = _stored_parts(name, weight.shape, model.config)
        pieces = weight.detach().split([shape[0] for shape in parts.values()])
        tensors.update(zip(parts, (piece.contiguous() for piece in pieces), strict=True))
    return tensors
