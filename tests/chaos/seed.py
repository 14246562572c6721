"""One chaos run: a Redis, workers, clients and readers, faults for some seconds, then quiet, then the audit."""

from __future__ import annotations

import contextlib
import random
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from chaos.audit import Audit, Findings, is_gone, unfinished
from chaos.checkpoint import Answers
from chaos.faults import Faults
from chaos.fleet import Fleet
from chaos.load import Clients, plan
from chaos.proxy import Proxy
from chaos.readers import Reader
from chaos.server import Server

_LOG_LOSS: Final = 4.0
"""Seconds of acknowledged writes that a killed Redis may lose: one between two fsyncs, and two more for which it puts
off writing while the disk is busy."""

_TAKEOVER_LINE: Final = "has expired, the job is requeued"
_ZOMBIE_LINE: Final = "another worker has taken the job over"


@dataclass(frozen=True)  # no slots: their defaults are the command line's
class Scale:
    """How large one run is."""

    seconds: float = 8.0
    """Seconds of faults."""
    workers: int = 3
    jobs: int = 180
    readers: int = 15
    settle: float = 120.0
    """Seconds after the faults in which everything must have ended."""


@dataclass(slots=True)
class SeedReport:
    """What one seed came to."""

    seed: int
    jobs: int
    faults: Counter[str]
    takeovers: int = 0
    zombies: int = 0
    """Jobs that a worker dropped because others had taken them over while it slept."""
    given_up: int = 0
    submitted_again: int = 0
    """Jobs that Redis forgot when it was killed, and that their client submitted once more."""
    settled_after: float = 0.0
    """Seconds from the last fault until everything had ended."""
    findings: Findings = field(default_factory=Findings)
    logs: str = ""
    """What the workers said, kept when something is wrong."""


class Seed:
    """Everything that one run needs, and its course."""

    def __init__(self, seed: int, scale: Scale, checkpoint: Path, answers: Answers) -> None:
        self._seed, self._scale, self._checkpoint, self._answers = seed, scale, checkpoint, answers
        self._dice = random.Random(seed)
        self._planned = plan(self._dice, list(answers), scale.jobs, scale.seconds)
        self._readers: list[Reader] = []

    def run(self) -> SeedReport:
        """Let it all happen; nothing is left running, whatever comes."""
        with contextlib.ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mlc-")))
            self._server = stack.enter_context(Server(folder))
            through_proxy = self._dice.random() < 0.7
            proxy = Proxy(folder / "proxy.sock", self._server.socket, self._dice) if through_proxy else None
            if proxy is not None:
                stack.enter_context(proxy)
            self._url = proxy.url if proxy else self._server.url
            self._fleet = stack.enter_context(Fleet(self._checkpoint, self._url, folder))
            self._faults = Faults(self._dice, self._fleet, self._server, proxy)
            for _ in range(self._scale.workers):
                self._fleet.start("--grace", "3")
            for worker in self._fleet.workers:
                self._fleet.wait_until_serving(worker)
            return self._course()

    def _course(self) -> SeedReport:
        report = SeedReport(self._seed, len(self._planned), self._faults.injected)
        with contextlib.closing(Clients(self._url, self._planned)) as clients:
            clients.start()
            with self._reading(clients):
                self._faults.run(self._scale.seconds)
                self._faults.end()
                began = time.monotonic()
                give_up = began + self._scale.settle
                clients.join()
                report.submitted_again = self._submit_what_redis_forgot(clients)
                unsettled = self._wait_until_settled(give_up)
                report.settled_after = time.monotonic() - began
        self._fleet.stop_all()
        self._audit(report, unsettled)
        return report

    @contextlib.contextmanager
    def _reading(self, clients: Clients) -> Iterator[None]:
        """Readers come while the faults happen, each some time after its job is known."""
        chosen = self._dice.choices(self._planned, k=self._scale.readers)
        late = [self._dice.choice([0.0, 0.0, self._dice.uniform(0, 5)]) for _ in chosen]
        arrivals_at = sorted((job.at + wait, job.job_id) for job, wait in zip(chosen, late, strict=True))
        began, ended = time.monotonic(), threading.Event()

        def come() -> None:
            for at, job_id in arrivals_at:
                ended.wait(began + at - time.monotonic())
                while job_id not in clients.acknowledged and not ended.wait(0.02):
                    pass
                if ended.is_set():
                    return
                self._readers.append(Reader(self._url, job_id, random.Random(self._seed + len(self._readers))))

        self._arrivals = threading.Thread(target=come, name="arrivals")
        self._arrivals.start()
        try:
            yield
        finally:
            ended.set()
            self._arrivals.join()
            for reader in self._readers:
                reader.stop()
            for reader in self._readers:
                reader.close()

    def _submit_what_redis_forgot(self, clients: Clients) -> int:
        """What a client does that looks whether its job is there after Redis went down; other jobs must not be gone."""
        again = 0
        with self._server.connect() as connection:
            for job in self._planned:
                at = clients.acknowledged[job.job_id]
                killed_since = [killed for killed in self._faults.server_killed_at if 0 < killed - at < _LOG_LOSS]
                if killed_since and is_gone(connection, job.job_id):
                    clients.submit(job)
                    again += 1
        return again

    def _wait_until_settled(self, give_up: float) -> list[str]:
        """Returns the ids of jobs that have not ended in time."""
        with self._server.connect() as connection:
            while time.monotonic() < give_up:
                all_read = not self._arrivals.is_alive() and all(reader.has_ended for reader in self._readers)
                if all_read and not unfinished(connection, self._planned):
                    return []
                time.sleep(0.05)
            return unfinished(connection, self._planned)

    def _audit(self, report: SeedReport, unsettled: list[str]) -> None:
        with self._server.connect() as connection:
            audit = Audit(connection, self._answers)
            audit.check_jobs(self._planned)
            audit.check_readers(self._readers)
            audit.check_books()
            audit.check_counts()
        report.given_up, report.findings = audit.given_up, audit.findings
        report.findings.lost += [f"{job_id}: has not ended in {self._scale.settle:.0f} s" for job_id in unsettled]
        for number, worker in enumerate(self._fleet.workers):
            said = worker.said
            report.takeovers += said.count(_TAKEOVER_LINE)
            report.zombies += said.count(_ZOMBIE_LINE)
            if (worker.exit_code != 0 and not worker.may_fail) or "Traceback" in said:
                report.findings.left.append(f"worker {number} ended with {worker.exit_code}")
        if report.findings.all:
            report.logs = "\n".join(f"--- {worker.log.name}\n{worker.said}" for worker in self._fleet.workers)
