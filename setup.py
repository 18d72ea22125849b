"""Builds the C core: one list of plain sources, one row of flags for each instruction set. And the game, a plain file.

setuptools knows one list of flags for an Extension, so build_ext compiles C by itself and adds the objects. Everything
declarative is in pyproject.toml, but for README.md, whose links have to be changed.
"""

from __future__ import annotations

import os
import platform
import re
import sys
import sysconfig
import tempfile
from typing import NamedTuple

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError

CORE = "skyinfer.core.border"
CORE_SOURCES = [
    "memory.c",
    "pack.c",
    "pack_int8.c",
    "tensors.c",
    "model.c",
    "plan.c",
    "questions.c",
    "forward.c",
    "pool.c",
    "cpu.c",
    "dispatch.c",
    "kernels/portable.c",
]


class IsaRow(NamedTuple):
    """One instruction set: its file in csrc/kernels, and the flags that only this file gets.

    A row whose flags the compiler does not know is left out where `optional`: compilers in use are older than they.
    """

    name: str
    machines: frozenset[str]
    gcc_flags: list[str]
    msvc_flags: list[str]
    optional: bool = False

    @property
    def macro(self) -> str:
        return f"SKY_HAVE_{self.name.upper()}"


X86_64 = frozenset({"x86_64", "amd64"})
AARCH64 = frozenset({"aarch64", "arm64"})
AVX2_FLAGS = ["-mavx2", "-mfma", "-mf16c"]
AVX512_FLAGS = ["-mavx512f", "-mavx512dq", "-mavx512bw", "-mavx512vl", "-mfma", "-mf16c"]
ISA_ROWS = [
    IsaRow("avx2", X86_64, AVX2_FLAGS, ["/arch:AVX2"]),
    IsaRow("avxvnni", X86_64, [*AVX2_FLAGS, "-mavxvnni"], ["/arch:AVX2"], optional=True),  # GCC 11
    IsaRow("avx512", X86_64, AVX512_FLAGS, ["/arch:AVX512"]),
    IsaRow("avx512vnni", X86_64, [*AVX512_FLAGS, "-mavx512vnni"], ["/arch:AVX512"]),
    IsaRow("neon", AARCH64, [], []),
    IsaRow("neondot", AARCH64, ["-march=armv8.2-a+dotprod"], []),
]

# These come behind those of the environment and of Python's own build, so they win. Never -march=native (a wheel
# travels) and never -ffast-math: csrc/strict_math.h refuses to be compiled so, and the linker's flags keep out the
# start-up code with which GCC then switches the whole process to flush-to-zero. An instruction-set file keeps out of
# link-time optimization, which could inline it where the CPU cannot follow. No debug information, five times as large
# as all the rest, and no names but those of the core's entries, unless they are asked for.
DEBUG_INFO = os.environ.get("SKYINFER_DEBUG_INFO", "") not in ("", "0")
GCC_FLAGS = ["-O3", "-std=gnu11", "-fvisibility=hidden", "-ffp-contract=off", "-g" if DEBUG_INFO else "-g0"]
GCC_LINK_FLAGS = ["-O3", "-fno-fast-math", "-fno-unsafe-math-optimizations", *([] if DEBUG_INFO else ["-Wl,-S,-x"])]
GCC_ISA_FLAGS = ["-fno-lto"]
# Python is built with -fwrapv or -fno-strict-overflow, which Cython's output may need. GCC then keeps addresses on the
# stack, and products of bytes take 1.25 times as long.
GCC_PLAIN_FLAGS = ["-fno-wrapv", "-fstrict-overflow"]
MSVC_FLAGS = ["/O2", "/std:c11", "/fp:precise"]


def target_machines() -> set[str]:
    """The machines that are built for. On macOS the compiler is told, and may build for two at once (universal2); on
    Windows the toolchain is chosen before."""
    if sys.platform == "darwin":
        flags = os.environ.get("ARCHFLAGS") or sysconfig.get_config_var("CFLAGS") or ""
        named = set(re.findall(r"-arch\s+(\S+)", flags))
        if named:
            return named
    if sys.platform == "win32" and os.environ.get("VSCMD_ARG_TGT_ARCH"):
        return {{"x64": "amd64"}.get(os.environ["VSCMD_ARG_TGT_ARCH"], os.environ["VSCMD_ARG_TGT_ARCH"])}
    return {platform.machine().lower()}


def own_flags(row: IsaRow, msvc: bool) -> list[str]:
    """Flags of one instruction set's file. A build for two machines on macOS compiles it for both, and its preprocessor
    leaves nothing of it for the other machine, where the compiler would refuse the flags."""
    if msvc:
        return row.msvc_flags
    flags = row.gcc_flags
    if sys.platform == "darwin":
        target = "-Xarch_x86_64" if row.machines is X86_64 else "-Xarch_arm64"
        flags = [part for flag in flags for part in (target, flag)]
    return flags + GCC_ISA_FLAGS


class BuildCore(build_ext):
    """Compiles plain C first: every instruction set of the target machine with its own flags, and all of it with more
    optimization than Cython's output, which would only grow by it."""

    def knows(self, flags: list[str]) -> bool:
        """Whether the compiler takes these flags."""
        with tempfile.TemporaryDirectory() as scratch:
            source = os.path.join(scratch, "empty.c")
            with open(source, "w", encoding="utf-8") as file:
                file.write("typedef int nothing;\n")
            try:
                self.compiler.compile([source], output_dir=scratch, extra_postargs=[*flags, "-Werror"])
            except CompileError:
                return False
            return True

    def build_extension(self, ext: Extension) -> None:
        msvc = self.compiler.compiler_type == "msvc"
        machines = target_machines()
        rows = [row for row in ISA_ROWS if row.machines & machines and ext.name == CORE]
        rows = [row for row in rows if not row.optional or msvc or self.knows(own_flags(row, msvc))]
        flags = MSVC_FLAGS if msvc else GCC_FLAGS
        plain = [name for name in ext.sources if name.startswith("csrc/")]
        plain_flags = flags if msvc else flags + GCC_PLAIN_FLAGS
        jobs = [(plain, plain_flags)]
        jobs += [([f"csrc/kernels/{row.name}.c"], plain_flags + own_flags(row, msvc)) for row in rows]
        objects = []
        for sources, own in jobs:
            objects += self.compiler.compile(
                sources,
                output_dir=self.build_temp,
                macros=[(row.macro, "1") for row in rows],
                include_dirs=ext.include_dirs,
                depends=ext.depends,
                extra_postargs=own,
            )
        ext.sources = [name for name in ext.sources if name not in plain]
        ext.depends = ext.depends + plain
        ext.extra_compile_args = flags if msvc else [*flags, "-Os"]
        ext.extra_link_args = [] if msvc else GCC_LINK_FLAGS
        ext.extra_objects = objects
        super().build_extension(ext)


HEADERS = [
    os.path.join(folder, name)
    for folder in ("csrc", os.path.join("csrc", "kernels"))
    for name in sorted(os.listdir(folder))
    if name.endswith(".h")
]


def long_description() -> str:
    """README.md as it is shown outside the repository: links to files are to those of this version there."""
    texts = {}
    for path in ("README.md", "pyproject.toml", "src/skyinfer/__init__.py"):
        with open(path, encoding="utf-8") as file:
            texts[path] = file.read()
    repository = re.search(r'^Repository = "(.*)"$', texts["pyproject.toml"], re.MULTILINE)
    version = re.search(r'^__version__ = "(.*)"$', texts["src/skyinfer/__init__.py"], re.MULTILINE)
    assert repository
    assert version
    files = f"{repository[1]}/blob/v{version[1]}"
    return re.sub(r"\]\((?!https?:|#)([^)]+)\)", rf"]({files}/\1)", texts["README.md"])


setup(
    long_description=long_description(),
    long_description_content_type="text/markdown",
    ext_modules=[
        Extension(
            CORE,
            sources=["src/skyinfer/core/border.pyx", *(f"csrc/{name}" for name in CORE_SOURCES)],
            include_dirs=["csrc"],
            depends=HEADERS + [f"csrc/kernels/{row.name}.c" for row in ISA_ROWS] + ["src/skyinfer/core/runs.pxi"],
            libraries=[] if sys.platform == "win32" else ["m", "pthread"],
        ),
        # by cimport of the border it calls the core that is linked there
        Extension(
            "skyinfer.core.kernels", sources=["src/skyinfer/core/kernels.pyx"], include_dirs=["csrc"], depends=HEADERS
        ),
        Extension("skyinfer.core.scanners", sources=["src/skyinfer/core/scanners.pyx"]),
        Extension(
            "skyinfer.games._flappy",
            sources=["src/skyinfer/games/_flappy.pyx", "csrc/games/flappy.c"],
            include_dirs=["csrc"],
            depends=["csrc/games/flappy.h"],
        ),
    ],
    cmdclass={"build_ext": BuildCore},
)
