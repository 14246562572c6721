"""``minilab-client completion``: what a shell needs to complete what is typed.

The tab key gives what is known, or nothing; it never fails and starts no server.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Final

import click
from click.shell_completion import CompletionItem, get_completion_class

from minilab_client.settings import ClientSettings
from minilab_gen.errors import MiniLabError
from minilab_gen.protocol import keys

SHELLS: Final = ("bash", "zsh", "fish")


@click.command(
    epilog="\b\nExamples:"
    '\n  eval "$(minilab-client completion bash)"      # in ~/.bashrc'
    '\n  eval "$(minilab-client completion zsh)"       # in ~/.zshrc'
    "\n  minilab-client completion fish > ~/.config/fish/completions/minilab-client.fish",
)
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the script with which a shell completes commands, options and model names by the tab key."""
    program = ctx.find_root()
    name = program.info_name or "minilab-client"
    kind = get_completion_class(shell)
    assert kind is not None, "click must know the shells that we name"
    variable = f"_{name}_COMPLETE".upper().replace("-", "_").replace(".", "_")  # where click looks
    click.echo(kind(program.command, {}, name, variable).source())


def complete_models(ctx: click.Context, _option: click.Parameter, typed: str) -> list[CompletionItem[str]]:
    """The names of models that begin so."""
    names = {keys.DEFAULT_MODEL}
    settings = ctx.find_object(ClientSettings)
    if settings is not None and (settings.redis_url is not None or _private_server_runs()):
        import redis

        from minilab_gen.protocol.cards import all_cards

        with suppress(MiniLabError, redis.RedisError), settings.connect() as connection:
            names |= {card.name for card in all_cards(connection)}
    return [CompletionItem(name) for name in sorted(names) if name.startswith(typed)]


def _private_server_runs() -> bool:
    if sys.platform == "win32":
        return False
    from minilab_gen.protocol import embedded  # not at the top: there is none on Windows

    return embedded.status().running
