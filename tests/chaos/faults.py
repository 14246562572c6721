"""What goes wrong in a chaos run, at random moments."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable
from typing import Final

from chaos.fleet import LEASE, Fleet, WorkerProcess
from chaos.gateways import GatewayProcess, Gateways
from chaos.process import OwnProcess
from chaos.proxy import Proxy
from chaos.server import Server

KINDS: Final = (
    *("kill", "sleep", "drain", "redis kill", "redis stop", "lost answer", "cut"),
    *("gateway kill", "gateway sleep", "gateway drain"),
)
"""kill -9 of a worker; SIGSTOP for longer than its lease; SIGTERM; kill -9 and SIGTERM of Redis; an answer that got
lost; all connections closed at once; kill -9, SIGSTOP for longer than clients wait, and SIGTERM of a gateway."""

_WEIGHTS: Final = (3, 3, 2, 1, 1, 6, 2, 3, 2, 2)


class Faults:
    """Injects faults into one run and counts them."""

    def __init__(
        self, dice: random.Random, fleet: Fleet, gateways: Gateways, server: Server, proxy: Proxy | None
    ) -> None:
        self._dice, self._fleet, self._gateways = dice, fleet, gateways
        self._server, self._proxy = server, proxy
        self.injected: Counter[str] = Counter()
        self.server_killed_at: list[float] = []
        self._wake_at: list[tuple[float, OwnProcess]] = []
        self._acts: dict[str, Callable[[], bool]] = {
            "kill": self._kill,
            "sleep": self._sleep,
            "drain": self._drain,
            "redis kill": self._redis_kill,
            "redis stop": self._redis_stop,
            "lost answer": self._lose_an_answer,
            "cut": self._cut,
            "gateway kill": self._gateway_kill,
            "gateway sleep": self._gateway_sleep,
            "gateway drain": self._gateway_drain,
        }

    def run(self, seconds: float) -> None:
        """Inject faults for so long, some of them in quick succession."""
        give_up = time.monotonic() + seconds
        while time.monotonic() < give_up:
            time.sleep(self._dice.choice([0.05, self._dice.uniform(0.1, 1.0)]))
            self._wake_those_due()
            (kind,) = self._dice.choices(KINDS, _WEIGHTS)
            if self._acts[kind]():
                self.injected[kind] += 1

    def end(self) -> None:
        """Let every process continue whose pause is over; returns when none is paused any more."""
        while self._wake_at:
            time.sleep(0.05)
            self._wake_those_due()

    def _wake_those_due(self) -> None:
        now = time.monotonic()
        for at, process in self._wake_at:
            if at <= now and process.is_asleep and process.exit_code is None:
                process.wake()
        self._wake_at = [(at, one) for at, one in self._wake_at if one.is_asleep and one.exit_code is None]

    def _victim(self) -> WorkerProcess | None:
        """A worker that serves; the last one is left alone, so that something is there to break."""
        serving = [worker for worker in self._fleet.alive if worker.is_serving and not worker.is_asleep]
        return self._dice.choice(serving) if len(serving) > 1 else None

    def _kill(self) -> bool:
        victim = self._victim()
        if victim is not None:
            victim.kill()
            self._start_another()
        return victim is not None

    def _sleep(self) -> bool:
        victim = self._victim()
        if victim is not None:
            victim.sleep()
            self._wake_at.append((time.monotonic() + LEASE * self._dice.uniform(1.1, 2), victim))
        return victim is not None

    def _drain(self) -> bool:
        victim = self._victim()
        if victim is not None:
            victim.terminate()
            if self._dice.random() < 0.2:
                victim.terminate()
            self._start_another()
        return victim is not None

    def _start_another(self) -> None:
        self._fleet.start("--grace", str(self._dice.choice([0.1, 0.5, 3])))

    def _redis_kill(self) -> bool:
        self._server.kill()
        self.server_killed_at.append(time.monotonic())
        self._restart()
        return True

    def _redis_stop(self) -> bool:
        self._server.terminate()
        self._restart()
        return True

    def _restart(self) -> None:
        time.sleep(self._dice.choice([0, 0.3, 1.5]))
        self._server.start()

    def _lose_an_answer(self) -> bool:
        if self._proxy is not None:
            self._proxy.lose_an_answer()
        return self._proxy is not None

    def _cut(self) -> bool:
        if self._proxy is not None:
            self._proxy.cut_all()
        return self._proxy is not None

    def _gateway_victim(self) -> GatewayProcess | None:
        """A gateway that answers; the last one is left alone."""
        serving = [gateway for gateway in self._gateways.alive if gateway.is_serving and not gateway.is_asleep]
        return self._dice.choice(serving) if len(serving) > 1 else None

    def _gateway_kill(self) -> bool:
        victim = self._gateway_victim()
        if victim is not None:
            victim.kill()
            self._start_another_gateway()
        return victim is not None

    def _gateway_sleep(self) -> bool:
        victim = self._gateway_victim()
        if victim is not None:
            victim.sleep()
            self._wake_at.append((time.monotonic() + self._dice.uniform(1, 5), victim))
        return victim is not None

    def _gateway_drain(self) -> bool:
        victim = self._gateway_victim()
        if victim is not None:
            victim.terminate()
            self._start_another_gateway()
        return victim is not None

    def _start_another_gateway(self) -> None:
        self._gateways.start("--grace", str(self._dice.choice([0, 1, 3])))
