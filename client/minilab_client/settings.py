"""What holds for every command: which Redis is meant."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

import click

from minilab_gen.protocol.address import redis_url
from minilab_gen.startup import Loading

if TYPE_CHECKING:
    import redis

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """The settings of one run, read once: from flags, then from MINILAB_* variables, then defaults."""

    redis_url: str | None
    """None means the private server of this user, started on demand."""

    @property
    def shown_address(self) -> str:
        """The address without any secret."""
        if self.redis_url is None:
            return "your private Redis"
        from minilab_gen.protocol.connection import masked_url

        return masked_url(self.redis_url)

    @contextmanager
    def connect(self) -> Iterator[redis.Redis]:
        """A connection for a ``with`` block. Raises RedisUnavailableError, or RequestError for a bad URL."""
        from minilab_gen.protocol import connection
        from minilab_gen.protocol.refusals import explained

        with closing(connection.connect(self.redis_url)) as found, explained(found):
            yield found


def pass_settings(
    command: Callable[Concatenate[ClientSettings, Parameters], Result],
) -> Callable[Parameters, Result]:
    """Give a command its settings, once the libraries with which it talks to Redis are loaded.

    They take a quarter of a second, so no module of a command loads them by itself: ``--help`` and a shell that
    completes an option do without. Hence the imports inside the commands.
    """

    @wraps(command)
    def loaded(settings: ClientSettings, /, *arguments: Parameters.args, **named: Parameters.kwargs) -> Result:
        with Loading():
            import rq  # noqa: F401 - and redis-py with it

        return command(settings, *arguments, **named)

    return click.make_pass_decorator(ClientSettings)(loaded)


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
        ctx.obj = ClientSettings(redis_url())
