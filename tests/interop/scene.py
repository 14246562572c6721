"""A service with a job in each state that RQ knows, which stays as it is: its worker is stopped in mid-answer."""

from __future__ import annotations

from dataclasses import dataclass

from chaos.fleet import WorkerProcess
from rq import Queue
from rq.serializers import JSONSerializer
from support.own_service import LIMIT, LONG, OwnService
from support.waiting import wait_until

from minilab_gen.protocol import keys
from minilab_gen.protocol.endings import cancel
from minilab_gen.request import GenerationRequest

QUEUE = keys.queue_name(keys.DEFAULT_MODEL)

_SHORT = GenerationRequest((5, 6, 7), max_new_tokens=12)
_LEASE = "600"  # seconds: the worker is stopped for longer than it is asleep in other tests


@dataclass(frozen=True, slots=True)
class Scene:
    """What must be seen, and the way to its end."""

    service: OwnService
    worker: WorkerProcess

    jobs: dict[str, str]
    """RQ's name of each state, and a job in it."""

    finished: int
    answer: list[int]
    """The tokens of the finished job."""

    @property
    def worker_mark(self) -> str:
        """A part of the worker's name."""
        return f"-{self.worker.pid}-"

    def come_to_rest(self) -> None:
        """Let the worker go on; returns when it has nothing more to do."""
        self.worker.wake()
        for state in ("started", "queued"):
            self.service.wait_for_status(self.jobs[state], "finished")
        key = next(key for key in self.service.connection.scan_iter(f"rq:worker:*{self.worker_mark}*"))
        wait_until(lambda: self.service.connection.hget(key, "state") == b"idle", LIMIT)


def set_up(service: OwnService) -> Scene:
    """Run some jobs, and stop the worker while it runs one."""
    # One slot, so that a worker that runs a job waits for no other: its blocked command would take one while it sleeps.
    worker = service.fleet.start_and_wait("--lease", _LEASE, "--max-batch", "1")
    queue = Queue(QUEUE, connection=service.connection, serializer=JSONSerializer)
    finished = service.submit(_SHORT, job_id="job-finished")
    queue.enqueue("os.getpid", job_id="job-failed")
    service.wait_for_status(finished, "finished")
    service.wait_for_status("job-failed", "failed")
    tries = 0
    while True:
        started = service.submit(LONG, job_id=f"job-started-{tries}")
        service.wait_for_token(started, 3)
        worker.sleep()
        if service.status(started) == "started" and service.tokens(started) < LONG.max_new_tokens:
            break
        worker.wake()  # it was quicker than we
        service.wait_for_status(started, "finished")
        tries += 1
    cancel(service.connection, service.submit(_SHORT, job_id="job-cancelled"))
    queued = service.submit(_SHORT, job_id="job-queued")
    jobs = {
        "queued": queued,
        "started": started,
        "finished": finished,
        "failed": "job-failed",
        "canceled": "job-cancelled",
    }
    return Scene(service, worker, jobs, 1 + tries, service.answer(_SHORT))
