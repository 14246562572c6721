"""One Compose project with a name and a port of its own, so that it meets no other on the machine."""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
from pathlib import Path
from typing import Final, Self

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from containers.engine import Container, attempt, run

ROOT: Final = Path(__file__).parent.parent.parent

_KINDS: Final = ("docker compose", "docker-compose")
_NOT_OURS: Final = ("MINILAB_", "COMPOSE_")
"""Beginnings of variables that would change what is tested."""


def find_compose() -> str | None:
    """The first kind of Compose that is there."""
    return next((kind for kind in _KINDS if version_of(kind)), None)


def version_of(kind: str) -> str | None:
    """The version of a kind of Compose, if it can be run."""
    try:
        asked = attempt([*kind.split(), "version", "--short"])
    except OSError:
        return None
    return asked.stdout.strip() if asked.returncode == 0 else None


class Project:
    """The services of the project's ``docker-compose.yml``; whatever is left of them at the end is taken away."""

    def __init__(self, kind: str, **variables: str) -> None:
        """``variables`` stand in the environment of Compose beside the port of Redis."""
        self.name = f"minilab-test-{secrets.token_hex(3)}"
        port = _free_port()
        self.url = f"redis://127.0.0.1:{port}"
        self.override: Path | None = None
        """A second Compose file, laid over the first."""
        self._command = [*kind.split(), "--project-name", self.name, "--file", str(ROOT / "docker-compose.yml")]
        kept = {name: value for name, value in os.environ.items() if not name.startswith(_NOT_OURS)}
        self._environment = {
            **kept,
            "MINILAB_REDIS_PORT": str(port),
            "MINILAB_GATEWAY_PORT": str(_free_port()),
            **variables,
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.attempt("down", "--volumes", "--rmi", "local", "--timeout", "1")

    def run(self, *arguments: str) -> str:
        """Run a command of Compose; what it printed on stdout. Raises CommandError."""
        return run(self._with_files(arguments), self._environment)

    def attempt(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a command of Compose that need not end well."""
        return attempt(self._with_files(arguments), self._environment)

    def client(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run the client in a container of its own."""
        return self.attempt("run", "--rm", "-T", "client", *arguments)

    def containers(self, service: str) -> list[Container]:
        """Those of a service, ended ones too, but not those of single commands."""
        labels = {"project": self.name, "service": service, "oneoff": "False"}
        filters = [f"--filter=label=com.docker.compose.{label}={value}" for label, value in labels.items()]
        return [Container(identity) for identity in run(["docker", "ps", "-aq", "--no-trunc", *filters]).split()]

    def image(self, service: str) -> str:
        """The name of the image that was built for a service: each kind of Compose joins it in its own way."""
        found = {name: attempt(["docker", "image", "inspect", name]) for name in self._names(service)}
        (name,) = (name for name, inspected in found.items() if inspected.returncode == 0)
        return name

    def connect(self) -> redis.Redis:
        """A connection to its Redis, as a program on this machine makes it. The caller closes it."""
        return redis.Redis.from_url(self.url, protocol=2, legacy_responses=True, retry=Retry(NoBackoff(), 0))

    def left_over(self) -> list[str]:
        """What Docker still has of the project."""
        of_project = f"--filter=label=com.docker.compose.project={self.name}"
        kinds = (["ps", "-aq"], ["volume", "ls", "-q"], ["network", "ls", "-q"])
        found = [f"{kind[0]} {name}" for kind in kinds for name in run(["docker", *kind, of_project]).split()]
        images = [name for service in ("worker", "client") for name in self._names(service)]
        return found + [name for name in images if attempt(["docker", "image", "inspect", name]).returncode == 0]

    def _names(self, service: str) -> list[str]:
        return [f"{self.name}{joint}{service}" for joint in "-_"]

    def _with_files(self, arguments: tuple[str, ...]) -> list[str]:
        overriding = ["--file", str(self.override)] if self.override else []
        return [*self._command, *overriding, *arguments]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
