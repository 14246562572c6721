"""Figures in the documents: a speed is given once or is the same everywhere, and what code decides is its value."""

from __future__ import annotations

import json
import re
from pathlib import Path
from statistics import median

import click
import pytest
from minilab_worker.cli import program as worker
from test_documents import DOCUMENTS, ROOT, each_document, options_of

from minilab_gen import request
from minilab_gen.batch.json_lines import MAX_LINE_BYTES
from minilab_gen.logprobs import MAX_OF_PROMPT, MOST_LISTED
from minilab_gen.protocol.jobs import MAX_PAYLOAD_BYTES
from minilab_gen.text.chat import MAX_MESSAGES, MAX_TEMPLATE_CHARACTERS
from minilab_gen.text.tokenizer import BASE_CHECKPOINT

PERFORMANCE = ROOT / "docs" / "performance.md"
"""The document of what was measured, and how."""

FIGURE = r"\d+(?: \d{3})*(?:\.\d+)?"
SPEED = re.compile(rf"({FIGURE}) ?(?:tokens/s|tokens? (?:a|per) second|ms (?:a|per) token|ms between)")
SIZE = re.compile(rf"({FIGURE}) lines of (?:code|Python)|some ({FIGURE}) lines\b")


def prose_of(document: Path) -> str:
    """Its text on one line, without what is set as code: samples of output are no claims."""
    text = re.sub(r"^ *```.*?^ *```", "", document.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    return " ".join(re.sub(r"`[^`\n]*`", "", text).split())


def written(number: float) -> str:
    """A number as the documents write it."""
    return f"{number:,.10g}".replace(",", " ")


def rounded(number: float) -> str:
    """The same to two digits."""
    return written(float(f"{number:.2g}"))


def measured() -> dict[str, float]:
    """The first figure of each row, or the median where there are three rounds, by the headings of its section."""
    found: dict[str, float] = {}
    section = ""
    for line in PERFORMANCE.read_text(encoding="utf-8").splitlines():
        if line.startswith(("#", "`benchmarks/")):
            section = line
        name, *cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else [""]
        figures = [float(cell.replace(" ", "")) for cell in cells if re.fullmatch(FIGURE, cell)]
        if "peers.py --rounds" in section and len(figures) == 4:
            found[re.split(r" [\d(]", name)[0]] = median(figures[:3])
        elif "peers.py --model" in section and figures:
            found[f"135M {name}"] = figures[0]
    alone = re.search(
        rf"transformers' continuous batching gave ({FIGURE}), and transformers one by one ({FIGURE})",
        prose_of(PERFORMANCE),
    )
    assert alone is not None
    return found | {"batching": float(alone[1].replace(" ", "")), "one by one": float(alone[2])}


@pytest.mark.parametrize(
    "document", [file for file in DOCUMENTS if file != PERFORMANCE], ids=lambda file: str(file.relative_to(ROOT))
)
def test_a_speed_or_the_size_of_the_code_is_told_by_the_document_of_measurements_alone(document: Path) -> None:
    text = prose_of(document)

    assert [found[0] for found in (*SPEED.finditer(text), *SIZE.finditer(text))] == []


def test_a_speed_that_is_told_elsewhere_is_found() -> None:
    text = "64 slots gave 5 600 tokens a second with 10 ms between two tokens; the code has some 700 lines"

    assert SPEED.findall(text) == ["5 600", "10"]
    assert SIZE.search(text)


def test_the_speeds_in_the_readme_are_those_that_were_measured() -> None:
    of = {name: rounded(figure) for name, figure in measured().items()}
    row = (
        f"| tokens per second | engine {of['engine']}, service {of['service']} | engine {of['vLLM']} "
        f"| engine {of['llama.cpp']} | {of['one by one']} |"
    )
    readme = prose_of(ROOT / "README.md")

    assert row in readme
    assert f"its continuous batching reaches {of['batching']}." in readme
    assert f"OpenVINO GenAI with {of['OpenVINO GenAI']} and CTranslate2 with {of['CTranslate2']}." in readme
    large = {name: written(figure) for name, figure in measured().items()}
    assert f"{large['135M OpenVINO GenAI']} and our engine {large['135M engine']}." in readme


def test_what_is_told_of_the_base_model_is_what_its_training_recorded() -> None:
    record = json.loads((BASE_CHECKPOINT / "training.json").read_text(encoding="utf-8"))
    settings, model = record["settings"], record["settings"]["model"]
    parameters = f"{record['parameters'] / 1e6:.1f} million parameters"
    seen = settings["steps"] * settings["batch"] * model["context_length"]
    heads = f"{model['n_head']} query heads on {model['n_kv_head']} key head"
    shape = f"{model['n_layer']} layers, {heads}, context {model['context_length']}"
    page = prose_of(ROOT / "docs" / "base-model.md")

    for document in (ROOT / "README.md", PERFORMANCE):
        assert parameters in prose_of(document)
    for told in (
        f"{parameters} ({shape}, {written(model['vocab_size'])} byte-level BPE tokens)",
        f"**{record['held_out_bits_per_byte']:.2f} bits per byte**",
        f"({record['history'][-1]['validation_loss']:.2f} nats per token)",
        f"{seen / 1e6:.1f} million tokens in {written(settings['steps'])} steps",
    ):
        assert told in page


def test_the_limits_in_the_document_are_those_of_the_code() -> None:
    table = prose_of(ROOT / "docs" / "security.md")

    for row in (
        f"| a text | {written(request.MAX_PROMPT_CHARACTERS)} characters |",
        f"| a line of a batch file | {MAX_LINE_BYTES // 10**6} MB |",
        f"| a prompt | {written(request.MAX_PROMPT_IDS)} ids,",
        f"| a conversation | {written(MAX_MESSAGES)} messages,",
        f"| a chat template | {written(MAX_TEMPLATE_CHARACTERS)} characters |",
        f"| stop ids | {request.MAX_STOP_IDS} |",
        f"| logprobs | {MOST_LISTED} listed with each token; of a prompt, {written(MAX_OF_PROMPT)} in all |",
        f"| a job's record, and its arguments once inflated | {written(MAX_PAYLOAD_BYTES)} bytes |",
    ):
        assert row in table


@each_document
def test_the_default_that_is_told_behind_an_option_is_its_default(document: Path) -> None:
    told = re.findall(r"`(--[a-z-]+)` \((\d+)\s*s\)", " ".join(document.read_text(encoding="utf-8").split()))
    options = options_of(worker)

    assert {name: float(seconds) for name, seconds in told} == {
        name: default_of(options[name]) for name, _ in told if name in options
    }


def default_of(option: click.Option) -> float:
    default = option.default
    assert isinstance(default, int | float)
    return float(default)


@each_document
def test_the_largest_seed_is_told_right(document: Path) -> None:
    told = re.findall(r"`seed` \|[^\n]*?\b0 to (\d[\d ]*\d)", document.read_text(encoding="utf-8"))

    assert set(told) <= {written(request.MAX_SEED)}
