"""A group of commands each of which is loaded when it is called.

Its names and their one-line descriptions stand in a table, so that neither ``--help`` nor a shell that completes a
name loads any.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import click
from click.shell_completion import CompletionItem

from minilab_gen.startup import Loading


@dataclass(frozen=True, slots=True)
class LazyCommand:
    """Where a command is, and what it does."""

    module: str
    name: str
    summary: str
    """One line for the list of commands."""

    def load(self) -> click.Command:
        with Loading():
            command = getattr(import_module(self.module), self.name)
        assert isinstance(command, click.Command), f"{self.module}.{self.name} must be a command"
        return command


class _Commands(MutableMapping[str, click.Command]):
    """What click takes for the dictionary of a group's commands: its names are there at once, its commands in time."""

    def __init__(self, lazy: Mapping[str, LazyCommand]) -> None:
        self._lazy = dict(lazy)
        self._loaded: dict[str, click.Command] = {}

    def __getitem__(self, name: str) -> click.Command:
        if name not in self._loaded:
            self._loaded[name] = self._lazy[name].load()
        return self._loaded[name]

    def __setitem__(self, name: str, command: click.Command) -> None:
        self._loaded[name] = command

    def __delitem__(self, name: str) -> None:
        raise TypeError("a command cannot be taken away")

    def __iter__(self) -> Iterator[str]:
        return iter(self._lazy)

    def __len__(self) -> int:
        return len(self._lazy)


class LazyGroup(click.Group):
    """Click's LazyGroup, as its documents draw it, which here also lists what it has without loading it."""

    def __init__(self, name: str | None = None, *, lazy_commands: Mapping[str, LazyCommand], **settings: Any) -> None:
        super().__init__(name, _Commands(lazy_commands), **settings)
        self._lazy_commands = lazy_commands

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, self._lazy_commands[name].summary) for name in self.list_commands(ctx)])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        names = [name for name in self.list_commands(ctx) if name.startswith(incomplete)]
        commands = [CompletionItem(name, help=self._lazy_commands[name].summary) for name in names]
        return [*commands, *click.Command.shell_complete(self, ctx, incomplete)]
