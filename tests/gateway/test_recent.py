"""Answers that are kept for a moment."""

from __future__ import annotations

from minilab_gateway.recent import Recent


def test_an_answer_is_asked_for_again_when_its_moment_is_over() -> None:
    now, asked = 0.0, 0

    def ask() -> str:
        nonlocal asked
        asked += 1
        return f"answer {asked}"

    recent: Recent[str] = Recent(0.2, 10, lambda: now)
    first, second = recent.get("a", ask), recent.get("a", ask)
    now = 0.2
    third = recent.get("a", ask)

    assert [first, second, third] == ["answer 1", "answer 1", "answer 2"]


def test_each_name_has_its_own() -> None:
    recent: Recent[str] = Recent(0.2, 10)

    assert recent.get("a", lambda: "one") == "one"
    assert recent.get("b", lambda: "two") == "two"


def test_that_nothing_is_there_is_asked_each_time() -> None:
    recent: Recent[int] = Recent(60, 10)

    assert recent.get("a", lambda: 0) == 0
    assert recent.get("a", lambda: 2) == 2


def test_no_more_names_are_kept_than_that() -> None:
    recent: Recent[str] = Recent(60, 2)
    for name in "abc":
        recent.get(name, lambda name=name: name)  # type: ignore[misc]

    assert recent.get("a", lambda: "again") == "again"
    assert recent.get("c", lambda: "again") == "c"
