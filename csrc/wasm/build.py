"""Builds the two modules of the core for browsers, by the compiler of the `ziglang` package: the same bytes anywhere.

    pip install ziglang==0.17.1 && python csrc/wasm/build.py [-o src/skyinfer/web]

skyinfer.wasm uses SIMD128; skyinfer-relaxed.wasm relaxed SIMD, too, which not every browser knows. The compiler's first
call builds its C library, which takes a minute or two.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

CSRC = Path(__file__).resolve().parents[1]
OUTPUT = CSRC.parent / "src" / "skyinfer" / "web"
ZIG = "0.17.1"

CORE = ["memory.c", "pack.c", "tensors.c", "model.c", "plan.c", "forward.c", "questions.c", "cpu.c", "dispatch.c"]
SOURCES = [*CORE, "kernels/wasm128.c", "games/flappy.c", "wasm/exports.c", "wasm/format.c"]
TARGET = ["-target", "wasm32-wasi", "-mcpu=generic+simd128+bulk_memory+nontrapping_fptoint"]
FLAGS = [
    "-O3", "-std=gnu11", "-ffp-contract=off", "-fvisibility=hidden", "-fno-stack-protector", "-fno-sanitize=all", "-g0",
    "-DSKY_NO_THREADS", "-DSKY_HAVE_WASM128", "-DSKY_WITHOUT_PORTABLE", "-DSKY_WITHOUT_INT8",
    "-Dsnprintf=sky_snprintf", "-Dvsnprintf=sky_vsnprintf",  # those of format.c
]  # fmt: skip
LINKED = ["-s", "-Wl,--gc-sections", "-Wl,--strip-all"]


class Module(NamedTuple):
    """One build: its file and the flags of its own."""

    file: str
    flags: list[str]


# In the order of the source each broadcast is used as soon as it is loaded; LLVM's own order loads all of a step's
# first, and 12 accumulators then do not stay in the 16 registers of x86-64 (csrc/README.md).
MODULES = [
    Module("skyinfer.wasm", []),
    Module("skyinfer-relaxed.wasm", ["-mrelaxed-simd", "-mllvm", "-pre-RA-sched=source"]),
]


def toolchain() -> list[str]:
    """The command that runs the pinned compiler."""
    try:
        found = version("ziglang")
    except PackageNotFoundError:
        sys.exit(f"the compiler is missing: pip install ziglang=={ZIG}")
    if found != ZIG:
        sys.exit(f"ziglang {found} is installed, and {ZIG} is what the modules are built with")
    return [sys.executable, "-m", "ziglang", "cc"]


def compile_module(out: Path, sources: list[str], flags: list[str], model: str = "reactor") -> None:
    """Compiles and links `sources`, whose paths begin in csrc, into `out`: a module to be called, or a "command"."""
    command = [*toolchain(), *TARGET, f"-mexec-model={model}", *FLAGS, *flags, "-I.", *sources, *LINKED]
    # paths are given from csrc on, so that none of this machine's gets into a module
    done = subprocess.run([*command, "-o", str(out.resolve())], cwd=CSRC, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr)


def build(directory: Path) -> list[Path]:
    """Both modules, in `directory`."""
    built = []
    with tempfile.TemporaryDirectory() as scratch:
        for module in MODULES:
            path = Path(scratch) / module.file
            compile_module(path, SOURCES, module.flags)
            out = directory / module.file
            out.write_bytes(path.read_bytes())
            built.append(out)
    return built


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, default=OUTPUT, help="directory, default: src/skyinfer/web")
    directory = parser.parse_args().output
    directory.mkdir(parents=True, exist_ok=True)
    for path in build(directory):
        print(f"{path.name}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
