"""Checkpoint folders in the layout that Hugging Face uses for Llama: read, written, fingerprinted.

It must not know about Redis or about how tokens are chosen.

A folder holds ``config.json``, ``model.safetensors`` and ``tokenizer.json``. On disk the query, key and value
projections are three tensors; here they are one, so that one product makes all three.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from minilab_gen.errors import CheckpointError
from minilab_gen.model import MiniLabModel, ModelConfig
from minilab_gen.tokenizer import END_OF_TEXT, Tokenizer

_KEYS = {
    "vocab_size": "vocab_size",
    "context_length": "max_position_embeddings",
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "n_kv_head": "num_key_value_heads",
    "d_model": "hidden_size",
    "d_hidden": "intermediate_size",
    "rope_theta": "rope_theta",
    "norm_eps": "rms_norm_eps",
    "tied_embeddings": "tie_word_embeddings",
}
"""Our name of each shape: the key in ``config.json``."""

_FIXED = {"hidden_act": "silu", "attention_bias": False, "mlp_bias": False}
"""Keys of ``config.json`` that may be left out but say nothing else, because another model would be meant."""

_BLOCK_TENSORS = {
    "attention_norm": "input_layernorm",
    "output": "self_attn.o_proj",
    "feed_forward_norm": "post_attention_layernorm",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}
_QKV_TENSORS = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")

_PROBE_LENGTH = 16
"""Tokens of the fixed probe whose logits go into the fingerprint."""


def read_config(folder: Path) -> ModelConfig:
    """The shape that ``config.json`` gives. Raises CheckpointError where it is missing or not a Llama."""
    stored = read_json(folder / "config.json")
    architectures = stored.get("architectures") or ["(none named)"]
    if architectures != ["LlamaForCausalLM"]:
        raise CheckpointError(f"{folder}: the architecture must be LlamaForCausalLM, got {', '.join(architectures)}")
    rope = stored.get("rope_parameters") or {"rope_type": "default"}  # where transformers 5 writes rope_theta
    scaling = stored.get("rope_scaling") or (rope if rope.get("rope_type") != "default" else None)
    if scaling:
        raise CheckpointError(f"{folder}: rope_scaling must be absent, got {scaling!r}")
    try:
        config = ModelConfig(**{ours: (rope | stored)[theirs] for ours, theirs in _KEYS.items()})
    except KeyError as error:
        raise CheckpointError(f"{folder / 'config.json'} lacks the key {error.args[0]}") from error
    except ValueError as error:
        raise CheckpointError(f"{folder / 'config.json'}: {error}") from error
    for key, only in {**_FIXED, "head_dim": config.head_dim}.items():
        if stored.get(key) not in (None, only):
            raise CheckpointError(f"{folder}: {key} must be {only!r}, got {stored[key]!r}")
    return config


def read_stop_ids(folder: Path) -> tuple[int, ...]:
    """The ids at which the model ends a text by itself, from ``generation_config.json`` or ``config.json``."""
    for name in ("generation_config.json", "config.json"):
        if (folder / name).exists():
            stop = read_json(folder / name).get("eos_token_id")
            if stop is not None:
                return tuple(stop) if isinstance(stop, list) else (stop,)
    return ()


def read_model(folder: Path) -> MiniLabModel:
    """The model in a folder, not yet frozen. Raises CheckpointError naming the tensor that is wrong."""
    config = read_config(folder)
    file = folder / "model.safetensors"
    try:
        stored = load_file(file)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{file} cannot be read: {error}") from error
    model = MiniLabModel(config)
    for name, weight in model.named_parameters():
        weight.data = _stored_weight(file, stored, _stored_names(name), weight.shape)  # tied ones are one parameter
    return model


def write_checkpoint(folder: Path, model: MiniLabModel, tokenizer: Tokenizer) -> None:
    """Write a folder that :func:`read_model` and the transformers library open alike."""
    folder.mkdir(parents=True, exist_ok=True)
    config = model.config
    end_of_text = tokenizer.token_id(END_OF_TEXT)
    described = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        **{theirs: getattr(config, ours) for ours, theirs in _KEYS.items()},
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": end_of_text,
        "eos_token_id": end_of_text,
        "torch_dtype": "float32",
    }
    (folder / "config.json").write_text(json.dumps(described, indent=2) + "\n", encoding="utf-8")
    (folder / "tokenizer.json").write_text(tokenizer.to_json(), encoding="utf-8")
    save_file(_tensors_to_store(model), folder / "model.safetensors", metadata={"format": "pt"})


def fingerprint(folder: Path, model: MiniLabModel) -> str:
    """A hash of the folder's files and of the logits of a fixed probe: equal ones give equal tokens."""
    digest = hashlib.sha256()
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        digest.update((folder / name).read_bytes())
    length = min(_PROBE_LENGTH, model.config.context_length)
    probe = torch.arange(length, device=model.device) % model.config.vocab_size
    with torch.no_grad():
        logits, _ = model(probe[None])
    digest.update(logits.float().cpu().numpy().tobytes())
    return digest.hexdigest()[:32]


def read_json(file: Path) -> dict[str, Any]:
    """A JSON object from a file. Raises CheckpointError where there is none."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(f"{file} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise CheckpointError(f"{file} is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{file} must hold a JSON object, got {type(content).__name__}")
    return content


def _stored_names(name: str) -> list[str]:
    """The tensors on disk that make up one of ours, in order."""
    if name == "embedding.weight":
        return ["model.embed_tokens.weight"]
    if name == "norm.weight":
        return ["model.norm.weight"]
    if name == "head.weight":
        return ["lm_head.weight"]
    _, layer, module, kind = name.split(".")
    parts = _QKV_TENSORS if module == "qkv" else (_BLOCK_TENSORS[module],)
    return [f"model.layers.{layer}.{part}.{kind}" for part in parts]


def _stored_weight(file: Path, stored: dict[str, Tensor], names: list[str], shape: torch.Size) -> Tensor:
    missing = [name for name in names if name not in stored]
    if missing:
        raise CheckpointError(f"{file} lacks the tensor {missing[0]}")
    try:
        weight = torch.cat([stored[name].float() for name in names])
    except RuntimeError as error:
        raise CheckpointError(f"{file}: {' + '.join(names)} must be {tuple(shape)}: {error}") from error
    if weight.shape != shape:
        raise CheckpointError(f"{file}: {' + '.join(names)} must be {tuple(shape)}, got {tuple(weight.shape)}")
    return weight


def _tensors_to_store(model: MiniLabModel) -> dict[str, Tensor]:
    config = model.config
    query, key_or_value = config.n_head * config.head_dim, config.n_kv_head * config.head_dim
    tensors: dict[str, Tensor] = {}
    for name, weight in model.named_parameters():
        names = _stored_names(name)
        sizes = [query, key_or_value, key_or_value] if len(names) > 1 else [len(weight)]
        tensors.update(zip(names, (part.detach().contiguous() for part in weight.split(sizes)), strict=True))
    return tensors
