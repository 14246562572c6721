"""An environment for each tool, since one of them takes another RQ than we."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

_PINS: Final = Path(__file__).parent
_INSTALL_LIMIT: Final = 300.0  # seconds, on a loaded machine; usually ten


class NotInstalledError(Exception):
    """A tool that cannot be had here, with the reason."""


def program(tool: str, folder: Path) -> Path:
    """The program of a tool, installed under ``folder`` with the pins in ``<tool>.txt`` where they are not yet there.

    Raises NotInstalledError.
    """
    environment = folder / tool
    pins, installed = _PINS / f"{tool}.txt", environment / "installed.txt"
    wanted = pins.read_text(encoding="utf-8")
    if not installed.exists() or installed.read_text(encoding="utf-8") != wanted:
        _run(sys.executable, "-m", "venv", "--clear", str(environment))
        pip = [str(environment / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "--no-input"]
        _run(*pip, "install", "--quiet", "-r", str(pins))
        installed.write_text(wanted, encoding="utf-8")
    return environment / "bin" / tool


def _run(*command: str) -> None:
    try:
        ended = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_INSTALL_LIMIT,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotInstalledError(str(error)) from error
    if ended.returncode != 0:
        raise NotInstalledError(ended.stdout.strip().splitlines()[-1])
