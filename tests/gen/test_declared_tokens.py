"""Tokens that files beside ``tokenizer.json`` declare: they have transformers' ids, or the folder is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.checkpoint_folders import change_json
from support.family_checkpoints import Kind, write
from support.tokenizer_kinds import KINDS, TEXT, llama_3, qwen

from minilab_gen.errors import CheckpointError
from minilab_gen.generate import generate
from minilab_gen.models.checkpoint import fingerprint, load, read_stop_ids, stamps
from minilab_gen.text.chat import Conversation, read_chat_format
from minilab_gen.text.tokenizer import Tokenizer, get_tokenizer

pytestmark = pytest.mark.filterwarnings("ignore")  # of transformers, about Python

TURN, CALL, PAD = "<|turn|>", "<tool_call>", "<|pad|>"
SAMPLES = (TEXT, f"une{TURN}maison {CALL} x{PAD}", f"{TURN}\n{TURN} {CALL}", "a<s> b</s>c", "  deux ", "<|im_end|>é😀")
Shape = Callable[[Path, int], None]


def modern(folder: Path, first: int) -> None:
    """As transformers 4.34 and later write it: all in one file, with ids."""
    own = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))["added_tokens"]
    put(
        folder / "tokenizer_config.json",
        added_tokens_decoder={str(token.pop("id")): token for token in own}
        | {
            str(first): {"content": TURN, "special": False, "normalized": False, "lstrip": False},
            str(first + 1): {"content": CALL, "special": False, "normalized": True, "rstrip": True},
        },
        eos_token=TURN,
        pad_token=PAD,
        tokenizer_class="PreTrainedTokenizerFast",
    )
    put(folder / "added_tokens.json", **{"<never read>": 1})


def legacy(folder: Path, first: int) -> None:
    """As before: ids, roles and settings in three files."""
    put(folder / "added_tokens.json", **{CALL: first + 1, TURN: first})
    eos = {"content": TURN, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False}
    put(folder / "special_tokens_map.json", eos_token=eos, pad_token=PAD)
    put(folder / "tokenizer_config.json", tokenizer_class="PreTrainedTokenizerFast", eos_token="</s>")


def by_role(folder: Path, first: int) -> None:
    """Tokens without ids: they follow those of tokenizer.json in the order of their roles."""
    put(
        folder / "tokenizer_config.json",
        pad_token={"__type": "AddedToken", "content": PAD, "normalized": False, "special": True},
        eos_token=TURN,
        additional_special_tokens=[CALL, TURN],
        image_token="<image>",
        tokenizer_class="PreTrainedTokenizerFast",
    )


def newest(folder: Path, first: int) -> None:
    """As transformers 5 writes what it read: all in tokenizer.json."""
    import transformers

    modern(folder, first)
    transformers.AutoTokenizer.from_pretrained(folder).save_pretrained(folder)
    (folder / "added_tokens.json").unlink()


SHAPES: dict[str, Shape] = {"modern": modern, "legacy": legacy, "by-role": by_role, "newest": newest}


def put(file: Path, **content: Any) -> None:
    file.write_text(json.dumps(content), encoding="utf-8")


def write_folder(folder: Path, kind: str, shape: Shape) -> None:
    library = KINDS[kind]()
    library.save(str(folder / "tokenizer.json"))
    put(folder / "config.json", model_type="llama", hidden_size=64, num_attention_heads=8)
    shape(folder, library.get_vocab_size())


def theirs_of(folder: Path) -> Any:
    import transformers

    return transformers.AutoTokenizer.from_pretrained(folder)


# What is read


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", KINDS)
def test_ids_of_declared_tokens_are_those_of_transformers(tmp_path: Path, kind: str, shape: str) -> None:
    write_folder(tmp_path, kind, SHAPES[shape])
    theirs, ours = theirs_of(tmp_path), get_tokenizer(tmp_path)

    assert ours.vocab_size == len(theirs)
    for text in SAMPLES:
        assert ours.encode(text) == theirs(text).input_ids
        assert ours.encode(text, bare=True) == theirs(text, add_special_tokens=False).input_ids
    added = {i: token.special for i, token in theirs.added_tokens_decoder.items()}
    assert {i: ours.is_special(i) for i in range(ours.vocab_size) if ours.is_added(i)} == added
    assert {TURN, CALL, PAD} <= {token.content for token in theirs.added_tokens_decoder.values()}


@pytest.mark.parametrize("shape", SHAPES)
def test_a_client_gets_the_declared_tokens_with_the_tokenizer(tmp_path: Path, shape: str) -> None:
    write_folder(tmp_path, "llama-3", SHAPES[shape])
    ours = get_tokenizer(tmp_path)

    received = Tokenizer.from_json(ours.to_json())

    assert [received.encode(text) for text in SAMPLES] == [ours.encode(text) for text in SAMPLES]
    assert received.vocab_size == ours.vocab_size


@pytest.mark.parametrize("shape", ["modern", "legacy", "by-role"])
def test_a_declared_end_of_turn_can_be_chosen_and_ends_an_answer(tmp_path: Path, shape: str) -> None:
    library = qwen()
    first = library.get_vocab_size()
    theirs = write(tmp_path, Kind("Qwen2", {"vocab_size": first + 8, "eos_token_id": first}))
    library.save(str(tmp_path / "tokenizer.json"))
    SHAPES[shape](tmp_path, first)
    template = "{% for m in messages %}{{ m.role }}\n{{ m.content }}<|turn|>{% endfor %}"
    template += "{% if add_generation_prompt %}a{% endif %}"
    change_json(tmp_path / "tokenizer_config.json", chat_template=template)
    tokenizer, chat = get_tokenizer(tmp_path), read_chat_format(tmp_path)
    ours = load(tmp_path, threads=1)

    assert chat is not None
    said = [{"role": "user", "content": "une maison"}]
    ids = chat.prompt(Conversation.of(said), tokenizer)
    assert ids == theirs_of(tmp_path).apply_chat_template(said, add_generation_prompt=True).input_ids
    assert first in ids
    assert set(chat.stop_ids(tokenizer)) == {first}
    assert read_stop_ids(tmp_path) == (theirs.generation_config.eos_token_id,)
    with torch.no_grad():
        expected = theirs(torch.tensor([ids])).logits[0, :, : tokenizer.vocab_size]
    gap = (ours(torch.tensor([ids]))[0][0] - expected).abs().max().item()
    assert gap < 1e-4
    assert [step.token_id for step in generate(ours, ids, 1)] == [int(expected[-1].argmax())]


def test_special_tokens_of_an_older_folder_may_stand_in_a_template(tmp_path: Path) -> None:
    write_folder(tmp_path, "llama-3", legacy)
    change_json(tmp_path / "tokenizer_config.json", chat_template="{{ messages[0].content }}{{ eos_token }}")

    chat = read_chat_format(tmp_path)

    assert chat is not None
    assert chat.render(Conversation.of("une"), add_generation_prompt=False) == f"une{TURN}"


def test_the_fingerprint_and_the_stamps_of_a_folder_see_its_declared_tokens(tmp_path: Path) -> None:
    write(tmp_path, Kind("Llama", {"vocab_size": 400}))
    llama_3().save(str(tmp_path / "tokenizer.json"))
    modern(tmp_path, 330)
    before, stamped = fingerprint(tmp_path, "float32"), stamps(tmp_path)

    change_json(tmp_path / "tokenizer_config.json", chat_template="{{ messages }}")

    assert fingerprint(tmp_path, "float32") == before  # the same ids
    assert stamps(tmp_path) != stamped
    change_json(tmp_path / "tokenizer_config.json", eos_token="<other>")
    assert fingerprint(tmp_path, "float32") != before


# What is refused

DECODER = "added_tokens_decoder must be an object of ids and tokens, got"
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("tokenizer_config.json", {"added_tokens_decoder": {"340": {"content": TURN}}}, "must have the id 340 as declared"),
    ("tokenizer_config.json", {"added_tokens_decoder": {"5": {"content": TURN}}}, "but gets 330 with tokenizer.json"),
    (
        "tokenizer_config.json",
        {"added_tokens_decoder": {"7": {"content": "<|eot_id|>"}}},
        "id 7 as declared, but gets 1",
    ),
    ("tokenizer_config.json", {"added_tokens_decoder": [TURN]}, DECODER),
    ("tokenizer_config.json", {"added_tokens_decoder": {"x": {"content": TURN}}}, DECODER),
    ("tokenizer_config.json", {"added_tokens_decoder": {"330": {"text": TURN}}}, "a token must be a text or an object"),
    ("tokenizer_config.json", {"extra_special_tokens": 7}, "extra_special_tokens must be a list of tokens, got 7"),
    ("tokenizer_config.json", {"extra_special_tokens": [7]}, "a token must be a text or an object with content, got 7"),
    ("tokenizer_config.json", {"split_special_tokens": True}, "split_special_tokens must be false, got true"),
    ("added_tokens.json", {TURN: 331}, "must have the id 331 as declared, but gets 330 with tokenizer.json; correct"),
    ("added_tokens.json", {TURN: 1}, "must have the id 1 as declared, but gets None"),
    ("added_tokens.json", {TURN: 330, CALL: 330}, "must give each token an id of its own"),
    ("added_tokens.json", {TURN: "330"}, "must give each token an id of its own"),
]


@pytest.mark.parametrize(("name", "content", "message"), REFUSED)
def test_tokens_whose_ids_cannot_be_reconciled_are_refused(
    tmp_path: Path, name: str, content: dict[str, Any], message: str
) -> None:
    llama_3().save(str(tmp_path / "tokenizer.json"))
    put(tmp_path / name, **content)

    with pytest.raises(CheckpointError, match=message):
        get_tokenizer(tmp_path)
