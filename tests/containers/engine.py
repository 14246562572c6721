"""The few commands of ``docker`` that the run needs."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

_COMMAND_LIMIT: Final = 900.0
"""Seconds for one command; the longest fetches torch over a slow line."""


class CommandError(Exception):
    """A command that failed, with what it said."""


def run(command: Sequence[str], environment: Mapping[str, str] | None = None) -> str:
    """What a command printed on stdout. Raises CommandError when it fails."""
    ended = attempt(command, environment)
    if ended.returncode != 0:
        raise CommandError(f"{' '.join(command)}\nended with {ended.returncode}\n{ended.stdout}\n{ended.stderr}")
    return ended.stdout


def attempt(command: Sequence[str], environment: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """A command that has ended, well or not."""
    return subprocess.run(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_COMMAND_LIMIT,
        check=False,
    )


def complaint() -> str | None:
    """Why no container can be started here; None when an engine answers."""
    if shutil.which("docker") is None:
        return "there is no `docker` on the PATH"
    asked = attempt(["docker", "version", "--format", "{{.Server.Version}}"])
    return None if asked.returncode == 0 else asked.stderr.strip()


@dataclass(frozen=True, slots=True)
class Container:
    """A container of a service."""

    id: str

    @property
    def hostname(self) -> str:
        """What it calls itself: a part of the names of workers in it."""
        return self.id[:12]

    def inspect(self, template: str) -> str:
        return run(["docker", "inspect", "--format", template, self.id]).strip()

    @property
    def is_healthy(self) -> bool:
        return self.inspect("{{.State.Health.Status}}") == "healthy"

    @property
    def restarts(self) -> int:
        """How often its restart policy had to start it again."""
        return int(self.inspect("{{.RestartCount}}"))

    @property
    def said(self) -> str:
        """Everything that it has logged, over all its starts."""
        logged = attempt(["docker", "logs", self.id])
        return logged.stdout + logged.stderr

    def execute(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command inside."""
        return attempt(["docker", "exec", self.id, *command])

    def kill(self) -> None:
        """SIGKILL. Docker counts it as a stop, so the restart policy does not start it again."""
        run(["docker", "kill", self.id])

    def start(self) -> None:
        run(["docker", "start", self.id])


def image_size(image: str) -> int:
    """Bytes of an image, fetched if it is not here: BuildKit keeps the bases of what it builds to itself."""
    command = ["docker", "image", "inspect", "--format", "{{.Size}}", image]
    if attempt(command).returncode != 0:
        run(["docker", "pull", image])
    return int(run(command))


def exit_codes(project: str, since: float, until: float) -> dict[str, int]:
    """The exit codes of a project's containers that ended between two Unix times, also of those removed since."""
    template = '{{.Actor.ID}} {{index .Actor.Attributes "exitCode"}}'
    times = ["--since", f"{since:.3f}", "--until", f"{until:.3f}"]
    of_project = ["--filter", f"label=com.docker.compose.project={project}", "--filter", "event=die"]
    lines = run(["docker", "events", *times, *of_project, "--format", template]).splitlines()
    return {identity: int(code) for identity, code in (line.split() for line in lines)}
