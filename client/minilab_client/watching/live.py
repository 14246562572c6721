"""The view on a screen, look by look, until the user exits."""

from __future__ import annotations

import time

import redis

from minilab_client.watching.drawing import View
from minilab_client.watching.gathering import Gatherer
from minilab_client.watching.layout import Layout
from minilab_client.watching.screen import Screen
from minilab_client.watching.snapshot import Snapshot


def show(gatherer: Gatherer, interval: float, title: str) -> None:
    """Return when the user exits. While Redis is away the last look stays, and the view says so."""
    snapshot: Snapshot | None = None
    trouble: str | None = None
    next_look = 0.0
    with Screen() as screen:
        title = f"{title}, every {interval:g} s, {'q' if screen.has_keys else 'Ctrl-C'} exits"
        while True:
            if time.monotonic() >= next_look:
                try:
                    snapshot, trouble = gatherer.look(Layout(screen.height)), None
                except (redis.ConnectionError, redis.TimeoutError) as error:
                    trouble = str(error)
                next_look = time.monotonic() + interval
            screen.show(View(snapshot, title, trouble))
            match screen.wait(next_look - time.monotonic()):
                case "exit":
                    return
                case "suspend":
                    screen.suspend()
