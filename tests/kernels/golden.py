"""The golden bits: hashes of logits and draws that every machine, build and thread count must reproduce.

``python -m kernels.golden`` (with ``PYTHONPATH=tests``) compares this machine's builds; ``--cross`` compiles for
aarch64, too, and runs that under qemu; ``--write`` takes what this machine gives for right, after a change of numerics.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from kernels.driving import KINDS, sequences, tensors_of
from minilab_gen.kernels.build import FLAGS, SOURCE, Toolchain, build, toolchain
from minilab_gen.kernels.decoder import TENSORS, WEIGHT_TYPES, rope_of, shape_of
from minilab_gen.kernels.library import backends, numerics
from minilab_gen.models.config import ModelConfig
from minilab_gen.models.tensors import stored_tensors
from minilab_gen.models.torch_checkpoint import read_model
from minilab_gen.text.tokenizer import BASE_CHECKPOINT

FILE = Path(__file__).parent / "golden.json"
MODELS = ("base", *KINDS)
_SLOTS = 4
_LENGTHS = (30, 17, 5, 24)


def model_of(name: str) -> tuple[ModelConfig, dict[tuple[str, int], Tensor]]:
    """A model's shape and tensors: the shipped one, or a small one made of integers."""
    if name != "base":
        return KINDS[name], tensors_of(KINDS[name])
    model = read_model(BASE_CHECKPOINT)
    tensors = {}
    for each in stored_tensors(model.config):
        rows = slice(each.first, each.first + each.shape[0])
        tensors[each.kernel, each.layer] = model.get_parameter(each.parameter).detach()[rows].contiguous()
    return model.config, tensors


def steps_of(config: ModelConfig) -> list[list[tuple[int, int, int]]]:
    """Rows of id, slot and position: prompts together, one in two parts, then a few tokens each."""
    prompts = sequences(config, [length + 4 for length in _LENGTHS])
    rows = [[(ids[at], slot, at) for at in range(len(ids))] for slot, ids in enumerate(prompts)]
    steps = [[*rows[0][:13], *rows[1][:17], *rows[2][:5]], [*rows[3][:24], *rows[0][13:30]]]
    return steps + [
        [row[length + n] for row, length in zip(rows, _LENGTHS, strict=True)][: 4 - n % 2] for n in range(4)
    ]


def write_case(file: Path, name: str, weights: str) -> None:
    """What ``replay.cpp`` reads."""
    config, tensors = model_of(name)
    with file.open("wb") as case:
        case.write(bytes(shape_of(config)) + struct.pack("<2i", WEIGHT_TYPES.index(weights), _SLOTS))
        _write_layers(case, config)
        case.write(struct.pack("<i", len(tensors)))
        for (tensor, layer), values in tensors.items():
            rows, columns = (1, *values.shape)[-2:]
            case.write(struct.pack("<2i2q", TENSORS.index(tensor), layer, rows, columns) + values.numpy().tobytes())
        steps = steps_of(config)
        case.write(struct.pack("<i", len(steps)))
        for step in steps:
            case.write(struct.pack("<i", len(step)))
            case.writelines(struct.pack(f"<{len(step)}i", *column) for column in zip(*step, strict=True))


def _write_layers(case: BinaryIO, config: ModelConfig) -> None:
    """Ropes, each followed by its divisors; then the window and the rope of each layer."""
    case.write(struct.pack("<i", len(config.ropes)))
    for rope in config.ropes:
        given = rope_of(rope)
        divisors = list(given.divisors[: config.turned_dim // 2]) if given.divisors else []
        given.divisors = None
        case.write(bytes(given) + struct.pack(f"<i{len(divisors)}f", len(divisors), *divisors))
    for layer in range(config.n_layer):
        index = config.rope_of_layer(layer)
        case.write(struct.pack("<2i", config.window_of_layer(layer) or 0, -1 if index is None else index))


def compile_replay(library: Path, tools: Toolchain, extra: tuple[str, ...] = ()) -> Path:
    """The program beside the library that it runs."""
    program = library.with_name("replay")
    flags = [flag for flag in FLAGS if flag != "-fvisibility=hidden"]
    source = [str(Path(__file__).parent / "replay.cpp"), f"-I{SOURCE}"]
    command = [
        *tools.compile,
        *flags,
        *extra,
        *source,
        str(library),
        f"-Wl,-rpath,{library.parent}",
        "-o",
        str(program),
    ]
    subprocess.run(command, check=True)
    return program


def replayed(program: Path, case: Path, threads: int = 1, runner: tuple[str, ...] = (), backend: str = "") -> str:
    """The hash of what a program answers."""
    out = case.with_suffix(".out")
    out.unlink(missing_ok=True)  # another build may have answered before
    environment = os.environ | {"MINILAB_KERNELS": backend}
    ended = subprocess.run(
        [*runner, str(program), str(case), str(out), str(threads)],
        env=environment,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert not backend or ended.stdout.strip() == backend
    return hashlib.sha256(out.read_bytes()).hexdigest()[:32]


def expected() -> dict[str, Any]:
    """What is in the repository."""
    stored: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return stored


def cross_toolchain() -> tuple[Toolchain, tuple[str, ...]] | None:
    """A compiler for aarch64 and what runs its programs, where Debian's packages for them are installed."""
    compiler = "aarch64-linux-gnu-g++"
    emulator = shutil.which("qemu-aarch64-static") or shutil.which("qemu-aarch64")
    if not shutil.which(compiler) or emulator is None:
        return None
    return Toolchain((compiler,), (compiler,), "aarch64"), (emulator, "-L", "/usr/aarch64-linux-gnu")


def hashes(folder: Path, program: Path, backend: str, threads: int, runner: tuple[str, ...] = ()) -> dict[str, str]:
    """Of each model and type; under an emulator the shipped model is left out, which takes minutes there."""
    found = {}
    for name in MODELS[1:] if runner else MODELS:
        for weights in WEIGHT_TYPES:
            case = folder / f"{name}-{weights}.case"
            if not case.exists():
                write_case(case, name, weights)
            found[f"{name} {weights}"] = replayed(program, case, threads, runner, backend)
    return found


def main() -> None:
    """Compare, or write."""
    parser = argparse.ArgumentParser(description="Compare all builds with the golden bits.")
    parser.add_argument("--cross", action="store_true", help="aarch64 under qemu, too")
    parser.add_argument("--write", action="store_true", help="take what the best back end here gives for right")
    told = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        program = compile_replay(build(folder / "native" / "libkernels.so"), toolchain())
        if told.write:
            bits = hashes(folder, program, backends()[0], 1)
            FILE.write_text(json.dumps({"numerics": numerics(), "bits": bits}, indent=1) + "\n", encoding="utf-8")
        wrong = [_compare(folder, program, name, threads, ()) for name in backends() for threads in (1, 2)]
        if "avx512" not in backends():
            print("avx512: SKIPPED, this processor has none")
        if told.cross:
            found = cross_toolchain()
            if found is None:
                sys.exit("--cross needs g++-aarch64-linux-gnu and qemu-user-static, which apt-get installs")
            tools, runner = found
            program = compile_replay(build(folder / "aarch64" / "libkernels.so", tools), tools)
            wrong += [_compare(folder, program, name, 2, runner) for name in ("neon", "plain")]
    sys.exit(any(wrong))


def _compare(folder: Path, program: Path, backend: str, threads: int, runner: tuple[str, ...]) -> bool:
    bits = expected()["bits"]
    found = hashes(folder, program, backend, threads, runner)
    wrong = [name for name in found if found[name] != bits[name]]
    where = f"{backend}{' under qemu' if runner else ''}, {threads} threads"
    print(
        f"{where}: {len(found) - len(wrong)} of {len(found)} equal{': not ' if wrong else ''}{', '.join(wrong)}",
        flush=True,
    )
    return bool(wrong)


if __name__ == "__main__":
    main()
