"""The file of keys: what it may hold, how a key is found, and when it is read again."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from minilab_gateway.api_keys import ApiKeys, new_key, read_keys

from minilab_gen.errors import RequestError


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "keys"


def line_of(name: str, key: str) -> str:
    return f"{name} sha256:{hashlib.sha256(key.encode()).hexdigest()}"


def test_a_new_key_is_let_in_by_its_line(file: Path) -> None:
    key, line = new_key("alice")
    file.write_text(f"# people\n\n{line}  # her\n")

    keys = ApiKeys(file)

    found = keys.find(key.encode())
    assert found is not None
    assert found.name == "alice"
    assert keys.find(key.encode() + b"x") is None
    assert key not in file.read_text()


def test_each_of_50_keys_is_found_whatever_its_letters(file: Path) -> None:
    file.write_text("\n".join(line_of(f"k{n}", f"clé-ü-{n}") for n in range(50)))
    keys = ApiKeys(file)

    found = [keys.find(f"clé-ü-{n}".encode()) for n in range(50)]

    assert [key.name for key in found if key is not None] == [f"k{n}" for n in range(50)]
    assert keys.find("clé".encode("latin-1")) is None


def test_a_key_may_have_limits(file: Path) -> None:
    file.write_text(f"{line_of('bob', 'x')} requests-per-minute=60 tokens-per-minute=900 jobs=2 models=base,other")

    (key,) = read_keys(file)

    assert (key.requests_per_minute, key.tokens_per_minute, key.jobs) == (60, 900, 2)
    assert sorted(key.models or ()) == ["base", "other"]
    assert key.may_ask("base")
    assert not key.may_ask("third")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "must hold a key, got none"),
        ("# nobody", "must hold a key, got none"),
        ("bob secret", "a line must be NAME sha256:HASH"),
        (line_of("bob", ""), "a key must not be empty"),
        (f"{line_of('bob', 'x')}\n{line_of('bob', 'y')}", "names and keys must differ, got bob again"),
        (f"{line_of('bob', 'x')}\n{line_of('eve', 'x')}", "names and keys must differ, got eve again"),
        (f"{line_of('bob', 'x')} jobs=0", "jobs must be a whole number of at least 1, got '0'"),
        (f"{line_of('bob', 'x')} jobs=٣", "jobs must be a whole number"),
        (
            f"{line_of('bob', 'x')} speed=3",
            "a key may have .*tokens-per-minute, jobs and models, got 'speed'",
        ),
    ],
    ids=str,
)
def test_a_file_that_breaks_a_rule_is_refused(file: Path, content: str, message: str) -> None:
    file.write_text(content)

    with pytest.raises(RequestError, match=message):
        ApiKeys(file)


def test_a_reload_takes_what_changed_and_keeps_the_keys_where_the_file_is_bad(file: Path) -> None:
    file.write_text(line_of("bob", "x"))
    keys = ApiKeys(file)
    file.write_text(line_of("eve", "y"))

    keys.reload()
    file.write_text("nonsense")
    with pytest.raises(RequestError):
        keys.reload()

    assert keys.find(b"x") is None
    assert keys.find(b"y") is not None


def test_a_name_that_would_break_the_file_is_refused() -> None:
    with pytest.raises(RequestError, match="the name of a key"):
        new_key("a b")
