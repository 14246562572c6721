"""Tokenizers of GGUF files: the ids of the folder's ``tokenizer.json``, or a refusal that names the key."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.family_checkpoints import Kind
from support.gguf_files import (
    NORMAL,
    USER_DEFINED,
    Content,
    byte_level_tokens,
    pieces_tokens,
    scores_of,
    write_gguf,
)
from support.tokenizer_kinds import TEXT, llama_2, llama_3, qwen
from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers, processors
from tokenizers import Tokenizer as Library

from minilab_gen.errors import CheckpointError
from minilab_gen.models.source import checkpoint_of
from minilab_gen.text.chat import Conversation
from minilab_gen.text.tokenizer import Tokenizer

TRICKY = [
    *("", " ", "  ", "\n", "\n\n \n", "\r\n", "a\r\nb\rc", "\t\ttab", "tail  ", "  head", " one", "\u00a0nbsp\u2003em"),
    *("Hello world", "double  spaces   here", "I'm don't WE'LL It'S l'été", "camelCase HTMLParser", "a/b/c//d"),
    *("1", "12", "1234567", "7 12 345 6789", "3.14", "٣٤٥ ५", "1er 2e", "$12.50/kg", "x=1;y=22;", "(a)[b]{c}"),
    *(
        "é",
        "e\u0301",
        "l'année 1872, l'hôtel",
        "ﬁ ﬀ",
        "Ǆǅǆ ʰ",
        "ß ẞ",
        "日本語テスト",
        "한국어",
        "العربية",
        "Привет, мир",
    ),
    *("😀", "👍🏽 👨‍👩‍👧", "▁", "▁▁ ▁a", "a▁b", "...!!!???", "--- *** ~~~", "x" * 80, "<0x41>", "<s>", "</s>text"),
    *("<|im_start|>user\nhi<|im_end|>\n", "a<|eot_id|> b", "<think> x </think>", "\x00\x01\x7f", "\u200b\ufeff"),
    *(TEXT[start : start + 37] for start in range(0, len(TEXT), 5)),
]


def read(path: Path, tokens: dict[str, Any], **keys: Any) -> Tokenizer:
    """The tokenizer of a file with these keys."""
    more = {f"tokenizer.ggml.{key}": value for key, value in keys.items()}
    return checkpoint_of(write_gguf(path, Kind("Llama"), tokens, Content(keys=more)).path).check()


def learned(library: Library) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """The vocabulary of a byte-level tokenizer, and its merges."""
    model = json.loads(library.to_str())["model"]
    return model["vocab"], [(left, right) for left, right in model["merges"]]


def as_llama_3() -> Library:
    """As the ``tokenizer.json`` of Llama 3 has it, by the pattern of transformers' converter."""
    from transformers.convert_slow_tokenizer import TikTokenConverter

    vocabulary, merges = learned(llama_3())
    library = Library(models.BPE(vocabulary, merges, ignore_merges=True))
    words = pre_tokenizers.Split(Regex(TikTokenConverter().pattern), "isolated")
    in_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    library.pre_tokenizer = pre_tokenizers.Sequence([words, in_bytes])
    library.decoder = decoders.ByteLevel()
    library.add_special_tokens(["<|begin_of_text|>", "<|eot_id|>"])
    first = "<|begin_of_text|>"
    library.post_processor = processors.TemplateProcessing(single=f"{first} $A", special_tokens=[(first, 0)])
    return library


def as_qwen_2() -> Library:
    """The tokenizer of transformers' class."""
    import transformers

    vocabulary, merges = learned(qwen())
    theirs = transformers.Qwen2Tokenizer(vocab=vocabulary, merges=merges)
    theirs.add_tokens([AddedToken("<|im_start|>", special=True), AddedToken("<|im_end|>", special=True)])
    theirs.add_tokens([AddedToken("<think>", special=False, normalized=False)])
    library: Library = theirs.backend_tokenizer
    return library


def as_gpt_2() -> Library:
    """The tokenizer of transformers' class."""
    import transformers

    vocabulary, merges = learned(qwen())
    theirs = transformers.GPT2Tokenizer(vocab=vocabulary, merges=merges)
    theirs.add_tokens([AddedToken("<|im_start|>", special=True), AddedToken("<|im_end|>", special=True)])
    theirs.add_tokens([AddedToken("<think>", special=False, normalized=False)])
    library: Library = theirs.backend_tokenizer
    return library


def as_smollm() -> Library:
    """As the ``tokenizer.json`` of SmolLM has it."""
    vocabulary, merges = learned(qwen())
    library = Library(models.BPE(vocabulary, merges))
    digits = pre_tokenizers.Digits(individual_digits=True)
    library.pre_tokenizer = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    library.decoder = decoders.ByteLevel()
    library.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    library.add_tokens([AddedToken("<think>", special=False, normalized=False)])
    return library


def as_llama_2() -> Library:
    """Merges from scores by transformers, in a ``tokenizer.json`` as Llama 2 and Mistral have it."""
    from transformers.tokenization_utils_base import generate_merges

    library = llama_2()
    described = json.loads(library.to_str())
    vocabulary = described["model"]["vocab"]
    scores = dict(zip(sorted(vocabulary, key=vocabulary.__getitem__), scores_of(library), strict=True))
    described["model"]["merges"] = [list(pair) for pair in generate_merges(vocabulary, scores)]
    return Library.from_str(json.dumps(described))


BYTE_LEVEL: dict[str, tuple[Callable[[], Library], Callable[[], Library]]] = {
    "llama-bpe": (llama_3, as_llama_3),
    "qwen2": (qwen, as_qwen_2),
    "gpt-2": (qwen, as_gpt_2),
    "smollm": (qwen, as_smollm),
}


def check_equal(ours: Tokenizer, theirs: Library) -> None:
    """See that both make the same ids of every text, and the same text of them."""
    for text in TRICKY:
        ids = theirs.encode(text).ids
        assert ours.encode(text) == ids, text
        assert ours.decode(ids) == theirs.decode(ids), text


@pytest.mark.parametrize("pre", BYTE_LEVEL)
def test_a_byte_level_tokenizer_has_the_ids_of_the_folder(tmp_path: Path, pre: str) -> None:
    source, theirs = BYTE_LEVEL[pre]
    check_equal(read(tmp_path / "x.gguf", byte_level_tokens(source(), pre, bos_token_id=0)), theirs())


def test_pieces_have_the_ids_of_the_folder_though_only_scores_are_there(tmp_path: Path) -> None:
    tokens = pieces_tokens(llama_2(), scores_of(llama_2()), bos_token_id=1, eos_token_id=2)

    check_equal(read(tmp_path / "x.gguf", tokens), as_llama_2())


def test_pieces_have_the_ids_of_sentencepiece_where_the_file_does_not_say(tmp_path: Path) -> None:
    tokens = pieces_tokens(llama_2(), scores_of(llama_2()))
    checkpoint = checkpoint_of(write_gguf(tmp_path / "x.gguf", Kind("Llama"), tokens).path)

    assert checkpoint.tokenizer().encode("Phileas")[0] == 1
    assert checkpoint.stop_ids() == (2,)


def test_pieces_without_a_space_before_a_text_have_none(tmp_path: Path) -> None:
    tokens = pieces_tokens(llama_2(), scores_of(llama_2()), add_space_prefix=False, add_bos_token=False)
    ours = read(tmp_path / "x.gguf", tokens)

    for text in ("Phileas", " Phileas", "a b"):
        ids = ours.encode(text)
        assert ours.decode(ids) == text
    assert ours.encode(" Phileas") != ours.encode("Phileas")


@pytest.mark.parametrize(
    ("bos", "eos", "expected"),
    [
        (None, None, {"llama-bpe": (0, None), "qwen2": (None, None), "pieces": (1, None)}),
        (True, None, {"llama-bpe": (0, None), "qwen2": (0, None), "pieces": (1, None)}),
        (False, None, {"llama-bpe": (None, None), "qwen2": (None, None), "pieces": (None, None)}),
        (True, True, {"llama-bpe": (0, 1), "qwen2": (0, 1), "pieces": (1, 2)}),
    ],
)
@pytest.mark.parametrize("kind", ["llama-bpe", "qwen2", "pieces"])
def test_what_stands_around_a_text_is_what_the_file_says(
    tmp_path: Path, kind: str, bos: bool | None, eos: bool | None, expected: dict[str, tuple[int | None, int | None]]
) -> None:
    if kind == "pieces":
        tokens = pieces_tokens(llama_2(), scores_of(llama_2()), bos_token_id=1, eos_token_id=2)
    else:
        tokens = byte_level_tokens(BYTE_LEVEL[kind][0](), kind, bos_token_id=0, eos_token_id=1)
    ours = read(tmp_path / "x.gguf", tokens, add_bos_token=bos, add_eos_token=eos)
    first, last = expected[kind]

    bare = ours.encode("Fogg", bare=True)

    assert ours.encode("Fogg") == [*[first] * (first is not None), *bare, *[last] * (last is not None)]


def test_a_chat_begins_once(tmp_path: Path) -> None:
    template = "{{ bos_token }}{% for m in messages %}{{ m.role }}: {{ m.content }}<|eot_id|>{% endfor %}"
    tokens = byte_level_tokens(llama_3(), "llama-bpe", bos_token_id=0, eos_token_id=0, add_bos_token=True)
    content = Content(keys={"tokenizer.chat_template": template})
    checkpoint = checkpoint_of(write_gguf(tmp_path / "x.gguf", Kind("Llama"), tokens, content).path)
    chat, tokenizer = checkpoint.chat_format(), checkpoint.tokenizer()
    assert chat is not None

    ids = chat.prompt(Conversation.of("Fogg"), tokenizer)

    assert ids.count(0) == 1
    assert tokenizer.decode(ids) == "user: Fogg"
    assert ids == as_llama_3().encode("<|begin_of_text|>user: Fogg<|eot_id|>", add_special_tokens=False).ids
    assert chat.stop_ids(tokenizer) == [1, 0]  # the end of a turn, though the file only names that of a text


def test_added_tokens_are_special_or_not_as_the_file_says(tmp_path: Path) -> None:
    ours = read(tmp_path / "x.gguf", byte_level_tokens(qwen(), "qwen2"))
    think, start = ours.token_id("<think>"), ours.token_id("<|im_start|>")
    assert think is not None
    assert start is not None

    assert ours.encode("<think><|im_start|>") == [think, start]
    assert ours.decode([think, start]) == "<think>"
    assert ours.is_added(think)
    assert not ours.is_special(think)
    assert ours.is_special(start)


def test_rows_that_only_fill_up_have_no_token(tmp_path: Path) -> None:
    ours = read(tmp_path / "x.gguf", byte_level_tokens(qwen(), "qwen2", rows=400))

    assert ours.vocab_size == qwen().get_vocab_size()
    assert ours.token_id("[PAD390]") is None
    assert 390 not in ours.encode("[PAD390]")


def test_fewer_rows_than_tokens_are_refused(tmp_path: Path) -> None:
    tokens = byte_level_tokens(llama_3(), "llama-bpe", bos_token_id=0)
    kind = Kind("Llama", {"vocab_size": 326})
    path = write_gguf(tmp_path / "x.gguf", kind, tokens).path

    with pytest.raises(CheckpointError, match=r"x.gguf must know at most the 326 ids of the model, got 330"):
        checkpoint_of(path).check()


def test_more_rows_than_tokens_are_left_out(tmp_path: Path) -> None:
    tokens = byte_level_tokens(llama_3(), "llama-bpe", bos_token_id=0)
    path = write_gguf(tmp_path / "x.gguf", Kind("Llama", {"vocab_size": 334}), tokens).path

    assert checkpoint_of(path).open()[1].vocab_size == 330


def test_a_user_defined_piece_is_one_token_wherever_it_stands(tmp_path: Path) -> None:
    tokens = pieces_tokens(llama_2(), scores_of(llama_2()))
    index = tokens["tokens"].index("▁Phileas") if "▁Phileas" in tokens["tokens"] else len(tokens["tokens"]) - 1
    tokens["tokens"][index], tokens["token_type"][index] = "[INST]", USER_DEFINED
    assert NORMAL in tokens["token_type"]

    assert index in read(tmp_path / "x.gguf", tokens).encode("a[INST]b")
