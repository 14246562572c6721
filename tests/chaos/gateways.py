"""Gateway processes of a chaos run: any of them answers for all that clients have asked of any other."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Final, Self

import httpx2 as httpx

from chaos.fleet import START_LIMIT
from chaos.process import OwnProcess

PING: Final = 0.5
"""Seconds between the comments of a silent stream: a client that gets none for longer looks for another gateway."""


class GatewayProcess(OwnProcess):
    """``minilab-gateway``."""

    def __init__(self, url: str, log: Path, *options: str) -> None:
        own = ["--redis-url", url, "--port", "0", "--ping", str(PING), "--queue-wait", "2"]
        super().__init__("minilab_gateway", [*own, *options], log)
        self._address: str | None = None

    @property
    def address(self) -> str | None:
        """Where it listens, once it has said so."""
        if self._address is None:
            found = re.search(r"https?://[^ /]+", self.said)
            self._address = found[0] if found else None
        return self._address

    @property
    def is_serving(self) -> bool:
        return self.address is not None

    @property
    def answers(self) -> bool:
        """Whether it listens, which it does a moment after it has said where."""
        try:
            return self.address is not None and httpx.get(f"{self.address}/health").status_code == 200
        except httpx.TransportError:
            return False


class Gateways:
    """All gateway processes of a run."""

    def __init__(self, url: str, folder: Path) -> None:
        self._url, self._folder = url, folder
        self.all: list[GatewayProcess] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for gateway in self.all:
            if gateway.exit_code is None:
                gateway.kill()

    def start(self, *options: str) -> GatewayProcess:
        """One more, which is not yet ready."""
        self.all.append(GatewayProcess(self._url, self._folder / f"gateway-{len(self.all)}.log", *options))
        return self.all[-1]

    def start_and_wait(self, *options: str) -> GatewayProcess:
        """One more, ready to answer."""
        gateway = self.start(*options)
        give_up = time.monotonic() + START_LIMIT
        while not gateway.answers:
            assert gateway.exit_code is None, f"a gateway ended as it started:\n{gateway.said}"
            assert time.monotonic() < give_up, f"a gateway must serve within {START_LIMIT:.0f} s:\n{gateway.said}"
            time.sleep(0.02)
        return gateway

    @property
    def alive(self) -> list[GatewayProcess]:
        """Those whose process runs, asleep or not."""
        return [gateway for gateway in self.all if gateway.exit_code is None]

    @property
    def addresses(self) -> list[str]:
        """Those that a client may know: of all that run, and of one that has left."""
        known = [gateway for gateway in self.all if gateway.is_serving]
        left = [gateway for gateway in known if gateway.exit_code is not None]
        found = [gateway.address for gateway in known if gateway.exit_code is None or gateway in left[-1:]]
        return [address for address in found if address is not None]

    def stop_all(self) -> None:
        """SIGTERM to all; returns when they have left."""
        for gateway in self.alive:
            if gateway.is_asleep:
                gateway.wake()
            gateway.may_fail = gateway.may_fail or not gateway.is_serving
            if not gateway.is_leaving:  # Python's last moments know no handler: a second signal would end it there
                gateway.terminate()
        for gateway in self.alive:
            gateway.wait()
