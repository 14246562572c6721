"""What one job waits for where nothing else runs: its first token, and a reader in another process.

The moment of an XADD is Redis's own, as MONITOR tells it; Redis and all processes
of one machine read the same clock.
"""

from __future__ import annotations

import random
import re
import time
from contextlib import closing
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

import redis
from companion import companion, received

from minilab_gen.errors import MiniLabError
from minilab_gen.measurement import Percentiles
from minilab_gen.protocol import keys
from minilab_gen.protocol.connection import connect
from minilab_gen.protocol.events import TokenEvent
from minilab_gen.protocol.submission import Submission, enqueue
from minilab_gen.protocol.tail import tail
from minilab_gen.request import GenerationRequest

_PAUSE: Final = (0.06, 0.16)
"""Seconds before each job, at random: the worker is idle again, and at any point of its waiting."""
_TAIL_IS_THERE: Final = 8
"""Tokens after which the reader, which hears of a job when its submitter does, has surely caught up."""
_SLOWEST: Final = 60.0
"""Seconds for one job, on however busy a machine."""


@dataclass(frozen=True, slots=True)
class IdleLatency:
    """Milliseconds, job by job and token by token."""

    first_token: Percentiles
    """From the return of the submit call to the XADD of the first token."""
    printed: Percentiles
    """From a token's XADD to its being printed by a tail in another process."""


def measure_idle(connection: redis.Redis, requests: list[GenerationRequest]) -> IdleLatency:
    """Submit one job at a time to an idle worker while another process tails it. Each needs more than a few tokens."""
    dice = random.Random(0)
    first_tokens: list[float] = []
    printing: list[float] = []
    untyped: Any = connection
    with companion(_print_jobs) as tailing, untyped.monitor() as monitor:
        for request in requests:
            time.sleep(dice.uniform(*_PAUSE))
            job_id = enqueue(connection, request, Submission())
            returned = time.time()
            tailing.send(job_id)
            written = _times_of_entries(monitor, job_id)
            printed: dict[int, float] = received(tailing)
            if 1 not in written:
                raise MiniLabError(f"a job must give tokens, {job_id} gave none")
            first_tokens.append(written[1] - returned)
            printing += [moment - written[n] for n, moment in printed.items() if n > _TAIL_IS_THERE]
    return IdleLatency(Percentiles.of(first_tokens), Percentiles.of(printing))


def _times_of_entries(monitor: Any, job_id: str) -> dict[int, float]:
    """The Unix time of each token's XADD, up to the job's end."""
    written: dict[int, float] = {}
    entry = re.compile(rf"XADD {keys.token_stream(job_id)} (?:NOMKSTREAM )?(\d+)-0 (\w+)", re.IGNORECASE)
    give_up = time.monotonic() + _SLOWEST
    while time.monotonic() < give_up:
        seen = monitor.next_command()
        found = entry.match(seen["command"])
        if found and found[2] == "end":
            return written
        if found:
            written[int(found[1])] = seen["time"]
    raise MiniLabError(f"a job alone must end within {_SLOWEST:.0f} s, {job_id} has not")


def _print_jobs(pipe: Connection) -> None:
    """The other process: says that it is there, then tails job after job until the pipe is closed."""
    with closing(connect()) as connection, Path("/dev/null").open("w", encoding="utf-8") as screen:
        pipe.send("ready")
        while True:
            try:
                job_id: str = pipe.recv()
            except EOFError:
                return
            printed: dict[int, float] = {}
            for event in tail(connection, job_id):
                print(event.text, end="", file=screen, flush=True)
                if isinstance(event, TokenEvent):
                    printed[event.number] = time.time()
            pipe.send(printed)
