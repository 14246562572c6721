"""Whether a GGUF file is served as what it is: its ids, greedy tokens and logits beside those of llama.cpp.

llama.cpp multiplies packed weights with activations that it rounds to eight bits, so its logits differ by what that
costs. With the same weights unpacked to float32, both should compute the same. It needs llama.cpp's environment
(``benchmarks/install_peers.sh llama_cpp``).
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import click
import numpy as np
from agreement import EngineAnswer, answers, prompts
from smollm2 import FILE, fetch_file

from minilab_gen.models.source import checkpoint_of
from minilab_gen.text.chat import Conversation
from minilab_gen.text.tokenizer import Tokenizer

_PYTHON: Final = Path.home() / ".cache" / "minilab-peers" / "llama_cpp" / "bin" / "python"
_TEXTS: Final = (
    *("Hello  world 1234, café\r\n\n  x", " I'm don't WE'LL", "😀👍🏽 日本語", "a\tb   \n c", "$12.50/kg (x=1;)", ""),
    *("<|im_start|>user\nhi<|im_end|>\n", "l'année 1872", "--- *** ~~~", "\u00a0nbsp\u2003em", "7 12 345 6789"),
)
_QUESTIONS: Final = ("What is a KV cache?", "Name three rivers of France.", "Write a haiku about trains.", "2 + 2?")


def asked_of(file: Path, count: int, longest: int) -> list[tuple[int, ...]]:
    """Chats, and pieces of documents."""
    checkpoint = checkpoint_of(file)
    tokenizer, chat = checkpoint.tokenizer(), checkpoint.chat_format()
    asked = prompts(tokenizer, count, 5, longest)
    return asked if chat is None else asked + [tuple(chat.prompt(Conversation.of(q), tokenizer)) for q in _QUESTIONS]


def ask_llama_cpp(
    file: Path, texts: list[str], given: list[EngineAnswer], *, unpacked: bool
) -> tuple[list[list[int]], list[Any]]:
    """Its ids of texts, and its logits at the position of each token of each answer, (tokens, vocab)."""
    with TemporaryDirectory(prefix="gguf-agreement-") as name:
        stored = Path(name) / "logits.npz"
        question = {
            "file": str(file),
            "unpacked": unpacked,
            "texts": texts,
            "sequences": [[*answer.prompt, *answer.tokens[:-1]] for answer in given],
            "logits": str(stored),
        }
        command = [str(_PYTHON), str(Path(__file__).with_name("gguf_llama_cpp.py"))]
        ended = subprocess.run(command, input=json.dumps(question), capture_output=True, text=True, check=True)
        with np.load(stored) as arrays:
            logits = [
                arrays[f"arr_{number}"][len(answer.prompt) - 1 :, : answer.logits.shape[1]]
                for number, answer in enumerate(given)
            ]
    return json.loads(ended.stdout.splitlines()[-1]), logits


def compared(given: list[EngineAnswer], theirs: list[Any]) -> str:
    """How greedy tokens and logits differ, in a line."""
    gaps, parted, close = [], [], []
    for answer, logits in zip(given, theirs, strict=True):
        ours = answer.logits.numpy()
        gaps.append(np.abs(ours - logits))
        differs = np.flatnonzero(logits.argmax(1) != np.array(answer.tokens))
        if len(differs):
            parted.append(int(differs[0]))
            row = ours[differs[0]]
            close.append(float(row.max() - row[logits[differs[0]].argmax()]))
    every = np.concatenate([gap.ravel() for gap in gaps])
    line = f"logits differ by {every.mean():.2g} in the mean and {every.max():.2g} at most; "
    line += f"{len(given) - len(parted)} of {len(given)} answers are the same to their end"
    if not parted:
        return line
    return (
        f"{line}, the others part after {min(parted)} to {max(parted)} tokens, at logits {max(close):.2g} apart at most"
    )


def ids_agree(tokenizer: Tokenizer, texts: list[str], theirs: list[list[int]]) -> int:
    """How many texts have the same ids."""
    return sum(tokenizer.encode(text) == ids for text, ids in zip(texts, theirs, strict=True))


@click.command(context_settings={"show_default": True})
@click.option("--model", "file", type=click.Path(path_type=Path), default=FILE, help="GGUF file.")
@click.option("--prompts", "count", type=click.IntRange(1, 256), default=12, help="Pieces of documents, beside chats.")
@click.option("--longest", type=click.IntRange(5), default=200, help="Tokens of the longest of them.")
@click.option("--new-tokens", type=click.IntRange(1), default=64, help="Tokens of each answer.")
def main(file: Path, count: int, longest: int, new_tokens: int) -> None:
    """Compare a GGUF file's ids, greedy tokens and logits with llama.cpp's."""
    if file == FILE:
        fetch_file()
    asked = asked_of(file, count, longest)
    given = answers(file, asked, new_tokens)
    tokenizer = checkpoint_of(file).tokenizer()
    texts = [*_TEXTS, *(tokenizer.decode(prompt) for prompt in asked)]
    tokens = sum(len(answer.tokens) for answer in given)
    click.echo(f"{file.name}: {len(given)} prompts, {tokens} greedy tokens")
    for unpacked in (False, True):
        ids, logits = ask_llama_cpp(file, texts, given, unpacked=unpacked)
        if not unpacked:
            click.echo(f"texts with llama.cpp's ids: {ids_agree(tokenizer, texts, ids)} of {len(texts)}")
        click.echo(f"beside llama.cpp, {'weights unpacked to float32' if unpacked else 'weights as they are'}:")
        click.echo(f"  {compared(given, logits)}")


if __name__ == "__main__":
    main()
