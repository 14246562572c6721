"""Texts and chats have transformers' ids, whichever class a folder names for its tokenizer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.tokenizer_kinds import KINDS, TEXT

from minilab_gen.text.chat import Conversation, read_chat_format
from minilab_gen.text.tokenizer import Tokenizer, get_tokenizer

pytestmark = pytest.mark.filterwarnings("ignore")  # of transformers, about Python

SAMPLES = (
    TEXT,
    "une maison",
    "<s>une</s> maison",
    "a <s> b",
    " deux",
    "  x",
    "a</s>\nb",
    "x\n\ny",
    "",
    "é😀",
    "▁",
    "e\u0301 1872, 7  8",
)
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}{{ eos_token }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
SAID = [
    {"role": role, "content": content}
    for role, content in [("user", "une maison"), ("assistant", " oui"), ("user", "et <s> deux")]
]
SETTINGS: list[tuple[str, str | None, dict[str, Any]]] = [
    ("llama", None, {}),
    ("llama", "PreTrainedTokenizerFast", {"legacy": False}),
    ("llama", "LlamaTokenizer", {}),
    ("llama", "LlamaTokenizer", {"legacy": True}),
    ("llama", "LlamaTokenizerFast", {"legacy": False, "add_bos_token": True}),
    ("llama", "LlamaTokenizerFast", {"legacy": None, "add_bos_token": False, "add_prefix_space": True}),
    ("llama", "LlamaTokenizer", {"add_prefix_space": False}),
    ("mistral", "LlamaTokenizer", {"legacy": True}),
    ("qwen3", "LlamaTokenizer", {"legacy": True}),
]
BYTE_LEVEL: list[tuple[str, str | None, dict[str, Any]]] = [
    ("qwen2", None, {}),
    ("qwen2", "LlamaTokenizerFast", {"unk_token": None, "pad_token": "<|eot_id|>", "legacy": True}),
    ("qwen2", "PreTrainedTokenizerFast", {"add_prefix_space": True}),
    ("qwen3", None, {"unk_token": None}),
    ("qwen3", "PreTrainedTokenizerFast", {}),
    ("qwen3", "Qwen2TokenizerFast", {"add_prefix_space": False}),
    ("llama", "Qwen2Tokenizer", {}),
    ("mistral", "Qwen2Tokenizer", {}),
]
SPACED: list[tuple[str, str | None, dict[str, Any]]] = [
    ("gemma3_text", None, {}),
    ("gemma3_text", "GemmaTokenizerFast", {"add_bos_token": True, "unk_token": "<unk>"}),
    ("llama", "GemmaTokenizer", {"pad_token": "<s>"}),
    ("granite", "LlamaTokenizerFast", {}),
    ("olmo2", None, {}),
    ("phi3", "LlamaTokenizer", {"legacy": False}),
]
OF_GPT: list[tuple[str, str | None, dict[str, Any]]] = [
    ("gpt2", None, {}),
    ("gpt2", "GPT2TokenizerFast", {"add_prefix_space": True, "unk_token": "<|eot_id|>"}),
    ("llama", "GPT2Tokenizer", {}),
    ("granite", "GPT2Tokenizer", {}),
    ("olmo2", "GPT2Tokenizer", {"unk_token": "<|eot_id|>"}),
    ("smollm3", "PreTrainedTokenizerFast", {}),
    ("gpt_neox", None, {}),
    ("gpt_neox", "GPTNeoXTokenizer", {"add_bos_token": True, "add_prefix_space": True}),
    ("gpt_neox", "PreTrainedTokenizerFast", {"add_bos_token": True}),
]
CASES = [(kind, *case) for kind in ("llama-2", "llama-3") for case in SETTINGS]
CASES += [("llama-3", *case) for case in BYTE_LEVEL + OF_GPT] + [("llama-2", *case) for case in SPACED]


def write_folder(folder: Path, kind: str, model_type: str, class_name: str | None, settings: dict[str, Any]) -> None:
    KINDS[kind]().save(str(folder / "tokenizer.json"))
    added = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))["added_tokens"]
    config: dict[str, Any] = {
        "added_tokens_decoder": {str(token.pop("id")): token for token in added},
        "bos_token": added[0]["content"] if kind == "llama-3" else "<s>",
        "eos_token": added[1]["content"] if kind == "llama-3" else "</s>",
        "chat_template": TEMPLATE,
        **settings,
    }
    if class_name is not None:
        config["tokenizer_class"] = class_name
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / "config.json").write_text(
        json.dumps({"model_type": model_type, "hidden_size": 64, "num_attention_heads": 8})
    )


@pytest.mark.parametrize(("kind", "model_type", "class_name", "settings"), CASES)
def test_ids_of_texts_and_chats_are_those_of_transformers(
    tmp_path: Path, kind: str, model_type: str, class_name: str | None, settings: dict[str, Any]
) -> None:
    import transformers

    write_folder(tmp_path, kind, model_type, class_name, settings)
    theirs, ours = transformers.AutoTokenizer.from_pretrained(tmp_path), get_tokenizer(tmp_path)
    chat = read_chat_format(tmp_path)
    received = Tokenizer.from_json(ours.to_json())  # what a client has

    assert ours.vocab_size == len(theirs)
    for text in SAMPLES:
        ids = theirs(text).input_ids
        assert ours.encode(text) == received.encode(text) == ids
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)
    assert chat is not None
    for messages in (SAID[:1], SAID):
        ids = chat.prompt(Conversation.of(messages), ours)
        assert ids == theirs.apply_chat_template(messages, add_generation_prompt=True).input_ids
        assert ids[0] == theirs.bos_token_id != ids[1]  # one from the template, and none from the tokenizer


@pytest.mark.parametrize("kind", ["llama-2", "llama-3"])
def test_a_folder_that_transformers_saved_again_has_the_same_ids(tmp_path: Path, kind: str) -> None:
    import transformers

    write_folder(tmp_path, kind, "llama", "LlamaTokenizer", {"legacy": False})
    before = [get_tokenizer(tmp_path).encode(text) for text in SAMPLES]

    transformers.AutoTokenizer.from_pretrained(tmp_path).save_pretrained(tmp_path)

    assert [get_tokenizer(tmp_path).encode(text) for text in SAMPLES] == before
