"""What each tool must show of the scene."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from interop.commands import documented
from interop.scene import QUEUE, Scene
from interop.site import Site
from minilab_gen.text.tokenizer import get_tokenizer

Look = Callable[[Scene, Site], None]

_LIMIT: Final = 60.0  # seconds for a command that looks once


def look_with_rq_info(scene: Scene, url: str) -> None:
    (command,) = documented("rq", url)
    shown = _run([str(Path(sys.executable).with_name("rq")), *command[1:]])
    (queue,) = (line for line in shown.splitlines() if line.startswith(f"{QUEUE} "))
    assert queue.endswith(f" 1, 1 executing, {scene.finished} finished, 1 failed"), shown
    (worker,) = (line for line in shown.splitlines() if scene.worker_mark in line)
    assert " busy " in worker, shown


def look_with_redis_cli(scene: Scene, url: str) -> None:
    """The finished job's stream, whole and from the middle; of the started one, what is there."""
    read_all, read_on = documented("redis-cli", url, scene.jobs["finished"])
    entries = _json_of(read_all)
    *tokens, end = (_fields(entry) for entry in entries)
    assert [int(token["id"]) for token in tokens] == scene.answer
    assert [entry[0] for entry in entries] == [f"{number}-0" for number in range(1, len(entries) + 1)]
    assert "".join(token["text"] for token in tokens) + end.get("text", "") == get_tokenizer().decode(scene.answer)
    assert end["end"] == "length", end
    (same,) = _json_of(read_on).values()
    assert same == entries
    (rest,) = _json_of([*read_on[:-1], "5-0"]).values()
    assert rest == entries[5:]
    (_, started) = documented("redis-cli", url, scene.jobs["started"])
    (begun,) = _json_of(started).values()
    assert "end" not in _fields(begun[-1]), begun


def look_with_rq_dashboard(scene: Scene, site: Site) -> None:
    """Its pages, and the data that they fetch."""
    for page in ("/", "/0/view/workers", "/0/view/jobs"):
        assert "RQ dashboard" in site.get(page), page
    (queue,) = site.get_json("/0/data/queues.json")["queues"]
    assert (queue["name"], queue["count"]) == (QUEUE, 1)
    for state, job_id in scene.jobs.items():
        of_state = f"{QUEUE}/{state}/10/asc/1"
        site.get(f"/0/view/jobs/{of_state}")
        listed = site.get_json(f"/0/data/jobs/{of_state}.json")["jobs"]
        assert job_id in [job["id"] for job in listed], (state, listed)
        assert job_id in site.get(f"/0/view/job/{job_id}")
        assert site.get_json(f"/0/data/job/{job_id}.json")["status"] == state
    result = site.get_json(f"/0/data/job/{scene.jobs['finished']}.json")["result"]
    assert result["ids"] == scene.answer, result
    failed = site.get_json(f"/0/data/job/{scene.jobs['failed']}.json")
    assert "os.getpid" in failed["exc_info"], failed
    # Its list of workers unpickles the jobs that they run, also with --json. operations.md says so; let it know if not.
    assert site.ask("/0/data/workers.json")[0] == 500


def look_with_rq_dashboard_at_rest(scene: Scene, site: Site) -> None:
    (worker,) = site.get_json("/0/data/workers.json")["workers"]
    assert scene.worker_mark in worker["name"], worker
    assert worker["state"] == "idle", worker


def look_with_rq_exporter(scene: Scene, site: Site) -> None:
    lines = site.get("/metrics").splitlines()
    counts = {"queued": 1, "started": 1, "finished": scene.finished, "failed": 1}
    for state, count in counts.items():
        assert f'rq_jobs{{queue="{QUEUE}",status="{state}"}} {count}.0' in lines, lines
    (worker,) = (line for line in lines if line.startswith("rq_workers{"))
    assert scene.worker_mark in worker, worker
    assert 'state="busy"' in worker, worker


def look_with_rq_exporter_at_rest(scene: Scene, site: Site) -> None:
    finished = scene.finished + 2
    assert f'rq_jobs{{queue="{QUEUE}",status="finished"}} {finished}.0' in site.get("/metrics").splitlines()


def _run(command: Sequence[str]) -> str:
    ended = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_LIMIT, check=False
    )
    assert ended.returncode == 0, ended
    return ended.stdout


def _json_of(command: Sequence[str]) -> Any:
    """What ``redis-cli`` prints, in a form that a text with line ends does not confuse."""
    return json.loads(_run([command[0], "--json", *command[1:]]))


def _fields(entry: Sequence[Any]) -> dict[str, str]:
    _, flat = entry
    return dict(zip(flat[::2], flat[1::2], strict=True))
