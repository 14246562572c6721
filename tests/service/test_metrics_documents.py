"""The documents about metrics name what a worker really shows, and all of it."""

from __future__ import annotations

import itertools
import json
import re
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from minilab_worker.serving import ServedModel
from minilab_worker.telemetry.metrics import WorkerMetrics
from minilab_worker.telemetry.metrics_server import MetricsServer
from minilab_worker.worker import Worker, WorkerSettings
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from minilab_gen.protocol import keys

DOCS = Path(__file__).parent.parent.parent / "docs"
OPERATIONS = (DOCS / "operations.md").read_text(encoding="utf-8")
DASHBOARD: dict[str, Any] = json.loads((DOCS / "grafana-dashboard.json").read_text(encoding="utf-8"))
PANELS: list[dict[str, Any]] = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
QUERIES: list[str] = [target["expr"] for panel in PANELS for target in panel["targets"]]

METRIC = re.compile(r"\b(?:minilab|process|python)_[a-z_]+\b")
WIDTH = 24
"""Columns of Grafana's grid."""


@pytest.fixture(scope="module")
def families(server_url: str, served: ServedModel) -> Iterator[list[Metric]]:
    """What a worker shows that has just begun: everything must be there from the start."""
    settings = WorkerSettings(tuple(keys.queue_names(keys.DEFAULT_MODEL)), max_batch=4, redis_url=server_url)
    worker = Worker(settings, served)
    thread = threading.Thread(target=worker.serve)
    thread.start()
    try:
        with (
            closing(MetricsServer("127.0.0.1", 0)) as shown,
            closing(WorkerMetrics(worker, settings, served.card)) as metrics,
        ):
            shown.show(metrics)
            with urllib.request.urlopen(shown.url, timeout=10) as answer:  # noqa: S310 - our own address
                yield list(text_string_to_metric_families(answer.read().decode()))
    finally:
        worker.stop()
        thread.join()


def served_name(family: Metric) -> str:
    """As a query spells it; the parser takes a counter's suffix away."""
    return f"{family.name}_total" if family.type == "counter" else family.name


def test_the_table_names_every_metric_with_its_type(families: list[Metric]) -> None:
    rows = re.findall(r"^\| (`(?:minilab|process|python)_.*?) \| (\w+) \|", OPERATIONS, re.MULTILINE)
    documented = {name: kind for names, kind in rows for name in METRIC.findall(names)}

    shown = {served_name(family): family.type for family in families}

    if sys.platform != "linux":
        documented = {name: kind for name, kind in documented.items() if not name.startswith("process_")}
    assert documented == shown


def test_the_document_names_every_value_of_every_label(families: list[Metric]) -> None:
    samples = [sample for family in families if family.name.startswith("minilab_") for sample in family.samples]
    pairs = {(label, value) for sample in samples for label, value in sample.labels.items() if label != "le"}
    told = {(label, value) for label, value in pairs if label in ("reason", "phase", "waiting")}

    assert len(told) > 10
    assert [value for _, value in sorted(told) if f"`{value}`" not in OPERATIONS] == []


def test_names_follow_the_conventions_of_prometheus(families: list[Metric]) -> None:
    for family in families:
        if family.name.startswith("minilab_"):
            assert family.documentation.endswith(".")
            assert re.fullmatch(r"minilab_[a-z]+(_[a-z]+)*", family.name)
            assert (family.type != "histogram") or family.name.endswith("_seconds")


@pytest.mark.parametrize("query", [*QUERIES, *re.findall(r"(?:expr|query): (.*)", OPERATIONS)])
def test_every_metric_in_a_query_is_shown_by_a_worker(families: list[Metric], query: str) -> None:
    shown = {sample.name for family in families for sample in family.samples}

    asked = set(METRIC.findall(query))

    assert asked
    assert asked <= shown


@pytest.mark.parametrize("query", QUERIES)
def test_every_label_in_a_query_is_one_of_its_metrics(families: list[Metric], query: str) -> None:
    names = set(METRIC.findall(query))
    labels = {
        label for family in families for sample in family.samples if sample.name in names for label in sample.labels
    } | {"instance"}

    grouped = [label for group in re.findall(r"(?:by|on) \((.*?)\)", query) for label in group.split(", ")]
    matched = re.findall(r'(\w+)=~?"', query)

    assert set(grouped + matched) <= labels
    assert query.count("(") == query.count(")")


def test_the_dashboard_has_what_grafana_needs_to_load_it() -> None:
    assert re.fullmatch(r"[a-zA-Z0-9_-]{1,40}", DASHBOARD["uid"])
    assert DASHBOARD["title"]
    assert DASHBOARD["schemaVersion"] >= 36
    assert DASHBOARD.get("id") is None, "an id would overwrite another dashboard"
    variables = {variable["name"]: variable for variable in DASHBOARD["templating"]["list"]}
    assert (variables["datasource"]["type"], variables["datasource"]["query"]) == ("datasource", "prometheus")
    identities = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(identities)) == len(identities)


def test_every_panel_of_the_dashboard_asks_the_chosen_data_source() -> None:
    for panel in PANELS:
        assert panel["title"]
        assert panel["description"]
        assert panel["targets"]
        for asked in (panel, *panel["targets"]):
            assert asked["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        letters = [target["refId"] for target in panel["targets"]]
        assert len(set(letters)) == len(letters)


def test_no_two_panels_of_the_dashboard_overlap() -> None:
    def cells(panel: dict[str, Any]) -> set[tuple[int, int]]:
        area = panel["gridPos"]
        across = range(area["x"], area["x"] + area["w"])
        return set(itertools.product(across, range(area["y"], area["y"] + area["h"])))

    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        assert not taken & cells(panel), panel["title"]
        taken |= cells(panel)
    assert max(x for x, _ in taken) < WIDTH
