"""What holds for every command: which Redis is meant. It must not know what is asked of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

import click
import redis

from minilab_gen.protocol import connection
from minilab_gen.protocol.refusals import explained


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """The settings of one run, read once: from flags, then from MINILAB_* variables, then defaults."""

    redis_url: str | None
    """None means the private server of this user, started on demand."""

    @property
    def shown_address(self) -> str:
        """The address without any secret."""
        return "your private Redis" if self.redis_url is None else connection.masked_url(self.redis_url)

    @contextmanager
    def connect(self) -> Iterator[redis.Redis]:
        """A connection for a ``with`` block. Raises RedisUnavailableError, or RequestError for a bad URL."""
        with closing(connection.connect(self.redis_url)) as found, explained(found):
            yield found


pass_settings = click.make_pass_decorator(ClientSettings)


def redis_url_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Let a command name its Redis; on a subcommand it overrules what stood before."""
    return click.option(
        "--redis-url",
        metavar="URL",
        expose_value=False,
        callback=_keep_address,
        help="redis://, rediss://, unix:// or sentinel:// address. Default: $MINILAB_REDIS_URL, else a private server.",
    )(command)


def _keep_address(ctx: click.Context, _option: click.Parameter, given: str | None) -> None:
    if given is not None:
        ctx.obj = ClientSettings(given)
    elif ctx.obj is None:
        ctx.obj = ClientSettings(connection.redis_url())
