"""``minilab-client status``: one job as it stands. It must not wait for anything."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from minilab_client import parameters
from minilab_client.output import write, write_json
from minilab_client.settings import ClientSettings, pass_settings, redis_url_option

if TYPE_CHECKING:
    from minilab_gen.protocol.jobs import JobView


@click.command(
    epilog="\b\nExample:\n  minilab-client status 4f2a",
)
@click.argument("job", type=parameters.job_id)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@redis_url_option
@pass_settings
def status(settings: ClientSettings, job: str, as_json: bool) -> None:
    """Show where JOB stands. The exit code is 0 whatever its state is, once it is known."""
    from minilab_gen.protocol.endings import settle
    from minilab_gen.protocol.jobs import view

    with settings.connect() as connection:
        settle(connection, job)  # a job that waited longer than its ttl has expired, though no worker has said so
        found = view(connection, job)
    if as_json:
        write_json(_as_json(found))
        return
    for name, value in _lines(found).items():
        if value is not None:
            write(f"{name:<8} {value}\n")


def _as_json(found: JobView) -> dict[str, Any]:
    ending = {name: value for name, value in found.end.to_json().items() if name != "text"} if found.end else {}
    return {
        "job_id": found.job_id,
        "state": found.state,
        "model": found.model,
        "tokens": found.tokens,
        "position": found.position,
        "worker": found.worker,
        "workers_alive": found.workers_alive,
        "error": found.error,
        "end": None,
        **ending,
    }


def _lines(found: JobView) -> dict[str, object]:
    from minilab_client.follow import reason_to_wait

    return {
        "job": found.job_id,
        "state": found.state,
        "waiting": reason_to_wait(found),
        "model": found.model,
        "tokens": found.tokens,
        "worker": found.worker,
        "workers": f"{found.workers_alive} alive",
        "end": found.end.reason if found.end else None,
        "error": (found.end.error if found.end else None) or found.error,
    }
