"""GGUF files of tiny random models, written by the package ``gguf`` as llama.cpp's converter does. It holds no test."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from tokenizers import Tokenizer

from support.family_checkpoints import CONTEXT, SHAPE, Kind, config_class

Type = gguf.GGMLQuantizationType

PAIRED = ("llama", "granite", "smollm3")
"""Architectures whose queries and keys have rows that turn together side by side."""

MODULES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


POST_NORMED = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}


@dataclass
class Written:
    """A file, and the model that transformers has with the same numbers."""

    path: Path
    model: Any


@dataclass(frozen=True)
class Content:
    """What of a file a test wants otherwise."""

    types: Callable[[str], gguf.GGMLQuantizationType] = lambda name: Type.F32
    """The type of each matrix, by its name there; vectors are F32."""
    keys: Mapping[str, Any] = field(default_factory=dict)
    """Keys besides, or in place of others; None for one that is to be missing."""
    tensors: Mapping[str, Any] = field(default_factory=dict)
    """Tensors besides, or in place of others; None for one that is to be missing."""


def write_gguf(path: Path, kind: Kind, tokens: Mapping[str, Any], content: Content | None = None) -> Written:
    """Write a random model of a kind with these keys of its tokenizer, which gives its vocabulary."""
    import transformers

    content = content or Content()
    shape = {**SHAPE, "vocab_size": len(tokens["tokens"]), **kind.config}
    config = config_class(kind.family)(**shape)
    torch.manual_seed(0)
    model = getattr(transformers, f"{kind.family}ForCausalLM")(config).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            around = 1.0 if name.endswith("norm.weight") and kind.family != "Gemma3" else 0.0
            weight.normal_(around, 0.3 if weight.dim() == 1 else 1.5 * weight.shape[1] ** -0.5)
    name = kind.family.lower()
    keys = {**_shape_keys(name, config), **{f"tokenizer.ggml.{key}": value for key, value in tokens.items()}}
    _write(path, name, {**keys, **content.keys}, _packed(model, config, name, content))
    return Written(path, model)


def _shape_keys(name: str, config: Any) -> dict[str, Any]:
    keys = {
        "context_length": CONTEXT,
        "embedding_length": config.hidden_size,
        "block_count": config.num_hidden_layers,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
    }
    rope = config.rope_parameters
    keys["rope.freq_base"] = rope["full_attention"]["rope_theta"] if name == "gemma3" else rope["rope_theta"]
    if name == "gemma3":
        keys["attention.sliding_window"] = config.sliding_window
    if getattr(config, "head_dim", None):
        keys |= {"attention.key_length": config.head_dim, "attention.value_length": config.head_dim}
    if name == "granite":
        keys |= {"attention.scale": config.attention_multiplier, "embedding_scale": config.embedding_multiplier}
        keys |= {"residual_scale": config.residual_multiplier, "logit_scale": config.logits_scaling}
    return {f"{name}.{key}": value for key, value in keys.items()}


def _packed(model: Any, config: Any, name: str, content: Content) -> dict[str, tuple[Any, gguf.GGMLQuantizationType]]:
    """The tensors of a file; the model gets the numbers that its matrices have there."""
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    packed = {}
    for stored, weight in model.state_dict().items():
        if stored == "lm_head.weight" and config.tie_word_embeddings:
            continue
        called = their_name(stored, name)
        kind = content.types(called) if weight.dim() == 2 else Type.F32
        values = gguf.quantize(weight.numpy(), kind)
        weight.copy_(torch.from_numpy(gguf.dequantize(values, kind).reshape(weight.shape)))
        if name == "gemma3" and called.endswith("norm.weight"):
            values = values + np.float32(1)
        turned = heads.get(called.split(".")[-2]) if name in PAIRED else None
        packed[called] = (_permuted(values, turned) if turned else values, kind)
    for called, values in content.tensors.items():
        packed.pop(called, None)
        if values is not None:
            packed[called] = (values, Type.F16 if values.dtype == np.float16 else Type.F32)
    return packed


def _permuted(weights: Any, heads: int) -> Any:
    """As ``LlamaModel.permute`` of ``convert_hf_to_gguf.py``."""
    halves = weights.reshape(heads, 2, weights.shape[0] // heads // 2, *weights.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(weights.shape))


def their_name(stored: str, name: str) -> str:
    """An architecture's name of a tensor of transformers'."""
    modules = MODULES | (POST_NORMED if name in ("gemma3", "olmo2") else {})
    module, _, kind = stored.rpartition(".")
    if module in modules:
        return f"{modules[module]}.{kind}"
    _, _, layer, part = module.split(".", 3)
    return f"blk.{layer}.{modules[part]}.{kind}"


def _write(path: Path, name: str, keys: Mapping[str, Any], tensors: Mapping[str, tuple[Any, Any]]) -> None:
    writer = gguf.GGUFWriter(path, keys.get("general.architecture", name))
    for key, value in keys.items():
        if value is not None and key != "general.architecture":
            add_value(writer, key, value)
    for called, (values, kind) in tensors.items():
        writer.add_tensor(called, values, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_value(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    """A key of the type that converters give it."""
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)


NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6


def byte_level_tokens(library: Tokenizer, pre: str, rows: int | None = None, **more: Any) -> dict[str, Any]:
    """The keys of a byte-level tokenizer, filled up to so many rows."""
    described = json.loads(library.to_str())
    texts, types = _numbered(library, rows)
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in described["model"]["merges"]]
    return {"model": "gpt2", "pre": pre, "tokens": texts, "token_type": types, "merges": merges, **more}


def pieces_tokens(library: Tokenizer, scores: Sequence[float], rows: int | None = None, **more: Any) -> dict[str, Any]:
    """The keys of SentencePiece's kind of tokenizer, which has scores and no merges."""
    texts, types = _numbered(library, rows)
    types[0] = UNKNOWN
    types = [
        BYTE if len(text) == 6 and text.startswith("<0x") else kind for text, kind in zip(texts, types, strict=True)
    ]
    scores = [*scores, *[-1000.0] * (len(texts) - len(scores))]
    return {"model": "llama", "tokens": texts, "token_type": types, "scores": scores, **more}


def _numbered(library: Tokenizer, rows: int | None) -> tuple[list[str], list[int]]:
    texts = {token_id: text for text, token_id in library.get_vocab(with_added_tokens=True).items()}
    added = library.get_added_tokens_decoder()
    count = max(texts) + 1 if rows is None else rows
    types = [
        UNUSED if i not in texts else NORMAL if i not in added else CONTROL if added[i].special else USER_DEFINED
        for i in range(count)
    ]
    return [texts.get(i, f"[PAD{i}]") for i in range(count)], types


def scores_of(library: Tokenizer) -> list[float]:
    """The score of each token: SentencePiece's is the higher, the earlier its merge was learned."""
    described = json.loads(library.to_str())["model"]
    merged = {"".join(pair): -float(rank) for rank, pair in enumerate(described["merges"])}
    ids = sorted(described["vocab"].items(), key=lambda item: item[1])
    return [merged.get(text, -1e4 - token_id if len(text) == 1 else 0.0) for text, token_id in ids]
