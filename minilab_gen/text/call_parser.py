"""Finds calls of tools in the text of an answer that comes piece by piece.

What may become a call is held back until that is decided, as with stop texts. However the text is cut into pieces,
the same calls and the same content come of it. What is no call stays content, to the letter; only white space beside
calls is left out. A character costs the same however long the answer is.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final, Literal

from minilab_gen.text.call_formats import CallFormat
from minilab_gen.text.call_json import JsonEnd, ToolCall, calls_in, is_arguments

Piece = str | ToolCall
"""Content, or a call."""

_PIECE: Final = 256
"""Characters that are looked at together, so that what is held back stays short."""

_BARE: Final = re.compile(r"[\s;]*")


class CallParser:
    """The calls in one answer."""

    def __init__(self, known: CallFormat, names: Collection[str], forced: str | None = None) -> None:
        """``names`` are the functions that may be called.

        With ``forced`` the answer goes on within a call that the prompt has begun: of the function of this name, behind
        which its arguments follow; for "" the whole call follows.
        """
        self._format, self._names, self._forced = known, names, forced
        self._state: Literal["text", "bare", "json", "after"] = "bare" if known.is_bare else "text"
        self._held = ""  # not decided yet, in every state but "json"
        self._mark = ""  # what stands before the JSON
        self._json: list[str] = []
        self._end = JsonEnd()
        self._is_behind_call = False
        self._pieces: list[Piece] = []
        if forced is not None:
            self._state = "json"

    def push(self, text: str) -> list[Piece]:
        """What has been decided now that the answer goes on with ``text``."""
        for start in range(0, len(text), _PIECE):
            self._held += text[start : start + _PIECE]
            while self._held and self._goes_on():
                pass
        return self._taken()

    def mark(self, mark: str) -> list[Piece]:
        """The same, now that a mark has come as a special token, which adds no text."""
        if self._state == "json":
            if mark in self._format.closers:
                return []
            self._give_up()
        if mark in self._format.openers:
            self._open(len(self._held), "")
        return self._taken()

    def flush(self) -> list[Piece]:
        """What is left when no more comes."""
        if self._state == "json":
            self._give_up()
        elif self._state == "after" or (self._is_behind_call and not self._held.strip()):
            self._held = ""
        self._say(self._held)
        self._held = ""
        return self._taken()

    def _goes_on(self) -> bool:
        """Decide something, if that is possible yet."""
        match self._state:
            case "text":
                return self._in_text()
            case "bare":
                return self._in_bare()
            case "json":
                return self._in_json()
            case "after":
                return self._in_after()

    def _in_text(self) -> bool:
        """Look for a mark, and hold back the end that one may begin with."""
        found = min(
            ((place, -len(mark), mark) for mark in self._format.openers if (place := self._held.find(mark)) >= 0),
            default=None,
        )
        if found is not None:
            self._open(found[0], found[2])
            return True
        self._say_up_to(len(self._held) - self._begun_length(self._format.openers))
        return False

    def _in_bare(self) -> bool:
        """Look whether the answer, or what follows a call, is a call without a mark."""
        found = _BARE.match(self._held)
        place = 0 if found is None else found.end()
        if place == len(self._held):
            return False
        if self._held[place] == "{":
            self._mark, self._held = self._held[:place], self._held[place:]
            self._begin()
        else:
            self._state = "text"
        return True

    def _in_json(self) -> bool:
        """Look for the end of the JSON behind a mark."""
        if not self._json:
            rest = self._held.lstrip()
            self._mark += self._held[: len(self._held) - len(rest)]
            self._held = rest
            if not rest:
                return False
            if rest[0] not in "{[":
                self._give_up()
                return True
        end = self._end.push(self._held)
        self._json.append(self._held[:end])
        self._held = "" if end is None else self._held[end:]
        if end is None:
            return False
        calls = self._calls()
        if calls is None:
            self._give_up()
        else:
            self._pieces += calls
            self._state, self._forced, self._is_behind_call = "after", None, True
        return True

    def _in_after(self) -> bool:
        """Leave out the mark behind a call."""
        rest = self._held.lstrip()
        for mark in self._format.closers:
            if rest.startswith(mark):
                self._held = rest.removeprefix(mark)
                self._go_on()
                return True
        if any(mark.startswith(rest) for mark in self._format.closers):
            return False
        self._go_on()
        return True

    def _calls(self) -> list[ToolCall] | None:
        text = "".join(self._json)
        if not self._forced:
            return calls_in(text, self._names)
        return [ToolCall(self._forced, text)] if is_arguments(text) else None

    def _open(self, place: int, mark: str) -> None:
        """What stands before a mark is decided, but for white space, which is left out if a call follows."""
        before = self._held[:place]
        self._held = self._held[place + len(mark) :]
        shown = before.rstrip()
        self._mark = before[len(shown) :] + mark
        self._say(shown)
        self._begin()

    def _begin(self) -> None:
        self._state, self._json, self._end = "json", [], JsonEnd()

    def _give_up(self) -> None:
        """It was no call."""
        self._say("".join([self._mark, *self._json]))
        self._mark, self._json, self._forced = "", [], None
        self._state = "text"

    def _go_on(self) -> None:
        self._state = "bare" if self._format.is_bare else "text"

    def _say_up_to(self, place: int) -> None:
        """Content up to there, without the white space before, which may turn out to stand beside a call."""
        shown = self._held[:place].rstrip()
        self._held = self._held[len(shown) :]
        self._say(shown)

    def _say(self, text: str) -> None:
        if text:
            self._pieces.append(text)
            self._is_behind_call = False

    def _begun_length(self, marks: Collection[str]) -> int:
        """How long the end of the text is that one of the marks begins with."""
        longest = min(len(self._held), max(map(len, marks)) - 1)
        return next(
            (n for n in range(longest, 0, -1) if any(mark.startswith(self._held[-n:]) for mark in marks)),
            0,
        )

    def _taken(self) -> list[Piece]:
        taken, self._pieces = self._pieces, []
        return taken
