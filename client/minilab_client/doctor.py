"""``minilab-client doctor``: whether Redis and the service are well, and what to do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from minilab_client.exit_codes import ExitCode
from minilab_client.findings import Finding, Level, warn
from minilab_client.output import Colour, flush, write, write_json, write_word
from minilab_client.settings import ClientSettings, pass_settings, redis_url_option

if TYPE_CHECKING:
    import redis

_COLOURS: dict[Level, Colour] = {"ok": "green", "warn": "yellow", "fail": "red"}


@click.command(
    epilog="\b\nExamples:\n  minilab-client doctor\n  minilab-client doctor --json",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON array of objects.")
@redis_url_option
@pass_settings
def doctor(settings: ClientSettings, as_json: bool) -> ExitCode:
    """Check Redis, queues, workers and models: one line for each, with what to do where something is wrong.

    Nothing is changed, and it costs little however many jobs there are. What Redis does not let this user see is said
    to be not known. The exit code is 1 if anything has failed; warnings leave it at 0.
    """
    with settings.connect() as connection:
        findings = []
        for finding in _findings(connection, settings.shown_address):
            findings.append(finding)
            if not as_json:
                _show(finding)
    if as_json:
        write_json([asdict(finding) for finding in findings])
    failed = any(finding.level == "fail" for finding in findings)
    return ExitCode.FAILED if failed else ExitCode.DONE


def _findings(connection: redis.Redis, address: str) -> Iterator[Finding]:
    import redis

    from minilab_client.redis_checks import redis_checks
    from minilab_client.service_checks import service_checks

    yield from redis_checks(connection, address)
    try:
        yield from service_checks(connection)
    except redis.ResponseError as error:
        yield warn("service", f"not known, Redis refused: {error}", "grant what docs/security.md lists")


def _show(finding: Finding) -> None:
    write_word(f"{finding.level:<4}", _COLOURS[finding.level])
    write(f"  {finding.check:<11}  {finding.found}{'; ' if finding.remedy else ''}{finding.remedy}\n")
    flush()
