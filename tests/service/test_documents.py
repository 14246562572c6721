"""What the documents name is there: commands, options, variables, make targets, files, and where links lead."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import click
import pytest
from minilab_client.cli import main as client
from minilab_gateway.cli import program as gateway
from minilab_worker.cli import program as worker

ROOT = Path(__file__).parent.parent.parent
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("docs/*.md")), *sorted(ROOT.glob("examples/*.md"))]
PROGRAMS: dict[str, click.Command] = {
    "minilab-client": client,
    "minilab-gateway": gateway,
    "minilab-worker": worker,
}
FOLDERS = ["minilab_gen", "worker", "client", "gateway", "tests", "benchmarks", "docs", "examples"]
OF_OTHERS = {"--bind", "--disable-delete", "--scale", "--time"}
"""Options of other programs that a document names without the program."""

each_document = pytest.mark.parametrize("document", DOCUMENTS, ids=lambda file: str(file.relative_to(ROOT)))


def code_of(document: Path) -> list[str]:
    """The lines of its blocks and the spans in its text that are set as code."""
    text = document.read_text(encoding="utf-8")
    blocks = re.findall(r"^ *```\w*\n(.*?)^ *```", text, re.DOTALL | re.MULTILINE)
    spans = re.findall(r"`([^`\n]+)`", re.sub(r"^ *```.*?^ *```", "", text, flags=re.DOTALL | re.MULTILINE))
    return [line for block in blocks for line in block.splitlines()] + spans


def calls_in(line: str) -> Iterator[list[str]]:
    """The words of each call of our programs in a line of code, the program first."""
    line = line.replace("docker compose run --rm client", "minilab-client")
    for call in re.findall(r"(?:^ *(?:\$ )?(?:\w+=\S+ )*|[|&(] *)(minilab-(?:client|gateway|worker)\b[^|;&#)]*)", line):
        try:
            yield shlex.split(call)
        except ValueError:  # a quotation that the cut above has opened
            yield call.split()


def options_of(command: click.Command) -> dict[str, click.Option]:
    """Each spelling of an option: what it is. --help is added by click itself, which keeps its first spelling."""
    context = click.Context(command, help_option_names=["-h", "--help"])
    options = [option for option in command.get_params(context) if isinstance(option, click.Option)]
    return {name: option for option in options for name in (*option.opts, *option.secondary_opts)}


def commands_below(command: click.Command) -> Iterator[click.Command]:
    yield command
    if isinstance(command, click.Group):
        for inner in command.commands.values():
            yield from commands_below(inner)


def unknown_in(words: list[str]) -> list[str]:
    """What the program that is called would not understand."""
    command, unknown, rest = PROGRAMS[words[0]], [], iter(words[1:])
    for word in rest:
        if word.startswith("-") and word != "-":
            name, _, value = word.partition("=")
            option = options_of(command).get(name)
            if option is None:
                unknown.append(name)
            elif not option.is_flag and not value:
                next(rest, None)
        elif isinstance(command, click.Group) and re.fullmatch("[a-z]+", word):
            if word not in command.commands:
                return [*unknown, word]
            command = command.commands[word]
    return unknown


@cache
def slugs_of(document: Path) -> set[str]:
    """The names that GitHub gives to a document's headings."""
    headings = re.findall(r"^#+ (.*)$", document.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@each_document
def test_every_call_is_understood_by_its_program(document: Path) -> None:
    calls = [words for line in code_of(document) for words in calls_in(line)]

    assert {" ".join(words): unknown_in(words) for words in calls if unknown_in(words)} == {}


def test_a_call_that_is_not_understood_is_found() -> None:
    (words,) = calls_in("$ minilab-client submit 'Phileas Fogg' --folow | md5sum")

    assert unknown_in(words) == ["--folow"]
    assert unknown_in(["minilab-client", "sbmit"]) == ["sbmit"]


@each_document
def test_every_option_named_alone_is_one_of_ours(document: Path) -> None:
    commands = [command for program in PROGRAMS.values() for command in commands_below(program)]
    ours = {name for command in commands for name in options_of(command)}
    named = {span.split()[0].partition("=")[0] for span in code_of(document) if span.startswith("--")}

    assert named - ours - OF_OTHERS == set()


@each_document
def test_every_variable_is_read_somewhere(document: Path) -> None:
    spelled = [file.read_text(encoding="utf-8") for name in FOLDERS[:4] for file in (ROOT / name).rglob("*.py")]
    spelled += [(ROOT / "docker-compose.yml").read_text(encoding="utf-8")]
    read = set(re.findall(r"MINILAB_\w+", "".join(spelled)))
    read |= {f"MINILAB_{option.name}".upper() for option in options_of(worker).values()}

    assert set(re.findall(r"MINILAB_[A-Z_]+", document.read_text(encoding="utf-8"))) - read == set()


@each_document
def test_every_make_target_exists(document: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    named = {target for line in code_of(document) for target in re.findall(r"(?<!\w)make ([a-z-]+)", line)}

    assert named - targets == set()


@each_document
def test_every_program_file_exists(document: Path) -> None:
    files = [f"/{file.relative_to(ROOT)}" for name in FOLDERS for file in (ROOT / name).rglob("*.py")]
    named = {name for line in code_of(document) for name in re.findall(r"[\w/]+\.py\b", line)}

    assert [name for name in sorted(named) if not any(file.endswith(f"/{name}") for file in files)] == []


@each_document
def test_every_link_leads_somewhere(document: Path) -> None:
    prose = re.sub(r"^ *```.*?^ *```", "", document.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    links = re.findall(r"\]\(([^)\s]+)\)", prose)  # in code, functions[name](argument) looks like one
    local = [link.partition("#")[::2] for link in links if not link.startswith("http")]
    targets = {(name, slug): (document.parent / name if name else document) for name, slug in local}

    assert [target for target, file in targets.items() if not file.exists()] == []
    assert [target for target, file in targets.items() if target[1] and target[1] not in slugs_of(file)] == []


def test_the_readme_leads_to_every_document() -> None:
    readme = ROOT / "README.md"
    links = readme.read_text(encoding="utf-8")
    others = [str(file.relative_to(ROOT)) for file in DOCUMENTS if file != readme]

    assert [name for name in others if f"({name}" not in links] == []
