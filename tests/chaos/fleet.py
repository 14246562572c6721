"""Worker processes: started, killed, paused, told to stop; all of them ended at the end, by their ids."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Final, Self

import redis
from rq.job import Job

from minilab_gen.protocol import keys

LEASE: Final = 3
"""Seconds: the shortest that the worker takes, so that a run need not wait long for takeovers."""

START_LIMIT: Final = 120.0
"""Seconds for a worker to be ready: torch alone takes several on a loaded machine."""

END_LIMIT: Final = 60.0
"""Seconds for a worker to leave after SIGTERM, its grace time included."""


SLOW_KERNELS: Final = "plain"
"""Twenty times as slow as the fastest, so that things happen in the middle of a job, and with the same bits: what these
workers answer is compared with what the fastest kernels give."""

FAST_KERNELS: Final = ""
"""The fastest that this processor can run, for what needs no moment in the middle of a job."""


class WorkerProcess:
    """``minilab-worker`` as an operating system sees it."""

    def __init__(self, checkpoint: Path, url: str, log: Path, *options: str, kernels: str = SLOW_KERNELS) -> None:
        command = [sys.executable, "-m", "minilab_worker.cli", "--redis-url", url]
        command += ["--model", str(checkpoint), "--name", keys.DEFAULT_MODEL]
        settings = ["--lease", str(LEASE), "--max-batch", "8", "--threads", "1", "--verbose"]
        self.log = log
        self.is_asleep = False
        self.may_fail = False
        """Whether something was done to it after which it need not end well."""
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [*command, *settings, *options],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "MINILAB_KERNELS": kernels},
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._process.poll()

    @property
    def said(self) -> str:
        """Everything that it has logged."""
        return self.log.read_text(encoding="utf-8", errors="replace")

    @property
    def is_serving(self) -> bool:
        return " serves " in self.said

    def kill(self) -> None:
        self.may_fail = True
        self._process.kill()
        self._process.wait()

    def sleep(self) -> None:
        """SIGSTOP: it keeps its memory and its connections, and does nothing."""
        self.is_asleep = True
        self._process.send_signal(signal.SIGSTOP)

    def wake(self) -> None:
        self.is_asleep = False
        self._process.send_signal(signal.SIGCONT)

    def terminate(self) -> None:
        self._process.terminate()

    def wait(self) -> int:
        """Its exit code, once it has ended; that of a kill, if it does not."""
        try:
            return self._process.wait(END_LIMIT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()


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
