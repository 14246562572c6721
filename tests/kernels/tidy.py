"""clang-tidy over the kernels, each back end with its flags: ``python -m kernels.tidy`` (with ``PYTHONPATH=tests``).

What it looks for stands in ``.clang-tidy``. It must not need a compiler.
"""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from minilab_gen.kernels.build import BACKENDS, OTHERS, SOURCE

ROOT = Path(__file__).parent.parent.parent
_PROGRAM = Path(sys.executable).with_name("clang-tidy")


def main() -> None:
    """All of this processor's files, as many at once as there are cores; the exit status is 1 after a finding."""
    backends = BACKENDS[os.uname().machine.replace("arm64", "aarch64")]
    units = [(f"{name}.cpp", ["-DMLK_BUILD=tidy"]) for name in OTHERS]
    units += [("backend.cpp", [f"-DMLK_BACKEND_{name}", *flags]) for name, flags in backends.items()]
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        found = [*pool.map(_findings, units)]
    print("".join(found) or f"clang-tidy: nothing in {len(units)} files")
    sys.exit(any(found))


def _findings(unit: tuple[str, list[str]]) -> str:
    file, flags = unit
    options = ["--quiet", f"--config-file={ROOT / '.clang-tidy'}"]
    command = [str(_PROGRAM), *options, str(SOURCE / file), "--", "-std=c++17", *flags]
    ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    return ended.stdout if ended.returncode else ""


if __name__ == "__main__":
    main()
