"""``minilab-client workers``: the workers of all queues, and how busy they are."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from minilab_client.output import say, write_json, write_table
from minilab_client.settings import ClientSettings, pass_settings, redis_url_option
from minilab_client.times import span
from minilab_gen.protocol.keys import queue_parts

if TYPE_CHECKING:
    from minilab_gen.protocol.workers import WorkerView


@click.command(
    epilog="\b\nExamples:\n  minilab-client workers\n  minilab-client workers --json",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON array of objects.")
@redis_url_option
@pass_settings
def workers(settings: ClientSettings, as_json: bool) -> None:
    """List the workers: slots in use, tokens a second, when they were last heard of, and what their check found.

    One with an expired lease is shown as gone until RQ's record of it expires. SEEN is when it was last heard of, EXACT
    whether its check at start found the bits that must be. A terminal that is too narrow gets shorter names; --json has
    all of it, and the queues, host, process and verdict of each worker.
    """
    from minilab_gen.protocol.workers import all_workers

    with settings.connect() as connection:
        found = all_workers(connection)
    if as_json:
        write_json([_as_json(worker) for worker in found])
    elif found:
        columns = ("WORKER", "STATE", "MODEL", "SLOTS", "TOKENS/S", "SEEN", "EXACT")
        write_table(columns, [_cells(worker) for worker in found], {"WORKER": "middle", "MODEL": "middle"})
    else:
        say("no workers; start one with: minilab-worker")


def _as_json(worker: WorkerView) -> dict[str, Any]:
    """The worker with its report, whose fields are null for one that makes none."""
    seen = asdict(worker)
    stats = seen.pop("stats") or {}
    reported = ("model", "used", "slots", "tokens", "tokens_per_second", "exactness", "fingerprint")
    return seen | {name: stats.get(name) for name in reported}


def _cells(worker: WorkerView) -> tuple[object, ...]:
    stats = worker.stats
    return (
        worker.name,
        "gone" if worker.alive is False else worker.state,
        stats.model if stats else _model(worker.queues),
        f"{stats.used}/{stats.slots}" if stats else None,
        f"{stats.tokens_per_second:.0f}" if stats and worker.alive else None,
        None if worker.heartbeat_age is None else f"{span(worker.heartbeat_age)} ago",
        None if stats is None else "yes" if stats.exactness.startswith("exact") else "no",
    )


def _model(queues: tuple[str, ...]) -> str | None:
    """That of the first of our queues."""
    ours = (queue_parts(queue) for queue in queues)
    return next((parts[0] for parts in ours if parts), None)
