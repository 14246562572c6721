"""Tokenizers of classes that transformers 5 makes anew, with the words and merges of ``tokenizer.json``.

How a text is cut into them is the class's own. ``LlamaTokenizer`` puts a ``▁`` before the first word of a text and, but
for folders that say ``legacy``, not before what follows a special token; ``GemmaTokenizer`` puts one nowhere.
``Qwen2Tokenizer`` and ``GPTNeoXTokenizer`` compose characters first, and the former has a pattern for words of its own
where the latter and ``GPT2Tokenizer`` have GPT-2's. Which class that is, and what it does to texts, is as in release
5.24.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal, get_args

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from minilab_gen.json_file import read_json

TokenizerClass = Literal["LlamaTokenizer", "GemmaTokenizer", "Qwen2Tokenizer", "GPT2Tokenizer", "GPTNeoXTokenizer"]

_OF_MODELS: Final[Mapping[str, TokenizerClass]] = {
    "gemma3_text": "GemmaTokenizer",
    "gpt2": "GPT2Tokenizer",
    "gpt_neox": "GPTNeoXTokenizer",
    "qwen3": "Qwen2Tokenizer",
}
"""The class for models of a type whose folders name none."""

_WITHOUT_CLASS: Final = ("granite", "mistral", "olmo2", "phi3")
"""Types of models whose folders are read as their ``tokenizer.json`` says, whatever they name."""

_QWEN_WORDS: Final = Regex(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_END: Final = "<|endoftext|>"
_GPT2_ROLES: Final = dict.fromkeys(("unk_token", "bos_token", "eos_token"), _END)
_ROLES: Final[Mapping[str, Mapping[str, str]]] = {
    "Qwen2Tokenizer": dict.fromkeys(("unk_token", "eos_token", "pad_token"), _END),
    "GPT2Tokenizer": _GPT2_ROLES,
    "GPTNeoXTokenizer": _GPT2_ROLES | {"pad_token": "<|padding|>"},
    "GemmaTokenizer": {f"{role}_token": f"<{role}>" for role in ("unk", "bos", "eos", "pad", "mask")},
}


def class_of(folder: Path, settings: Mapping[str, Any]) -> TokenizerClass | None:
    """The class that transformers takes for a folder, where it is one of these."""
    config = read_json(folder / "config.json") if (folder / "config.json").exists() else {}
    model, named = config.get("model_type"), settings.get("tokenizer_class") or config.get("tokenizer_class")
    named = named.removesuffix("Fast") if isinstance(named, str) else None
    if model == "qwen2":  # whose folders on the Hub name wrong ones
        return "Qwen2Tokenizer"
    if model in _WITHOUT_CLASS:
        return None
    if named is None:
        return _OF_MODELS.get(str(model))
    return next((known for known in get_args(TokenizerClass) if known == named), None)


def roles_of(name: TokenizerClass | None) -> Mapping[str, str]:
    """The special tokens that a class has where a folder names none."""
    return _ROLES.get(name, {}) if name is not None else {}


def cut_as(library: Tokenizer, name: TokenizerClass | None, settings: Mapping[str, Any], text: str) -> None:
    """Cut texts as a class does; ``text`` is ``tokenizer.json``, which says otherwise where its kind is another."""
    is_byte_level = '"ByteLevel"' in text  # as transformers looks for it
    if not isinstance(library.model, models.BPE):
        return
    match name:
        case "LlamaTokenizer" if not is_byte_level:
            _cut_as_llama(library, settings)
        case "GemmaTokenizer" if not is_byte_level:
            _cut_as_gemma(library)
        case "Qwen2Tokenizer" if is_byte_level:
            _cut_as_qwen(library, settings)
        case "GPT2Tokenizer" if is_byte_level:
            _cut_as_gpt2(library, settings)
        case "GPTNeoXTokenizer" if is_byte_level:
            _cut_as_gpt2(library, settings)
            library.normalizer = normalizers.NFC()
            library.post_processor = processors.TemplateProcessing(single="$A", pair="$A $B:1")


def _cut_as_llama(library: Tokenizer, settings: Mapping[str, Any]) -> None:
    given = settings.get("add_prefix_space")
    prefix = given is None or bool(given)
    scheme = "never" if not prefix else "always" if settings.get("legacy") else "first"
    library.model.byte_fallback, library.model.fuse_unk = True, True
    library.normalizer = None
    library.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme=scheme, split=False)
    steps: list[decoders.Decoder] = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    library.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if prefix else steps)


def _cut_as_qwen(library: Tokenizer, settings: Mapping[str, Any]) -> None:
    in_bytes = pre_tokenizers.ByteLevel(add_prefix_space=bool(settings.get("add_prefix_space")), use_regex=False)
    library.normalizer = normalizers.NFC()
    library.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(_QWEN_WORDS, "isolated"), in_bytes])
    library.decoder = decoders.ByteLevel()


def _cut_as_gpt2(library: Tokenizer, settings: Mapping[str, Any]) -> None:
    library.normalizer = None
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=bool(settings.get("add_prefix_space")))
    library.decoder = decoders.ByteLevel()


def _cut_as_gemma(library: Tokenizer) -> None:
    library.model.byte_fallback, library.model.fuse_unk = True, True
    library.normalizer = normalizers.Replace(" ", "▁")
    library.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    library.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
