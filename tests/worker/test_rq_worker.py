"""An ordinary ``rq worker`` that serves a slow model: its jobs end when their time is over, and only then."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
import redis
from chaos.checkpoint import write_slow_checkpoint
from chaos.fleet import SLOW_KERNELS
from rq import Queue, SimpleWorker
from rq.job import Job
from rq.serializers import JSONSerializer
from rq.timeouts import BaseDeathPenalty, JobTimeoutException
from support.client_process import environment
from support.waiting import wait_until

from minilab_gen import tasks
from minilab_gen.engine import Engine
from minilab_gen.engine.sequence import Outcome
from minilab_gen.kernels.decoder import Decoder
from minilab_gen.protocol import keys
from minilab_gen.protocol.events import EndEvent, Event, TokenEvent
from minilab_gen.protocol.streams import publish, published_tokens, stream_length
from minilab_gen.protocol.submission import Submission, enqueue
from minilab_gen.request import GenerationRequest

pytestmark = pytest.mark.slow

LAYERS: Final = 320
"""Many more than in a chaos run: with plain kernels on two threads, a whole answer takes two seconds."""

SLOW_LOADING: Final = """
import time
from minilab_gen.models import checkpoint

load = checkpoint.load

def load_slowly(*arguments, **named):
    time.sleep(3)
    return load(*arguments, **named)

checkpoint.load = load_slowly
"""
"""What Python runs as it starts: a model that takes longer to load than a job may run."""

LIMIT: Final = 240.0
"""Seconds for anything here to come true: torch is imported and a deep model loaded on a machine that may be loaded."""

LATE: Final = 6.0
"""Seconds after its start within which a job with a timeout of one must have ended, however loaded the machine is.
It takes one on a quiet machine; a timeout that goes unheard takes a minute."""

SHORT = GenerationRequest((1,), max_new_tokens=2)
WHOLE = GenerationRequest((5, 6, 7), max_new_tokens=1000)


@pytest.fixture(scope="module")
def very_slow_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_slow_checkpoint(tmp_path_factory.mktemp("very-slow"), LAYERS)


@contextmanager
def rq_worker(url: str, checkpoint: Path, *, site: Path | None = None) -> Iterator[None]:
    """The command that docs/protocol.md names; it is told to stop at the end, and must then end well.

    ``site`` is a folder in which Python finds modules first.
    """
    path = os.pathsep.join([*([str(site)] if site else []), *sys.path])
    serializer = ["--serializer", "rq.serializers.JSONSerializer"]
    command = [sys.executable, "-m", "rq.cli", "worker", "--url", url, "--worker-class", "rq.SimpleWorker", *serializer]
    variables = {"MINILAB_CHECKPOINT": str(checkpoint), "MINILAB_KERNELS": SLOW_KERNELS}
    with subprocess.Popen(
        [*command, keys.queue_name("base")],
        env={**os.environ, "PYTHONPATH": path, **variables},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            yield
            process.terminate()
            assert process.wait(LIMIT) == 0
        finally:
            process.kill()


def submit_hasty(url: str) -> str:
    command = [sys.executable, "-m", "minilab_client", "submit", "--ids", "5,6,7", "--max-new-tokens", "1000"]
    command += ["--timeout", "1"]
    return subprocess.run(
        command, env=environment(url), check=True, capture_output=True, text=True, timeout=LIMIT
    ).stdout.strip()


def end_of(connection: redis.Redis, job_id: str) -> EndEvent:
    """Its terminal entry, once RQ has recorded the end, too."""
    wait_until(lambda: recorded(connection, job_id).ended_at is not None, LIMIT)
    _, end = published_tokens(connection, job_id)
    assert end is not None
    return end


def recorded(connection: redis.Redis, job_id: str) -> Job:
    return Job.fetch(job_id, connection, serializer=JSONSerializer)


def assert_timed_out(connection: redis.Redis, job_id: str) -> EndEvent:
    """In the stream and in RQ's record, and in time."""
    end = end_of(connection, job_id)
    job = recorded(connection, job_id)
    assert (end.reason, end.phase, end.prompt_tokens) == ("timeout", "running", 3)
    wait_until(lambda: recorded(connection, job_id).get_status().value == "failed")
    failure = recorded(connection, job_id).latest_result()
    assert failure is not None
    assert "JobTimeoutException" in (failure.exc_string or "")
    assert job.started_at is not None
    assert job.ended_at is not None
    assert 0.5 < (job.ended_at - job.started_at).total_seconds() < LATE
    return end


def test_a_job_of_a_slow_model_ends_when_its_timeout_is_over(
    server: redis.Redis, server_url: str, very_slow_checkpoint: Path
) -> None:
    with rq_worker(server_url, very_slow_checkpoint):
        assert end_of(server, enqueue(server, SHORT, Submission())).reason == "length"

        end = assert_timed_out(server, submit_hasty(server_url))

        assert 0 < end.tokens < 120
        assert end_of(server, enqueue(server, SHORT, Submission())).reason == "length"


@pytest.fixture
def slow_loading(tmp_path: Path) -> Path:
    (tmp_path / "sitecustomize.py").write_text(SLOW_LOADING, encoding="utf-8")
    return tmp_path


def test_a_timeout_while_the_model_is_loaded_ends_its_job_and_no_other(
    server: redis.Redis, server_url: str, very_slow_checkpoint: Path, slow_loading: Path
) -> None:
    """The first job of a process waits for the model; interrupted in an import, a library would stay broken."""
    with rq_worker(server_url, very_slow_checkpoint, site=slow_loading):
        hasty = submit_hasty(server_url)
        patient = enqueue(server, SHORT, Submission())

        assert assert_timed_out(server, hasty).tokens == 0
        assert end_of(server, patient).reason == "length"


def test_a_timeout_while_a_resumed_job_waits_for_the_model_is_written_behind_its_tokens(
    server: redis.Redis, server_url: str, very_slow_checkpoint: Path, slow_loading: Path
) -> None:
    hasty = submit_hasty(server_url)
    for number in (1, 2, 3):
        server.xadd(keys.token_stream(hasty), {"id": "7", "text": "a"}, id=f"{number}-0")

    with rq_worker(server_url, very_slow_checkpoint, site=slow_loading):
        assert assert_timed_out(server, hasty).tokens == 3

    assert stream_length(server, hasty)[0] == 3


# One job in this process


def run_here(connection: redis.Redis, job_id: str, *, rings: bool) -> None:
    """What a SimpleWorker does with a job; RQ's alarm may be one that never rings."""
    worker = SimpleWorker([keys.queue_name("base")], connection=connection, serializer=JSONSerializer)
    if not rings:
        worker.death_penalty_class = Silent
    worker.execute_job(recorded(connection, job_id), Queue(keys.queue_name("base"), connection=connection))


class Silent(BaseDeathPenalty):
    def setup_death_penalty(self) -> None:
        pass

    def cancel_death_penalty(self) -> None:
        pass


@pytest.fixture
def warm(server: redis.Redis, small_checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> redis.Redis:
    """With the model loaded."""
    monkeypatch.setenv("MINILAB_CHECKPOINT", str(small_checkpoint))
    run_here(server, enqueue(server, SHORT, Submission()), rings=True)
    return server


def test_the_alarm_is_heard_in_the_middle_of_a_long_step(warm: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    """And such a step is not taken again."""

    def slow_run(decoder: Decoder, *arguments: Any, **named: Any) -> list[int]:
        for _ in range(500):
            time.sleep(0.01)
        return run(decoder, *arguments, **named)

    run = Decoder.run
    monkeypatch.setattr(Decoder, "run", slow_run)
    hasty = enqueue(warm, WHOLE, Submission(timeout=1))

    run_here(warm, hasty, rings=True)

    assert assert_timed_out(warm, hasty).tokens == 0


def test_a_job_whose_alarm_does_not_ring_ends_at_its_deadline(
    warm: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An exception raised by a signal may get lost: Python ignores those that come in a finalizer."""

    def slow_step(engine: Engine) -> list[Outcome]:
        time.sleep(0.1)
        return step(engine)

    step = Engine.step
    monkeypatch.setattr(Engine, "step", slow_step)
    hasty = enqueue(warm, WHOLE, Submission(timeout=1))

    run_here(warm, hasty, rings=False)

    assert assert_timed_out(warm, hasty).tokens > 0


def test_a_job_without_a_limit_has_no_alarm_and_no_deadline(warm: redis.Redis) -> None:
    """RQ's timeout -1."""
    patient = enqueue(warm, SHORT, Submission())
    warm.hset(Job.key_for(patient), "timeout", -1)

    run_here(warm, patient, rings=False)

    assert end_of(warm, patient).reason == "length"


def test_an_alarm_between_a_token_and_its_publication_leaves_no_gap(
    warm: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stream says how far the job came; the terminal entry follows what stands there."""

    def interrupted(connection: redis.Redis, entries: list[tuple[str, Event]], **named: Any) -> None:
        if isinstance(entries[0][1], TokenEvent) and entries[0][1].number == 4:
            raise JobTimeoutException("now")
        publish(connection, entries, **named)

    monkeypatch.setattr(tasks, "publish", interrupted)
    hasty = enqueue(warm, WHOLE, Submission())

    run_here(warm, hasty, rings=True)

    assert (end_of(warm, hasty).reason, end_of(warm, hasty).tokens) == ("timeout", 3)


def test_an_alarm_while_the_end_is_published_changes_nothing_about_it(
    warm: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    rung: list[bool] = []

    def interrupted(connection: redis.Redis, entries: list[tuple[str, Event]], **named: Any) -> None:
        if isinstance(entries[0][1], EndEvent) and not rung:
            rung.append(True)
            raise JobTimeoutException("now")
        publish(connection, entries, **named)

    monkeypatch.setattr(tasks, "publish", interrupted)
    done = enqueue(warm, SHORT, Submission())

    run_here(warm, done, rings=True)

    assert end_of(warm, done).reason == "length"
    assert recorded(warm, done).get_status().value == "finished"
