"""An environment for each program of others, since one of them takes another RQ than we, and most other libraries."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

_PINS: Final = Path(__file__).parent
_INSTALL_LIMIT: Final = 300.0  # seconds, on a loaded machine; usually ten


class NotInstalledError(Exception):
    """A tool that cannot be had here, with the reason."""


def program(tool: str, folder: Path, name: str | None = None) -> Path:
    """The program of a tool, installed under ``folder`` with the pins in ``<tool>.txt`` where they are not yet there.

    ``name`` is that of the program, where it is not the tool's. Raises NotInstalledError.
    """
    environment = folder / tool
    pins, installed = _PINS / f"{tool}.txt", environment / "installed.txt"
    wanted = pins.read_text(encoding="utf-8")
    if not installed.exists() or installed.read_text(encoding="utf-8") != wanted:
        _run(sys.executable, "-m", "venv", "--clear", "--without-pip", str(environment))
        # Nothing is compiled before it is needed, as most is not; the pins are all that there is.
        pip = [sys.executable, "-m", "pip", "--python", str(environment / "bin" / "python"), "--no-input"]
        _run(*pip, "--disable-pip-version-check", "install", "--quiet", "--no-deps", "--no-compile", "-r", str(pins))
        installed.write_text(wanted, encoding="utf-8")
    return environment / "bin" / (name or tool)


def node_folder(tool: str, folder: Path) -> Path:
    """A folder whose programs may import a package for JavaScript, by the lock file in ``<tool>/``.

    Raises NotInstalledError.
    """
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        raise NotInstalledError("there is no node with npm on the PATH")
    environment = folder / tool
    lock, installed = _PINS / tool / "package-lock.json", environment / "installed.txt"
    wanted = lock.read_text(encoding="utf-8")
    if not installed.exists() or installed.read_text(encoding="utf-8") != wanted:
        environment.mkdir(parents=True, exist_ok=True)
        for file in (lock, lock.with_name("package.json")):
            shutil.copy(file, environment)
        _run(npm, "--prefix", str(environment), "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--silent")
        installed.write_text(wanted, encoding="utf-8")
    return environment


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
        said = ended.stdout.strip().splitlines() or [f"{command[0]} ended with exit code {ended.returncode}"]
        raise NotInstalledError(said[-1])
