"""What happens in the run, one step after the other; each tells in a line what it measured, or fails."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from chaos.checkpoint import Answers, write_slow_checkpoint, written_references
from chaos.load import request_pool
from support.waiting import wait_until

from containers.engine import Container, attempt, exit_codes, image_size, run
from containers.jobs import LIMIT, Jobs
from containers.project import ROOT, Project
from minilab_gen.models.checkpoint import read_stop_ids
from minilab_gen.request import GenerationRequest, SamplingSettings
from minilab_gen.text.tokenizer import BASE_CHECKPOINT, get_tokenizer

MOST_CLIENT_BYTES: Final = 150_000_000
"""What the client's image may add to its base."""

_PAUSE: Final = 0.1  # seconds between two questions; one to Docker starts a program
_TEXT: Final = "Phileas Fogg"
_TAKEOVER_LINE: Final = "has expired, the job is requeued"

_OVERRIDE: Final = """
services:
  worker:
    environment:
      MINILAB_CHECKPOINT: /model
      MINILAB_NAME: base
      MINILAB_KERNELS: plain # slow, so that things happen in the middle of a job
    volumes:
      - {folder}:/model:ro
"""
"""What a user with a model of their own lays over docker-compose.yml."""


class Course:
    """The steps, and what they hand on."""

    def __init__(self, project: Project, folder: Path, say: Callable[[str], None]) -> None:
        """``folder`` is for the model that replaces the base model in the middle of the run."""
        self._project, self._folder, self._say = project, folder, say
        self._answers: Answers = {}

    def run(self) -> None:
        """All of it. Raises AssertionError or CommandError where something is not as it must be."""
        with ThreadPoolExecutor(max_workers=1) as meanwhile:
            generated = meanwhile.submit(self._generate_alone)
            self._build()
        generated.result()
        self._start_workers_before_redis()
        with Jobs(self._project.url, self._answers) as jobs:
            self._jobs = jobs
            self._use_the_client()
            self._change_the_model()
            self._kill_a_worker()
            self._restart_redis()
            self._scale_up_and_down()
            self._stop_and_come_back()
            self._check_all()

    def _build(self) -> None:
        began = time.monotonic()
        self._project.run("up", "--no-start", "--build")  # which builds what `up -d --build` builds: the client, too
        self._say(f"{time.monotonic() - began:.0f} s to build")
        dockerfile = (ROOT / "client" / "Dockerfile").read_text(encoding="utf-8")
        (base,) = set(re.findall(r"^FROM (\S+)", dockerfile, re.MULTILINE))  # of both stages
        images = {service: self._project.image(service) for service in ("client", "worker")}
        above = {service: image_size(image) - image_size(base) for service, image in images.items()}
        sizes = ", ".join(f"{service} {size / 1e6:.0f} MB" for service, size in above.items())
        self._say(f"images without their base ({base}): {sizes}")
        assert above["client"] <= MOST_CLIENT_BYTES, f"the client's must be at most {MOST_CLIENT_BYTES / 1e6:.0f} MB"
        python = ["docker", "run", "--rm", "--entrypoint", "python", images["client"]]
        assert "No module named 'torch'" in attempt([*python, "-c", "import torch"]).stderr
        for image in images.values():
            self._check_compiled(["docker", "run", "--rm", "--entrypoint", "python", image])

    def _check_compiled(self, python: list[str]) -> None:
        loads = "from minilab_gen.kernels.library import backend; print(backend())"
        assert run([*python, "-c", loads]).strip() in ("avx512", "avx2", "neon", "plain")
        looks = "import shutil; print([name for name in ('cc', 'c++', 'g++', 'clang', 'zig') if shutil.which(name)])"
        assert run([*python, "-c", looks]).strip() == "[]", "a compiler is for the stage that builds"
        assert "No module named" in attempt([*python, "-m", "ziglang"]).stderr

    def _start_workers_before_redis(self) -> None:
        (worker,) = self._workers()
        worker.start()
        _wait(lambda: "for Redis at redis://redis:6379" in worker.said)
        began = time.monotonic()
        self._project.run("up", "-d")
        self._wait_until_healthy(1)
        self._say(f"a worker that was there before Redis is healthy {time.monotonic() - began:.0f} s after its start")
        assert self._workers() == [worker], "it must not have been made anew"
        assert worker.restarts == 0, "it must not have been started anew"
        assert "Traceback" not in worker.said
        assert worker.execute("id", "-u").stdout.strip() != "0", "it must not be root"
        assert worker.execute("touch", "/a-file").returncode != 0, "its root must be read-only"

    def _generate_alone(self) -> None:
        tokenizer = get_tokenizer()
        sampling = SamplingSettings(temperature=0.8, top_p=0.9, seed=7)
        stop_ids = tuple(read_stop_ids(BASE_CHECKPOINT))
        self._request = GenerationRequest(tuple(tokenizer.encode(_TEXT)), 60, sampling, stop_ids)
        self._answers |= written_references(BASE_CHECKPOINT, [self._request])
        self._text = tokenizer.decode(event.token_id for event in self._answers[self._request])
        write_slow_checkpoint(self._folder)
        self._answers |= written_references(self._folder, request_pool())

    def _use_the_client(self) -> None:
        options = "--max-new-tokens 60 --temperature 0.8 --top-p 0.9 --seed 7 --job-id client-job --follow"
        submitted = self._project.client("submit", _TEXT, *options.split())
        assert (submitted.returncode, submitted.stdout) == (0, f"{self._text}\n"), submitted
        self._jobs.watch("client-job", self._request)
        listed = json.loads(self._project.client("workers", "--json").stdout)
        assert [worker["alive"] for worker in listed] == [True], listed
        examined = self._project.client("doctor")
        assert examined.returncode == 0, examined
        lost = self._project.client("--redis-url", "redis://nowhere:6379", "jobs")
        assert lost.returncode == 4, lost
        assert "error: no Redis answers at redis://nowhere:6379: " in lost.stderr, lost
        self._say(f"the client prints what `generate` says: {self._text[:40]!r}...")

    def _change_the_model(self) -> None:
        codes, seconds = self._exit_codes_of("stop", "worker")
        self._say(f"an idle worker stops within {seconds:.1f} s, with the exit code {codes}")
        assert codes == [0]
        self._project.run("rm", "--force", "worker")
        self._folder.chmod(0o755)  # the worker is another user
        self._project.override = self._folder.with_suffix(".yml")
        self._project.override.write_text(_OVERRIDE.format(folder=self._folder), encoding="utf-8")
        self._project.run("up", "-d", "--scale", "worker=2")
        self._wait_until_healthy(2)
        self._say("two workers serve a mounted model")

    def _kill_a_worker(self) -> None:
        jobs = self._jobs
        jobs.submit(40)
        victim = self._workers()[0]
        (killed_worker,) = jobs.workers(victim.hostname)
        _wait(lambda: len(jobs.in_the_middle(killed_worker)) >= 3)
        victim.kill()
        killed = time.monotonic()
        begun = jobs.in_the_middle(killed_worker)
        assert begun, "it must have been killed in the middle of a job"
        victim.start()
        at = _first_times(
            serves=lambda: jobs.workers(victim.hostname) - {killed_worker},
            goes_on=lambda: any(jobs.lengths(begun)[job_id] > tokens for job_id, tokens in begun.items()),
        )
        self._say(f"a worker was killed; started again it serves {at['serves'] - killed:.1f} s after that")
        self._say(f"the first of its {len(begun)} answers goes on {at['goes_on'] - killed:.1f} s after the kill")
        jobs.submit(24, long=True)  # more than the other one has slots
        (successor,) = jobs.workers(victim.hostname) - {killed_worker}
        _wait(lambda: jobs.of_worker(successor))
        jobs.wait_for_ends()
        takeovers = sum(worker.said.count(_TAKEOVER_LINE) for worker in self._workers())
        self._say(f"{takeovers} jobs were taken over")
        assert takeovers >= len(begun), "each job that it had begun must have been taken over"

    def _restart_redis(self) -> None:
        self._jobs.submit(40)
        _wait(lambda: len(self._jobs.in_the_middle()) >= 10)
        began = time.monotonic()
        self._project.run("restart", "redis")
        self._jobs.wait_for_ends()
        self._say(f"40 jobs, with Redis restarted in the middle, ended {time.monotonic() - began:.1f} s after that")

    def _scale_up_and_down(self) -> None:
        self._jobs.submit(40)
        began = time.monotonic()
        self._project.run("up", "-d", "--scale", "worker=3")
        _wait(lambda: len(self._jobs.workers()) == 3)
        self._say(f"a third worker serves after {time.monotonic() - began:.1f} s")
        self._jobs.submit(40, long=True)
        _wait(lambda: all(self._jobs.in_the_middle(worker) for worker in self._jobs.workers()))
        codes, seconds = self._exit_codes_of("up", "-d", "--scale", "worker=1")
        self._say(f"two of three leave in the middle within {seconds:.1f} s, with the exit codes {codes}")
        assert codes == [0, 0]
        self._jobs.wait_for_ends()

    def _stop_and_come_back(self) -> None:
        self._jobs.submit(20, long=True)
        _wait(self._jobs.in_the_middle)
        codes, seconds = self._exit_codes_of("stop")
        self._say(f"gateway, worker and Redis stop in the middle within {seconds:.1f} s, with the exit codes {codes}")
        assert codes == [0, 0, 0]
        self._project.run("down")  # the volume stays
        self._project.run("up", "-d")
        self._jobs.wait_for_ends()

    def _check_all(self) -> None:
        findings = self._jobs.check().all
        self._say(f"{self._jobs.count} jobs, {self._jobs.tokens} tokens, {len(findings)} findings")
        assert findings == [], "\n".join(findings)
        assert [worker.restarts for worker in self._workers()] == [0], "it must not have been started anew"

    def _exit_codes_of(self, *command: str) -> tuple[list[int], float]:
        """The exit codes of the containers that a command of Compose ends, and the seconds that it takes."""
        began = time.time()
        self._project.run(*command)
        ended = time.time()
        return list(exit_codes(self._project.name, began, ended).values()), ended - began

    def _workers(self) -> list[Container]:
        return self._project.containers("worker")

    def _wait_until_healthy(self, number: int) -> None:
        def all_are_healthy() -> bool:
            workers = self._workers()
            return len(workers) == number and all(worker.is_healthy for worker in workers)

        _wait(all_are_healthy)


def _wait(condition: Callable[[], object]) -> None:
    wait_until(condition, LIMIT, _PAUSE)


def _first_times(**conditions: Callable[[], object]) -> dict[str, float]:
    """When each of some conditions first held, on the clock of ``time.monotonic``."""
    times: dict[str, float] = {}

    def have_all_held() -> bool:
        for name, condition in conditions.items():
            if name not in times and condition():
                times[name] = time.monotonic()
        return len(times) == len(conditions)

    _wait(have_all_held)
    return times
