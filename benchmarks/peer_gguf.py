"""A Llama checkpoint written as the GGUF file that llama.cpp reads, its weights in float32 or in eight bits.

It needs the packages gguf, numpy and safetensors, and no torch.

Sources: the names and keys are those of the package's own constants; the order of rotary pairs is described at
:func:`_with_pairs_side_by_side`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from safetensors.numpy import load_file

_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
}
_BLOCK_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def write_gguf(checkpoint: Path, file: Path, kind: gguf.GGMLQuantizationType) -> None:
    """Convert a folder with config.json, tokenizer.json and a float32 model.safetensors.

    Matrices become what ``kind`` says; gains stay in float32, as llama.cpp's own conversion has them.
    """
    config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    writer = gguf.GGUFWriter(file, "llama")
    _add_shape(writer, config, kind)
    _add_tokenizer(writer, json.loads((checkpoint / "tokenizer.json").read_text(encoding="utf-8")), config)
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    for name, weight in load_file(checkpoint / "model.safetensors").items():
        module = _module(name.removesuffix(".weight"))
        if turned := heads.get(module.split(".")[-1]):
            weight = _with_pairs_side_by_side(weight, turned)  # noqa: PLW2901
        held = kind if weight.ndim > 1 else gguf.GGMLQuantizationType.F32
        values = gguf.quants.quantize(np.ascontiguousarray(weight, dtype=np.float32), held)
        writer.add_tensor(f"{module}.weight", values, raw_dtype=held)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_shape(writer: Any, config: dict[str, Any], kind: gguf.GGMLQuantizationType) -> None:
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    is_float = kind == gguf.GGMLQuantizationType.F32
    writer.add_file_type(gguf.LlamaFileType.ALL_F32 if is_float else gguf.LlamaFileType.MOSTLY_Q8_0)


def _add_tokenizer(writer: Any, tokenizer: dict[str, Any], config: dict[str, Any]) -> None:
    """Our byte-level tokenizer, which splits words as GPT-2's does. Ids without a meaning are marked unused."""
    names = {token_id: name for name, token_id in tokenizer["model"]["vocab"].items()}
    special = {token["id"]: token["content"] for token in tokenizer["added_tokens"] if token["special"]}
    names |= special
    kinds = [
        gguf.TokenType.CONTROL
        if token_id in special
        else gguf.TokenType.NORMAL
        if token_id in names
        else gguf.TokenType.UNUSED
        for token_id in range(config["vocab_size"])
    ]
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in tokenizer["model"]["merges"]]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([names.get(token_id, f"[unused {token_id}]") for token_id in range(config["vocab_size"])])
    writer.add_token_types(kinds)
    writer.add_token_merges(merges)
    if config["eos_token_id"] is not None:
        writer.add_bos_token_id(config["bos_token_id"])
        writer.add_eos_token_id(config["eos_token_id"])
    writer.add_add_bos_token(False)


def _module(name: str) -> str:
    """GGUF's name of a module of Hugging Face's."""
    if name in _NAMES:
        return _NAMES[name]
    _, _, layer, module = name.split(".", 3)
    return f"blk.{layer}.{_BLOCK_NAMES[module]}"


def _with_pairs_side_by_side(weight: Any, heads: int) -> Any:
    """Rows of a query or key projection, reordered within each head: (0, half), (1, half + 1), ...

    A rotary position turns pairs of rows. Hugging Face keeps the two of a pair half a head apart, GGUF's Llama side by
    side. The scores stay the same, since queries and keys are reordered alike.
    """
    rows, columns = weight.shape
    halves = weight.reshape(heads, 2, rows // heads // 2, columns)
    return halves.swapaxes(1, 2).reshape(rows, columns)
