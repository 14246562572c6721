"""What a worker shows to Prometheus agrees with what it did, whichever process is killed."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing

import pytest
import redis
from chaos.fleet import WorkerProcess
from chaos.server import BINARY
from minilab_worker.serving import ServedModel
from minilab_worker.telemetry.metrics import QueueDepths, WorkerMetrics
from minilab_worker.telemetry.metrics_server import MetricsServer
from minilab_worker.worker import Worker, WorkerSettings
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from support.own_service import LIMIT, LONG, OwnService
from support.waiting import wait_until

from minilab_gen.protocol import keys
from minilab_gen.protocol.events import TokenEvent
from minilab_gen.protocol.streams import publish
from minilab_gen.protocol.submission import Submission, enqueue
from minilab_gen.request import GenerationRequest

needs_redis = pytest.mark.skipif(BINARY is None, reason="needs redis-server or valkey-server on the PATH")

StartWorker = Callable[..., Worker]
SETTINGS = WorkerSettings(tuple(keys.queue_names(keys.DEFAULT_MODEL)), max_batch=4)
SCRAPE = ("--metrics-port", "0")


class Scrape:
    """What one GET answered."""

    def __init__(self, url: str) -> None:
        with urllib.request.urlopen(url, timeout=10) as answer:  # noqa: S310 - our own address
            self.families: list[Metric] = list(text_string_to_metric_families(answer.read().decode()))
        self.series = {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in self.families
            for sample in family.samples
        }

    def __getitem__(self, series: str) -> float:
        """The value of ``name`` or ``name{label="value"}``."""
        name, labels = re.fullmatch(r"(\w+)(?:\{(.*)\})?", series).groups()  # type: ignore[union-attr]
        pairs = tuple(sorted(re.findall(r'(\w+)="([^"]*)"', labels or "")))
        return self.series[name, pairs]


def address_of(worker: WorkerProcess) -> str:
    """Where a worker process said that its metrics are."""
    (url,) = re.findall(r"metrics at (http://\S+)", worker.said)
    return str(url)


@pytest.fixture
def show(served: ServedModel) -> Iterator[Callable[[Worker], str]]:
    """Serve the metrics of a worker in this process; gives the address."""
    with ExitStack() as stack:

        def show(worker: Worker) -> str:
            server = stack.enter_context(closing(MetricsServer("127.0.0.1", 0)))
            server.show(stack.enter_context(closing(WorkerMetrics(worker, SETTINGS, served.card))))
            return server.url

        yield show


def test_jobs_and_tokens_are_counted_by_what_became_of_them(
    server: redis.Redis, start_worker: StartWorker, show: Callable[[Worker], str]
) -> None:
    flagged = "to-be-cancelled"
    server.set(keys.cancel_flag(flagged), 1, ex=60)
    worker = start_worker()
    url = show(worker)

    for tokens in (20, 7, 1):
        enqueue(server, GenerationRequest((5, 6, 7), tokens), Submission())
    enqueue(server, GenerationRequest((5, 6)), Submission(job_id=flagged))
    enqueue(server, GenerationRequest((99_999,)), Submission())
    wait_until(lambda: worker.done == 5)

    seen = Scrape(url)
    assert seen["minilab_jobs_started_total"] == 5
    assert seen['minilab_jobs_ended_total{reason="length"}'] == 3
    assert seen['minilab_jobs_ended_total{reason="cancelled"}'] == 1
    assert seen['minilab_jobs_ended_total{reason="error"}'] == 1
    assert seen['minilab_jobs_ended_total{reason="stop"}'] == 0
    assert seen["minilab_generated_tokens_total"] == 28
    assert seen["minilab_prompt_tokens_total"] == 9
    assert seen["minilab_time_to_first_token_seconds_count"] == 3
    assert seen["minilab_token_gap_seconds_count"] == 28 - 3
    assert seen["minilab_queue_wait_seconds_count"] == 5
    assert (seen["minilab_slots"], seen["minilab_slots_used"], seen["minilab_redis_up"]) == (4, 0, 1)


def test_a_bucket_holds_all_values_up_to_its_bound(
    server: redis.Redis, start_worker: StartWorker, show: Callable[[Worker], str]
) -> None:
    worker = start_worker()
    url = show(worker)
    enqueue(server, GenerationRequest((5, 6), 50), Submission())
    wait_until(lambda: worker.done == 1)

    seen = Scrape(url)

    for name, count in (("step", 50), ("token_gap", 49), ("time_to_first_token", 1), ("queue_wait", 1)):
        buckets = [value for (series, _), value in seen.series.items() if series == f"minilab_{name}_seconds_bucket"]
        assert buckets == sorted(buckets)
        assert buckets[-1] == seen[f"minilab_{name}_seconds_count"] == count
        assert seen[f"minilab_{name}_seconds_sum"] > 0


def test_the_phases_of_the_steps_add_up_to_the_steps(
    server: redis.Redis, start_worker: StartWorker, show: Callable[[Worker], str]
) -> None:
    worker = start_worker()
    url = show(worker)
    enqueue(server, GenerationRequest((5, 6), 50), Submission())
    wait_until(lambda: worker.done == 1)

    seen = Scrape(url)

    phases = {dict(labels)["phase"]: v for (name, labels), v in seen.series.items() if "phase_seconds_total" in name}
    assert min(phases.values()) > 0, "all phases occur in a job's life"
    assert sum(phases.values()) >= seen["minilab_step_seconds_sum"]


def test_more_jobs_add_no_series(server: redis.Redis, start_worker: StartWorker, show: Callable[[Worker], str]) -> None:
    worker = start_worker()
    url = show(worker)
    before = Scrape(url).series.keys()

    for number in range(30):
        enqueue(server, GenerationRequest((number,), 1 + number % 5), Submission())
    wait_until(lambda: worker.done == 30)

    assert Scrape(url).series.keys() == before


def test_a_job_that_others_began_counts_as_resumed_and_gives_no_first_token(
    server: redis.Redis, start_worker: StartWorker, show: Callable[[Worker], str]
) -> None:
    job_id = enqueue(server, GenerationRequest((5, 6), 60), Submission())
    publish(server, [(job_id, TokenEvent(n, 100 + n, "")) for n in range(1, 21)], running_ttl=600)

    worker = start_worker()
    url = show(worker)
    wait_until(lambda: worker.done == 1)

    seen = Scrape(url)
    assert (seen["minilab_jobs_resumed_total"], seen["minilab_generated_tokens_total"]) == (1, 40)
    assert seen["minilab_token_gap_seconds_count"] == 40 - 1
    assert seen["minilab_time_to_first_token_seconds_count"] == seen["minilab_queue_wait_seconds_count"] == 0


def test_the_depth_of_each_queue_is_what_waits_in_it(server: redis.Redis) -> None:
    priorities: list[keys.Priority] = ["high", "low", "low"]
    for priority in priorities:
        enqueue(server, LONG, Submission(priority=priority))

    with closing(QueueDepths(SETTINGS)) as depths:
        up, waiting = depths.collect()

    assert [sample.value for sample in up.samples] == [1]
    found = {sample.labels["queue"]: sample.value for sample in waiting.samples}
    assert found == {"minilab.base.high": 1, "minilab.base": 0, "minilab.base.low": 2}


def test_a_queue_whose_key_is_overwritten_has_no_depth_and_the_others_have(server: redis.Redis) -> None:
    server.set("rq:queue:minilab.base", "no list")

    with closing(QueueDepths(SETTINGS)) as depths:
        up, waiting = depths.collect()

    assert [sample.value for sample in up.samples] == [1]
    assert {sample.labels["queue"] for sample in waiting.samples} == {"minilab.base.high", "minilab.base.low"}


@needs_redis
def test_while_redis_is_away_a_scrape_says_so_and_shows_the_rest(own_service: OwnService) -> None:
    worker = own_service.fleet.start_and_wait(*SCRAPE)
    url = address_of(worker)
    own_service.wait_for_status(own_service.submit(GenerationRequest((1,), 3)), "finished")

    own_service.server.kill()
    away = Scrape(url)
    wait_until(lambda: Scrape(url)['minilab_redis_outages_total{waiting="claims and heartbeats"}'] == 1, LIMIT)
    own_service.server.start()
    wait_until(lambda: Scrape(url)['minilab_redis_outage_seconds_total{waiting="claims and heartbeats"}'] > 0, LIMIT)

    assert (away["minilab_redis_up"], away["minilab_generated_tokens_total"]) == (0, 3)
    assert [name for name, _ in away.series if name == "minilab_queue_jobs"] == []
    back = Scrape(url)
    assert (back["minilab_redis_up"], back['minilab_queue_jobs{queue="minilab.base"}']) == (1, 0)


@needs_redis
def test_a_redis_that_hangs_does_not_hang_a_scrape(own_service: OwnService) -> None:
    url = address_of(own_service.fleet.start_and_wait(*SCRAPE))

    own_service.connection.client_pause(5000)

    assert Scrape(url)["minilab_redis_up"] == 0
    wait_until(lambda: Scrape(url)["minilab_redis_up"] == 1, LIMIT)


@needs_redis
def test_a_takeover_counts_with_the_survivor_and_a_loss_with_the_sleeper(own_service: OwnService) -> None:
    for _ in range(2):
        own_service.fleet.start(*SCRAPE)
    for worker in own_service.fleet.workers:
        own_service.fleet.wait_until_serving(worker)
    job_id = own_service.submit()
    own_service.wait_for_token(job_id, 20)

    sleeper = own_service.holder(job_id)
    sleeper.sleep()
    own_service.wait_for_status(job_id, "finished")
    survivor = own_service.holder(job_id)
    sleeper.wake()
    wait_until(lambda: Scrape(address_of(sleeper))["minilab_jobs_lost_total"] == 1, LIMIT)

    seen = Scrape(address_of(survivor))
    assert (seen["minilab_takeovers_total"], seen["minilab_jobs_resumed_total"]) == (1, 1)
    assert sum(v for (name, _), v in seen.series.items() if name == "minilab_jobs_ended_total") == 1
    asleep = Scrape(address_of(sleeper))
    assert sum(v for (name, _), v in asleep.series.items() if name == "minilab_jobs_ended_total") == 0


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_port_in_use_is_refused_before_a_model_is_loaded(host: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        told = worker_program("--metrics-port", str(port), "--metrics-host", host, "--model", "/nowhere")

    assert told.returncode == 2
    assert told.stderr.startswith("error: --metrics-host and --metrics-port must name an address")
    assert f"got {host} and {port}: Address already in use" in told.stderr
    assert len(told.stderr.splitlines()) == 1


def test_a_host_that_is_not_this_machine_is_refused() -> None:
    told = worker_program("--metrics-port", "0", "--metrics-host", "192.0.2.1", "--model", "/nowhere")

    assert told.returncode == 2
    assert "192.0.2.1" in told.stderr
    assert "Traceback" not in told.stderr


def test_without_a_port_the_library_is_not_even_loaded() -> None:
    check = "import sys, minilab_worker.cli, minilab_worker.worker; print('prometheus_client' in sys.modules)"

    told = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)

    assert told.stdout.strip() == "False"


def worker_program(*options: str) -> subprocess.CompletedProcess[str]:
    """``minilab-worker``, which is to end by itself."""
    command = [sys.executable, "-m", "minilab_worker.cli", *options]
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False)
