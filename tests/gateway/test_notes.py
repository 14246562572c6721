"""What the job of a completion says about its request."""

from __future__ import annotations

from minilab_gateway.notes import Note


def test_a_note_has_a_field_for_calls_only_where_they_are_read() -> None:
    assert "calls" not in Note("chat", "", 5, "d").to_json()
    assert Note(**Note("chat", "", 5, "d").to_json()) == Note("chat", "", 5, "d")
    assert Note("chat", "", 5, "d", calls={"format": "x"}).to_json()["calls"] == {"format": "x"}
