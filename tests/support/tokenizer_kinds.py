"""Small tokenizers of the kinds that models come with, made with the tokenizers library. It must not hold any test."""

from __future__ import annotations

import json
from collections.abc import Callable

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

TEXT = """En l'année 1872, la maison portant le numéro 7 de Saville-row, Burlington Gardens, était habitée
par Phileas Fogg, esq., l'un des membres les plus singuliers et les plus remarqués du Reform-Club de Londres.
"""


def llama_2() -> Tokenizer:
    """Pieces with ``▁`` for a space, bytes for what is in no piece, ``<s>`` before every text."""
    learned = Tokenizer(models.BPE())
    learned.pre_tokenizer = pre_tokenizers.Metaspace()
    learned.train_from_iterator([TEXT], trainers.BpeTrainer(vocab_size=150, show_progress=False))
    model = json.loads(learned.to_str())["model"]
    special = ["<unk>", "<s>", "</s>"]
    tokens = [*special, *(f"<0x{byte:02X}>" for byte in range(256)), *model["vocab"]]
    merges = [(left, right) for left, right in model["merges"]]
    library = Tokenizer(
        models.BPE(
            {token: token_id for token_id, token in enumerate(tokens)},
            merges,
            unk_token="<unk>",
            byte_fallback=True,
            fuse_unk=True,
        )
    )
    library.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    library.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    return _with_bos(library, "<s>", _LLAMA_DECODER)


def llama_3() -> Tokenizer:
    """Byte-level, words split by a pattern, ``<|begin_of_text|>`` before every text."""
    library = _byte_level(["<|begin_of_text|>", "<|eot_id|>"])
    pattern = Regex(r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s+")
    library.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(pattern, "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    return _with_bos(library, "<|begin_of_text|>", decoders.ByteLevel())


def qwen() -> Tokenizer:
    """Byte-level over composed characters, nothing before a text, an added token that is no special one."""
    library = _byte_level(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    library.normalizer = normalizers.NFC()
    library.decoder = decoders.ByteLevel()
    library.add_tokens([AddedToken("<think>", special=False, normalized=False)])
    return library


def unigram() -> Tokenizer:
    """Pieces of the kind that SentencePiece calls unigram, without bytes."""
    pieces = [("<unk>", 0.0), ("▁", -2.0), *((letter, -4.0) for letter in sorted(set(TEXT) - {" "}))]
    words = [("▁" + word, -3.0) for word in sorted(set(TEXT.split()))]
    library = Tokenizer(models.Unigram(pieces + words, unk_id=0, byte_fallback=False))
    library.pre_tokenizer = pre_tokenizers.Metaspace()
    library.decoder = decoders.Metaspace()
    library.add_special_tokens(["</s>"])
    return library


KINDS: dict[str, Callable[[], Tokenizer]] = {"llama-2": llama_2, "llama-3": llama_3, "qwen": qwen, "unigram": unigram}

_LLAMA_DECODER = decoders.Sequence(
    [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
)


def _byte_level(special: list[str]) -> Tokenizer:
    library = Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    library.train_from_iterator(
        [TEXT],
        trainers.BpeTrainer(vocab_size=330, special_tokens=special, initial_alphabet=alphabet, show_progress=False),
    )
    return library


def _with_bos(library: Tokenizer, bos: str, decoder: decoders.Decoder) -> Tokenizer:
    library.post_processor = processors.TemplateProcessing(
        single=f"{bos} $A", pair=f"{bos} $A {bos} $B", special_tokens=[(bos, library.token_to_id(bos))]
    )
    library.decoder = decoder
    return library
