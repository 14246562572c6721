"""Training: the same seed gives the same weights, also when the run was killed in between; and what it writes."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result
from rich.console import Console

from minilab_gen.errors import RequestError
from minilab_gen.models.checkpoint_folder import read_config
from minilab_gen.models.config import ModelConfig
from minilab_gen.models.decoder import MiniLabModel
from minilab_gen.models.torch_checkpoint import read_model
from minilab_gen.text.tokenizer import END_OF_TEXT, get_tokenizer, train_tokenizer
from minilab_gen.train import main, train
from minilab_gen.training.corpus import Corpus, read_corpus, token_row
from minilab_gen.training.trainer import Trainer, TrainSettings

pytestmark = pytest.mark.slow

BOOK = "\n\n".join(
    f"Chapitre {number}\nPhileas Fogg avait parié {number * 1000} livres.\nPassepartout le suivit à la gare {number}."
    for number in range(1, 9)
)
SETTINGS = TrainSettings(
    seed=3,
    steps=6,
    batch=2,
    vocab_size=280,
    held_out_chapters=2,
    warmup=2,
    report_every=3,
    model=ModelConfig(vocab_size=280, context_length=16, n_layer=1, n_head=2, n_kv_head=1, d_model=16, d_hidden=16),
)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Two threads on products this small only wait for each other; also, the command line sets a number."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def book(tmp_path: Path) -> Path:
    file = tmp_path / "book.txt"
    file.write_text(BOOK, encoding="utf-8")
    return file


@pytest.fixture
def corpus(book: Path) -> Corpus:
    return read_corpus([book], SETTINGS.held_out_chapters)


def trained(settings: TrainSettings, corpus: Corpus, folder: Path) -> Trainer:
    return train(settings, corpus, folder, Console(file=io.StringIO()))


def same_weights(one: MiniLabModel, other: MiniLabModel) -> bool:
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return all(torch.equal(ours, theirs) for ours, theirs in pairs)


# A run is a function of its settings


def test_a_seed_gives_the_same_weights_and_another_seed_gives_others(corpus: Corpus, tmp_path: Path) -> None:
    first, second = (trained(SETTINGS, corpus, tmp_path / name) for name in ("first", "second"))
    other = trained(replace(SETTINGS, seed=4), corpus, tmp_path / "other")

    assert same_weights(first.model, second.model)
    assert first.history == second.history
    assert not same_weights(first.model, other.model)


@pytest.mark.parametrize("killed_after", [1, 3, 4, 6])
def test_a_killed_run_that_is_taken_up_ends_at_the_weights_of_an_unbroken_one(
    corpus: Corpus, tmp_path: Path, killed_after: int
) -> None:
    unbroken = trained(SETTINGS, corpus, tmp_path / "unbroken")
    folder = tmp_path / "killed"
    folder.mkdir()
    killed = Trainer(SETTINGS, corpus, folder)
    for _ in zip(range(killed_after), killed.run(), strict=False):
        pass

    resumed = trained(SETTINGS, corpus, folder)

    assert resumed.step == SETTINGS.steps
    assert same_weights(resumed.model, unbroken.model)
    assert resumed.history == unbroken.history


def test_a_saved_state_is_taken_up_where_it_was_saved(corpus: Corpus, tmp_path: Path) -> None:
    killed = Trainer(SETTINGS, corpus, tmp_path)
    for _ in zip(range(4), killed.run(), strict=False):
        pass

    resumed = Trainer(SETTINGS, corpus, tmp_path)

    assert resumed.resume()
    assert resumed.step == 3


@pytest.mark.parametrize("change", ["settings", "books"])
def test_the_state_of_another_run_is_not_taken_up(corpus: Corpus, tmp_path: Path, change: str) -> None:
    list(Trainer(SETTINGS, corpus, tmp_path).run())
    settings = replace(SETTINGS, learning_rate=1e-3) if change == "settings" else SETTINGS
    books = Corpus(((*corpus.books[0], "Un chapitre de plus.\n"),), corpus.held_out) if change == "books" else corpus

    other = Trainer(settings, books, tmp_path)

    assert not other.resume()
    assert other.step == 0


def test_a_state_cut_short_by_a_full_disk_is_never_in_the_place_of_a_good_one(corpus: Corpus, tmp_path: Path) -> None:
    list(Trainer(SETTINGS, corpus, tmp_path).run())
    (tmp_path / "training-state.pt.part").write_bytes(b"half")

    assert Trainer(SETTINGS, corpus, tmp_path).resume()


def test_training_lowers_the_loss(corpus: Corpus, tmp_path: Path) -> None:
    run = trained(replace(SETTINGS, steps=40, report_every=10, learning_rate=1e-2), corpus, tmp_path)

    assert run.history[-1].loss < run.history[0].loss - 0.5
    assert run.history[-1].validation_loss < run.history[0].validation_loss


def test_the_learning_rate_rises_then_falls_to_a_hundredth() -> None:
    settings = TrainSettings(steps=100, warmup=10, learning_rate=1.0)
    rates = [settings.rate_at(step) for step in range(101)]

    assert rates[:11] == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.0])
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert rates[100] == pytest.approx(0.01)


# What it writes


def test_a_run_leaves_a_checkpoint_its_record_and_its_curve(corpus: Corpus, tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"

    run = trained(SETTINGS, corpus, folder)

    names = {
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
        "training.json",
        "training.png",
    }
    assert {file.name for file in folder.iterdir()} == names
    assert same_weights(read_model(folder), run.model)
    assert get_tokenizer(folder).to_json() == run.tokenizer.to_json()
    assert (folder / "training.png").read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_a_run_says_so_before_its_first_step_and_draws_no_curve(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "training.png").write_bytes(b"the curve of an earlier run")
    for name in ("matplotlib", "matplotlib.figure"):
        monkeypatch.setitem(sys.modules, name, None)  # so that its import fails, as where it is not installed
    said = io.StringIO()

    train(SETTINGS, corpus, tmp_path, Console(file=said))

    assert said.getvalue().startswith("matplotlib is not installed, so no training.png will be drawn")
    assert "pip install matplotlib\n" in said.getvalue()
    names = {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "training.json"}
    assert {file.name for file in tmp_path.iterdir()} - {"book.txt"} == names


def test_the_record_tells_the_settings_and_the_history(corpus: Corpus, tmp_path: Path) -> None:
    run = trained(SETTINGS, corpus, tmp_path)

    record = json.loads((tmp_path / "training.json").read_text(encoding="utf-8"))

    assert record["settings"]["seed"] == 3
    assert record["settings"]["model"]["d_model"] == 16
    assert [row["step"] for row in record["history"]] == [3, 6]
    assert record["history"][-1]["validation_loss"] == run.history[-1].validation_loss
    assert record["held_out_bits_per_byte"] == pytest.approx(run.held_out_bits_per_byte(), abs=1e-4)


def test_bits_per_byte_judge_every_token_once(corpus: Corpus, tmp_path: Path) -> None:
    run = Trainer(SETTINGS, corpus, tmp_path)
    with torch.no_grad():
        for weight in run.model.parameters():
            weight.zero_()  # every token is as probable as any other: log2(280) bits each
    tokens = len(token_row(corpus.held_out, run.tokenizer)) - 1  # nothing comes before the first
    letters = len("".join(corpus.held_out).encode())

    bits = run.held_out_bits_per_byte()

    assert bits == pytest.approx(tokens / letters * torch.log2(torch.tensor(280.0)).item(), rel=1e-4)


# The corpus


def test_the_last_chapters_of_the_first_book_are_held_out(book: Path, tmp_path: Path) -> None:
    second = tmp_path / "second.txt"
    second.write_text("Un\n\nDeux\n\n\n\nTrois", encoding="utf-8")

    corpus = read_corpus([book, second], 2)

    assert [chapter.split("\n")[0] for chapter in corpus.held_out] == ["Chapitre 7", "Chapitre 8"]
    assert len(corpus.books[0]) == 6
    assert corpus.books[1] == ("Un\n", "Deux\n", "Trois\n")
    assert corpus.training_chapters == [*corpus.books[0], *corpus.books[1]]


def test_every_chapter_ends_with_the_end_of_text() -> None:
    tokenizer = train_tokenizer([BOOK], 280)
    (end,) = tokenizer.encode(END_OF_TEXT)

    row = token_row(["Un\n", "Deux\n"], tokenizer).tolist()

    assert row == [*tokenizer.encode("Un\n"), end, *tokenizer.encode("Deux\n"), end]


@pytest.mark.parametrize("held_out", [0, 8, 9])
def test_a_number_of_held_out_chapters_that_leaves_nothing_is_refused(book: Path, held_out: int) -> None:
    with pytest.raises(RequestError, match=f"must be between 1 and 7.*got {held_out}"):
        read_corpus([book], held_out)


@pytest.mark.parametrize("content", [b"", b"\n\n \n\n", b"one chapter only"])
def test_a_book_without_chapters_is_refused(book: Path, content: bytes) -> None:
    book.write_bytes(content)

    with pytest.raises(RequestError, match="chapters"):
        read_corpus([book], 1)


def test_a_book_that_is_no_text_is_refused_by_name(book: Path) -> None:
    book.write_bytes(b"\xff\xfe\x00")

    with pytest.raises(RequestError, match=r"book\.txt cannot be read"):
        read_corpus([book], 1)


@pytest.mark.parametrize("book_text", ["a\n\n" + "b c " * 50, "a b " * 50 + "\n\nc"], ids=["training", "held out"])
def test_text_shorter_than_a_context_is_refused_with_its_length(book: Path, tmp_path: Path, book_text: str) -> None:
    book.write_text(book_text, encoding="utf-8")
    corpus = read_corpus([book], 1)

    with pytest.raises(RequestError, match=r"must hold more than 16 tokens, got \d"):
        Trainer(replace(SETTINGS, vocab_size=260), corpus, tmp_path)


# The command line


def run_command(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def long_enough(book: Path) -> Path:
    """A book whose held-out chapter fills the context of the base model."""
    book.write_text("\n\n".join([BOOK.replace("\n\n", "\n")] * 3), encoding="utf-8")
    return book


def test_the_command_trains_and_tells_the_score(book: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"

    ended = run_command(
        "--corpus", long_enough(book), book, "--output", folder, "--steps", 1, "--batch", 1, "--hold-out", 1,
        "--vocab-size", 300, "--threads", 1,
    )  # fmt: skip

    assert ended.exit_code == 0, ended.output
    assert "bits per byte on the held-out chapters" in ended.stdout
    assert read_config(folder) == ModelConfig(vocab_size=300)


def test_the_command_tells_what_is_wrong_with_a_corpus_without_a_traceback(book: Path, tmp_path: Path) -> None:
    ended = run_command("--corpus", book, "--output", tmp_path / "model", "--hold-out", 8)

    assert ended.exit_code == 1
    assert ended.stderr.startswith("Error: held-out chapters must be between 1 and 7")
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--output", "x"], "Missing option '--corpus'"),
        (["--corpus", "BOOK"], "Missing option '--output'"),
        (["--corpus", "nowhere.txt", "--output", "x"], "'nowhere.txt' does not exist"),
        (["--corpus", "BOOK", "--output", "x", "--steps", "0"], "0 is not in the range x>=1"),
        (["--corpus", "BOOK", "--output", "x", "--seed", "-1"], "-1 is not in the range"),
        (["--corpus", "BOOK", "--output", "x", "--vocab-size", "259"], "259 is not in the range x>=260"),
        (["--corpus", "BOOK", "--output", "x", "--threads", "0"], "0 is not in the range x>=1"),
    ],
)
def test_bad_usage_exits_with_two_and_says_why(book: Path, arguments: list[str], message: str) -> None:
    ended = run_command(*(book if argument == "BOOK" else argument for argument in arguments))

    assert ended.exit_code == 2
    assert message in ended.stderr
