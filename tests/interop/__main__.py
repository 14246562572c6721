"""``python -m interop``: start a service and look at it with each tool, then another for programs of OpenAI's API."""

from __future__ import annotations

import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path

import click
from chaos.checkpoint import write_slow_checkpoint
from chaos.fleet import Fleet
from chaos.server import BINARY, Server
from support.own_service import OwnService

from interop import course
from interop.commands import documented
from interop.environments import NotInstalledError, program
from interop.openai_course import LOOKS
from interop.openai_service import OpenAIService, openai_service
from interop.scene import Scene, set_up
from interop.site import Site, free_port

ROOT = Path(__file__).parent.parent.parent

_SITES: dict[str, tuple[course.Look, course.Look]] = {
    "rq-exporter": (course.look_with_rq_exporter, course.look_with_rq_exporter_at_rest),
    "rq-dashboard": (course.look_with_rq_dashboard, course.look_with_rq_dashboard_at_rest),
}
"""How to look while the worker is stopped in the middle of a job, and when all is done."""


@click.command()
@click.option(
    "--environments",
    type=click.Path(path_type=Path),
    default=ROOT / ".venv-interop",
    help="Folder in which the tools are installed, each in an environment of its own.",
)
@click.argument("parts", nargs=-1, type=click.Choice(["rq", *LOOKS]))
def main(environments: Path, parts: Sequence[str]) -> None:
    """Look at a service with rq info, redis-cli, rq-dashboard and rq-exporter, and check what they show.

    Then have programs that speak OpenAI's API ask a gateway, as docs/http tells. PARTS runs only those. A tool that
    cannot be had is skipped, and that is said.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started is ended
    if BINARY is None:
        _skip("all tools", "there is no redis-server or valkey-server on the PATH")
        return
    began = time.monotonic()
    if not parts or "rq" in parts:
        _look_at_queue(environments)
    asking = [tool for tool in LOOKS if not parts or tool in parts]
    if asking:
        _ask_gateway(asking, environments)
    click.echo(f"interop: {time.monotonic() - began:.0f} s")


def _ask_gateway(tools: Sequence[str], environments: Path) -> None:
    with (
        tempfile.TemporaryDirectory(prefix="mli-") as name,
        openai_service(Path(name)) as service,
        ThreadPoolExecutor(2) as threads,  # while one is installed or imports, another one asks
    ):
        for done in [threads.submit(_ask_with, tool, service, environments) for tool in tools]:
            done.result()


def _ask_with(tool: str, service: OpenAIService, environments: Path) -> None:
    began = time.monotonic()
    try:
        LOOKS[tool](service, environments)
    except NotInstalledError as error:
        _skip(tool, str(error))
    else:
        click.echo(f"{tool}: asked, {time.monotonic() - began:.0f} s")


def _look_at_queue(environments: Path) -> None:
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mli-") as name:
        folder = Path(name)
        model = folder / "model"
        model.mkdir()
        write_slow_checkpoint(model)
        port = free_port()
        server = Server(folder, "--port", str(port), "--bind", "127.0.0.1")
        with server, Fleet(model, server.url, folder) as fleet:
            service = OwnService(model, server, fleet)
            with closing(service.connection):
                scene = set_up(service)
                click.echo(f"a job in each state, after {time.monotonic() - began:.0f} s: {', '.join(scene.jobs)}")
                _look(scene, f"redis://127.0.0.1:{port}/0", environments, folder)


def _look(scene: Scene, url: str, environments: Path, folder: Path) -> None:
    course.look_with_rq_info(scene, url)
    click.echo("rq info: seen")
    if shutil.which("redis-cli") is None:
        _skip("redis-cli", "it is not on the PATH")
    else:
        course.look_with_redis_cli(scene, url)
        click.echo("redis-cli XRANGE, XREAD: seen")
    with ExitStack() as stack:
        sites = {tool: site for tool in _SITES if (site := _site(tool, url, environments, folder))}
        for site in sites.values():
            stack.enter_context(site)
        for tool, site in sites.items():
            _SITES[tool][0](scene, site)
        scene.come_to_rest()
        for tool, site in sites.items():
            _SITES[tool][1](scene, site)
            click.echo(f"{tool}: seen")


def _site(tool: str, url: str, environments: Path, folder: Path) -> Site | None:
    """A tool that serves pages, with the command of the documents; None where it cannot be had."""
    try:
        installed = program(tool, environments)
    except NotInstalledError as error:
        _skip(tool, str(error))
        return None
    (command,) = documented(tool, url)
    return Site([str(installed), *command[1:]], folder / f"{tool}.log")


def _skip(what: str, why: str) -> None:
    click.echo(f"interop: SKIPPED, NOTHING WAS CHECKED with {what}: {why}")


if __name__ == "__main__":
    main()
