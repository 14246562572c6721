"""``minilab-client workers``: who serves the queues. It must not know what is inside a worker."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import click
import redis
from rq import Worker

from minilab_client.output import say, write_json, write_table
from minilab_client.settings import ClientSettings, pass_settings, redis_url_option
from minilab_gen.protocol import keys
from minilab_gen.protocol.jobs import OUR_WORKERS


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """A worker in the list."""

    name: str
    alive: bool | None
    """Whether it holds its lease; None for an ordinary RQ worker, which has none."""
    state: str
    queues: tuple[str, ...]
    hostname: str | None
    pid: int | None


@click.command(
    short_help="List the workers.",
    epilog="\b\nExample:\n  minilab-client workers",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON array of objects.")
@redis_url_option
@pass_settings
def workers(settings: ClientSettings, as_json: bool) -> None:
    """List the workers. One that was killed is shown as gone until RQ's record of it expires."""
    with settings.connect() as connection:
        found = sorted(_rows(connection), key=lambda row: row.name)
    if as_json:
        write_json([asdict(row) for row in found])
    elif found:
        columns = [
            (row.name, _life(row.alive), row.state, ",".join(row.queues), row.hostname, row.pid) for row in found
        ]
        write_table(("WORKER", "LIFE", "STATE", "QUEUES", "HOST", "PID"), columns)
    else:
        say("no workers; start one with: minilab-worker")


def _rows(connection: redis.Redis) -> list[WorkerRow]:
    found = []
    for worker in Worker.all(connection=connection):
        queues = tuple(worker.queue_names())
        if not any(queue.startswith("minilab.") for queue in queues):
            continue
        ours = worker.name.startswith(OUR_WORKERS)
        alive = bool(connection.exists(keys.worker_lease(worker.name))) if ours else None
        found.append(WorkerRow(worker.name, alive, str(worker.get_state()), queues, worker.hostname, worker.pid))
    return found


def _life(alive: bool | None) -> str | None:
    return None if alive is None else "alive" if alive else "gone"
