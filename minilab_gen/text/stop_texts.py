"""Finds stop texts in an answer that comes piece by piece, and shows nothing of one before it is decided.

What counts is the text that a reader sees, whatever tokens it comes in. The answer ends with the stop text that is
complete first; of two that end with the same character, with the longer one. So it is the same however the text is cut
into pieces. vLLM and transformers also end with the token that completes one; where a token completes several, vLLM
takes the first in the list.
"""

from __future__ import annotations

from collections.abc import Sequence


class StopTexts:
    """The search for the stop texts of one answer.

    It keeps the end of the text that may be the beginning of a stop text and nothing else, so a character costs the
    same however long the answer is.
    """

    def __init__(self, stops: Sequence[str], *, include: bool = False) -> None:
        """``stops`` are not empty. With ``include`` the one that is found belongs to what is shown."""
        self._stops, self._include = tuple(stops), include
        self._first = frozenset(stop[0] for stop in stops)
        self._begun = ""
        """The longest end of the text that a stop text begins with."""
        self.found: str | None = None
        """The stop text that ended the answer."""

    def push(self, text: str, *, counts: bool = True) -> str:
        """What may be shown now that the answer goes on with ``text``; nothing after the stop text that was found.

        A stop text that is complete within ``text`` is passed over unless it ``counts``.
        """
        if self.found is not None:
            return ""
        before, begun = self._begun, self._begun
        for place, character in enumerate(text, start=1):
            if not begun and character not in self._first:
                continue
            begun += character
            if counts and begun.endswith(self._stops):
                self.found = max(filter(begun.endswith, self._stops), key=len)
                self._begun = ""
                return text[:place] if self._include else (before + text[:place]).removesuffix(self.found)
            while begun and not self._begins_one(begun):
                begun = begun[1:]
        self._begun = begun
        if self._include:  # the beginning of a stop text is shown whatever becomes of it
            return text
        return (before + text).removesuffix(begun)

    def flush(self) -> str:
        """What was held back, once nothing more comes: the beginning of a stop text that was not completed."""
        begun, self._begun = self._begun, ""
        return "" if self._include else begun

    def _begins_one(self, text: str) -> bool:
        return any(len(text) < len(stop) and stop.startswith(text) for stop in self._stops)
