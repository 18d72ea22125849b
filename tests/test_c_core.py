"""What is in C without Python (tests/c): natively, and for AArch64 under qemu-user where a cross compiler is there."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from collections.abc import Set
from pathlib import Path

import pytest
from programs import need

from skyinfer.core import border

HERE = Path(__file__).parent / "c"


def make(target: str, build: Path) -> dict[str, set[str]]:
    """What was found in order, by instruction set."""
    command = ["make", "-s", "-C", str(HERE), target, f"BUILD={build}"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    checks: dict[str, set[str]] = {}
    for isa, check in re.findall(r"^ok +(\S+) +(.+)$", run.stdout, re.MULTILINE):
        checks.setdefault(isa, set()).add(check)
    return checks


WITH_THREADS = {"callers", "modes", "set callers"}


def expect_all_checks(checks: dict[str, set[str]], *isas: str, but: Set[str] = frozenset()) -> None:
    kernels = {
        "gemm",
        "gemm of f16",
        "gemm of bf16",
        "layer_norm",
        "attention",
        "widen_f16",
        "8-bit gemm of f32",
        "8-bit gemm of f16",
        "8-bit gemm of q8_0",
        "8-bit extremes",
        "q8_0 rows",
    }
    whole = {"model", "8-bit model", "8-bit model of q8_0", "dtypes", "questions", "sets", "set refusals"}
    for isa in isas:
        assert checks.get(isa, set()) >= kernels | whole | (WITH_THREADS - but), (isa, checks)
    assert checks["portable"] >= {"numbers", "packers", "handles", "tensors", "answers", "large embedding"}
    assert checks["games"] == {"trace", "copies", "truth", "pilot", "extremes"}


@pytest.mark.skipif(platform.system() != "Linux", reason="counts allocations by the GNU linker's --wrap")
def test_core_on_this_machine(tmp_path: Path) -> None:
    need("make", "cc")
    expected = os.environ.get("SKYINFER_EXPECT_ISAS", "").split()
    supported = [name for name in border.isa_names() if border.isa_supported(name)]
    expect_all_checks(make("check", tmp_path), *supported, *expected)


def test_core_on_aarch64(tmp_path: Path) -> None:
    need("make", "aarch64-linux-gnu-gcc", "qemu-aarch64")
    checks = make("neon", tmp_path)
    expect_all_checks(checks, "neon")
    expect_all_checks(checks, "neondot", but=WITH_THREADS)  # which take long there: of one row
