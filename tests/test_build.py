"""How the compiled parts are built: the arithmetic that they insist on, and whose flags win."""

from __future__ import annotations

import ctypes
import runpy
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from programs import need

ROOT = Path(__file__).parents[1]
C_FILES = sorted(path.relative_to(ROOT) for path in (ROOT / "csrc").rglob("*.c"))
PORTABLE = Path("csrc/kernels/portable.c")
REFUSAL = "skyinfer needs IEEE arithmetic"


def preprocess(path: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    need("cc")
    command = ["cc", "-Icsrc", *flags, "-E", str(path), "-o", "/dev/null"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("path", C_FILES, ids=str)
def test_every_c_file_refuses_fast_math(path: Path) -> None:
    assert preprocess(path, "-O2").returncode == 0
    run = preprocess(path, "-O2", "-ffast-math")
    assert run.returncode != 0
    assert REFUSAL in run.stderr


@pytest.mark.parametrize("flag", ["-Ofast", "-ffinite-math-only"])
def test_parts_of_fast_math_are_refused(flag: str) -> None:
    run = preprocess(PORTABLE, flag)
    assert run.returncode != 0
    assert REFUSAL in run.stderr


@pytest.fixture(scope="module")
def setup_py() -> dict[str, Any]:
    """What setup.py defines, without building."""
    setuptools = pytest.importorskip("setuptools")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        patch.setattr(setuptools, "setup", lambda **declared: None)
        patch.delenv("SKYINFER_DEBUG_INFO", raising=False)
        return runpy.run_path("setup.py")


def compile_as_setup(setup_py: dict[str, Any], source: str, folder: Path, given: Sequence[str]) -> Path:
    """A shared library of `source` by given flags and setup.py's behind them, as setuptools puts them."""
    need("cc")
    (folder / "x.c").write_text(source)
    commands = [
        ["cc", *given, "-fPIC", "-c", "x.c", *setup_py["GCC_FLAGS"], *setup_py["GCC_PLAIN_FLAGS"]],
        ["cc", "-shared", *given, "x.o", "-o", "x.so", *setup_py["GCC_LINK_FLAGS"]],
    ]
    for command in commands:
        subprocess.run(command, cwd=folder, check=True)
    return folder / "x.so"


@pytest.mark.skipif(sys.platform == "win32", reason="of GCC and Clang")
@pytest.mark.parametrize("given", [["-Ofast"], ["-ffast-math"], ["-funsafe-math-optimizations"]], ids=" ".join)
def test_no_start_up_code_flushes_subnormals(setup_py: dict[str, Any], given: list[str], tmp_path: Path) -> None:
    """GCC links code into a shared library of -ffast-math that flushes subnormals in whoever loads it."""
    library = compile_as_setup(setup_py, "int nothing;", tmp_path, given)
    program = f"import ctypes; ctypes.CDLL({str(library)!r}); assert 2.0**-1074 * float(1) > 0"
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.skipif(sys.platform == "win32", reason="of GCC and Clang")
@pytest.mark.parametrize("wrapping", ["-fwrapv", "-fno-strict-overflow"])
def test_own_flags_win(setup_py: dict[str, Any], wrapping: str, tmp_path: Path) -> None:
    """Optimization, no contraction (a product would leave its rounding error here), no debug information, and no sums
    that wrap, as Python's own builds ask for."""
    source = """
    #if !defined(__OPTIMIZE__)
    #error "not optimized"
    #endif
    __attribute__((visibility("default")))
    double rest(double x, double y, double z) { return x * y - z; }
    __attribute__((visibility("default")))
    int is_less(int x) { return x < x + 1; }
    __attribute__((visibility("default")))
    int is_before(const char *p) { return p < p + 1; }
    """
    given = ["-O0", "-g3", "-ffp-contract=fast", "-march=native", wrapping]
    library = compile_as_setup(setup_py, source, tmp_path, given)
    assert b".debug_info" not in library.read_bytes()
    rest = ctypes.CDLL(str(library)).rest
    rest.argtypes, rest.restype = 3 * [ctypes.c_double], ctypes.c_double
    assert rest(0.1, 0.1, 0.1 * 0.1) == 0
    assert ctypes.CDLL(str(library)).is_less(2**31 - 1) == 1
    assert ctypes.CDLL(str(library)).is_before(ctypes.c_void_p(-1)) == 1
