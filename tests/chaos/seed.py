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

import httpx2 as httpx
import redis

from chaos.audit import Audit, Findings, is_gone, unfinished
from chaos.checkpoint import Answers
from chaos.faults import Faults
from chaos.fleet import Fleet
from chaos.gateways import Gateways
from chaos.http_audit import HttpAudit, http_jobs
from chaos.http_crowd import Crowd
from chaos.load import Clients, plan
from chaos.process import OwnProcess
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
    gateways: int = 2
    jobs: int = 180
    """A third of them are asked for over HTTP."""
    readers: int = 15
    settle: float = 240.0
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
    http_streams: int = 0
    http_resumes: int = 0
    """Streams that went on at another gateway, or at the same one."""
    http_retries: int = 0
    """Requests that were sent again, as no answer had come."""
    settled_after: float = 0.0
    """Seconds from the last fault until everything had ended."""
    findings: Findings = field(default_factory=Findings)
    logs: str = ""
    """What workers and gateways said, kept when something is wrong."""


class Seed:
    """Everything that one run needs, and its course."""

    def __init__(self, seed: int, scale: Scale, checkpoint: Path, answers: Answers) -> None:
        self._seed, self._scale, self._checkpoint, self._answers = seed, scale, checkpoint, answers
        self._dice = random.Random(seed)
        self._over_http = scale.jobs // 3
        self._planned = plan(self._dice, list(answers), scale.jobs - self._over_http, scale.seconds)
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
            self._gateways = stack.enter_context(Gateways(self._url, folder))
            self._crowd = stack.enter_context(Crowd(self._dice, self._gateways, self._over_http, self._scale.seconds))
            self._faults = Faults(self._dice, self._fleet, self._gateways, self._server, proxy)
            for _ in range(self._scale.workers):
                self._fleet.start("--grace", "3")
            for worker in self._fleet.workers:
                self._fleet.wait_until_serving(worker)
            for _ in range(self._scale.gateways):
                self._gateways.start_and_wait("--grace", "3")
            return self._course()

    def _course(self) -> SeedReport:
        report = SeedReport(self._seed, self._scale.jobs, self._faults.injected)
        with contextlib.closing(Clients(self._url, self._planned)) as clients:
            clients.start()
            self._crowd.start()
            with self._reading(clients):
                self._faults.run(self._scale.seconds)
                self._faults.end()
                self._crowd.start_quiet(self._server.connect)
                began = time.monotonic()
                give_up = began + self._scale.settle
                clients.join()
                report.submitted_again = self._submit_what_redis_forgot(clients)
                unsettled = self._wait_until_settled(give_up)
                report.settled_after = time.monotonic() - began
        for client in self._crowd.clients:
            client.close()
        self._fleet.stop_all()
        self._gateways.stop_all()
        self._audit(report, unsettled)
        self._hear(report)
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
                if all_read and self._crowd.is_through and not self._unfinished(connection):
                    return []
                time.sleep(0.05)
            return self._unfinished(connection)

    def _unfinished(self, connection: redis.Redis) -> list[str]:
        return unfinished(connection, [*(job.job_id for job in self._planned), *http_jobs(connection)])

    def _audit(self, report: SeedReport, unsettled: list[str]) -> None:
        with self._server.connect() as connection:
            audit = Audit(connection, self._answers)
            audit.check_jobs(self._planned)
            audit.check_readers(self._readers)
            judge = self._gateways.start_and_wait()
            with httpx.Client(base_url=str(judge.address), timeout=60) as http:
                over_http = HttpAudit(connection, audit, self._answers, http)
                over_http.check(self._crowd.clients, may_forget=bool(self._faults.server_killed_at))
            self._gateways.stop_all()
            audit.check_books()
            audit.check_counts()
        report.given_up, report.findings = audit.given_up, audit.findings
        report.findings.lost += [f"{job_id}: has not ended in {self._scale.settle:.0f} s" for job_id in unsettled]
        report.http_streams = sum(client.plan.streams for client in self._crowd.clients)
        report.http_resumes = sum(client.resumes for client in self._crowd.clients)
        report.http_retries = sum(client.retries for client in self._crowd.clients)

    def _hear(self, report: SeedReport) -> None:
        """What the processes said, and how they ended."""
        for number, worker in enumerate(self._fleet.workers):
            report.takeovers += worker.said.count(_TAKEOVER_LINE)
            report.zombies += worker.said.count(_ZOMBIE_LINE)
            self._hear_one(report, f"worker {number}", worker)
        for number, gateway in enumerate(self._gateways.all):
            self._hear_one(report, f"gateway {number}", gateway)
        if report.findings.all:
            processes = [*self._fleet.workers, *self._gateways.all]
            report.logs = "\n".join(f"--- {process.log.name}\n{process.said}" for process in processes)

    @staticmethod
    def _hear_one(report: SeedReport, name: str, process: OwnProcess) -> None:
        if (process.exit_code != 0 and not process.may_fail) or "Traceback" in process.said:
            report.findings.left.append(f"{name} ended with {process.exit_code}")
