"""The core without Python (tests/c): natively, and for AArch64 under qemu-user where a cross compiler is there."""

from __future__ import annotations

import platform
import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent / "c"


def make(target: str, build: Path) -> str:
    run = subprocess.run(
        ["make", "-s", "-C", str(HERE), target, f"BUILD={build}"], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


def needs(*programs: str) -> pytest.MarkDecorator:
    missing = [name for name in programs if shutil.which(name) is None]
    return pytest.mark.skipif(bool(missing), reason=f"needs {', '.join(missing)}")


@pytest.mark.skipif(platform.system() != "Linux", reason="counts allocations by the GNU linker's --wrap")
@needs("make", "cc")
def test_core_on_this_machine(tmp_path: Path) -> None:
    assert "ok      portable  model" in make("check", tmp_path)


@needs("make", "aarch64-linux-gnu-gcc", "qemu-aarch64")
def test_core_on_aarch64(tmp_path: Path) -> None:
    output = make("neon", tmp_path)
    for part in ("gemm", "layer_norm", "attention", "model"):
        assert f"ok      neon      {part}" in output
