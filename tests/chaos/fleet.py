"""Worker processes: started, killed, paused, told to stop; all of them ended at the end, by their ids."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final, Self

import redis
from rq.job import Job

from chaos.process import OwnProcess
from minilab_gen.protocol import keys

LEASE: Final = 3
"""Seconds: the shortest that the worker takes, so that a run need not wait long for takeovers."""

START_LIMIT: Final = 120.0
"""Seconds for a worker to be ready: torch alone takes several on a loaded machine."""

SLOW_KERNELS: Final = "plain"
"""Twenty times as slow as the fastest, so that things happen in the middle of a job, and with the same bits: what these
workers answer is compared with what the fastest kernels give."""

FAST_KERNELS: Final = ""
"""The fastest that this processor can run, for what needs no moment in the middle of a job."""


class WorkerProcess(OwnProcess):
    """``minilab-worker``."""

    def __init__(self, checkpoint: Path, url: str, log: Path, *options: str, kernels: str = SLOW_KERNELS) -> None:
        given = ["--redis-url", url, "--model", str(checkpoint), "--name", keys.DEFAULT_MODEL]
        settings = ["--lease", str(LEASE), "--max-batch", "8", "--threads", "1", "--verbose"]
        super().__init__("minilab_worker.cli", [*given, *settings, *options], log, MINILAB_KERNELS=kernels)

    @property
    def is_serving(self) -> bool:
        return " serves " in self.said


class Fleet:
    """All worker processes of a run."""

    def __init__(self, checkpoint: Path, url: str, folder: Path) -> None:
        self._checkpoint, self._url, self._folder = checkpoint, url, folder
        self.workers: list[WorkerProcess] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.workers:
            if worker.exit_code is None:
                worker.kill()

    def start(self, *options: str, kernels: str = SLOW_KERNELS) -> WorkerProcess:
        """One more, which is not yet ready."""
        log = self._folder / f"worker-{len(self.workers)}.log"
        self.workers.append(WorkerProcess(self._checkpoint, self._url, log, *options, kernels=kernels))
        return self.workers[-1]

    def start_and_wait(self, *options: str, kernels: str = SLOW_KERNELS) -> WorkerProcess:
        """One more, ready to serve."""
        worker = self.start(*options, kernels=kernels)
        self.wait_until_serving(worker)
        return worker

    @staticmethod
    def wait_until_serving(worker: WorkerProcess) -> None:
        give_up = time.monotonic() + START_LIMIT
        while not worker.is_serving:
            assert worker.exit_code is None, f"a worker ended as it started:\n{worker.said}"
            assert time.monotonic() < give_up, f"a worker must serve within {START_LIMIT:.0f} s:\n{worker.said}"
            time.sleep(0.02)

    def holder_of(self, connection: redis.Redis, job_id: str) -> WorkerProcess:
        """The worker that RQ's record of a job names: our workers have their process id in their names."""
        name = connection.hget(Job.key_for(job_id), "worker_name")
        assert isinstance(name, bytes), f"{job_id} must have been started"
        (holder,) = (worker for worker in self.workers if f"-{worker.pid}-" in name.decode())
        return holder

    @property
    def alive(self) -> list[WorkerProcess]:
        """Those whose process runs, asleep or not."""
        return [worker for worker in self.workers if worker.exit_code is None]

    def stop_all(self) -> None:
        """SIGTERM to all; returns when they have left."""
        for worker in self.alive:
            if worker.is_asleep:
                worker.wake()
            worker.terminate()
        for worker in self.alive:
            worker.wait()
