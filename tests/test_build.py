"""How the compiled parts are built: the arithmetic that they insist on, whose flags win, what CI asks for."""

from __future__ import annotations

import ctypes
import os
import runpy
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from programs import need

from skyinfer.core import border

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


ISAS = ROOT / ".ci" / "isas"  # not in an sdist
AVX2, AVX512 = "avx2 fma f16c", "avx2 fma f16c avx512f avx512dq avx512bw avx512vl"


def expected_isas(*arguments: str, compiler: str | None = None) -> tuple[list[str], str]:
    """What CI asks for by the system's account of the CPU, and what is said beside it."""
    need("bash")
    if not ISAS.exists():
        pytest.skip("an sdist has no .ci")
    environment = os.environ | ({"CC": compiler} if compiler else {})
    run = subprocess.run([ISAS, *arguments], capture_output=True, text=True, check=True, env=environment)
    return run.stdout.split(), run.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/cpuinfo")
def test_ci_asks_for_every_instruction_set_that_runs_here() -> None:
    """A row that the account does not know could vanish from the build unseen."""
    supported = [name for name in border.isa_names() if border.isa_supported(name)]
    assert expected_isas()[0] == supported


@pytest.mark.skipif(sys.platform == "win32", reason="a program of bash")
@pytest.mark.parametrize(
    ("machine", "line", "expected"),
    [
        ("x86_64", "flags\t\t: fpu sse2", "portable"),
        ("x86_64", f"flags\t\t: {AVX2}", "portable avx2"),
        ("x86_64", f"flags\t\t: {AVX512}", "portable avx2 avx512"),
        ("x86_64", f"flags\t\t: {AVX512} avx512_vnni", "portable avx2 avx512 avx512vnni"),
        ("x86_64", "flags\t\t: avx_vnni avx512_vnni", "portable"),
        ("aarch64", "processor\t: 0\nFeatures\t: fp asimd", "portable neon"),
        ("aarch64", "processor\t: 0\nFeatures\t: fp asimd asimddp", "portable neon neondot"),
    ],
)
def test_ci_asks_for_what_a_machine_has(machine: str, line: str, expected: str, tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text(line + "\n")
    found, _ = expected_isas(str(tmp_path / "cpuinfo"), machine)
    if sys.platform == "darwin":  # whose own account is asked as well
        found = [name for name in found if name != "neondot" or "asimddp" in line]
    assert found == expected.split()


@pytest.mark.skipif(sys.platform == "win32", reason="MSVC takes all rows")
def test_ci_says_what_the_compiler_is_too_old_for(tmp_path: Path) -> None:
    """setup.py leaves out an optional row whose flags the compiler does not know, and CI then asks for all others."""
    (tmp_path / "cpuinfo").write_text(f"flags : {AVX512} avx_vnni avx512_vnni\n")
    (tmp_path / "old").write_text('#!/bin/sh\ncase "$*" in *-mavxvnni*) exit 1 ;; esac\n')
    (tmp_path / "new").write_text("#!/bin/sh\n")
    for compiler, rows, words in [("new", ["avxvnni"], False), ("old", [], True)]:
        (tmp_path / compiler).chmod(0o755)
        found, said = expected_isas(str(tmp_path / "cpuinfo"), "x86_64", compiler=str(tmp_path / compiler))
        assert found == ["portable", "avx2", *rows, "avx512", "avx512vnni"]
        assert ("NOT BUILT" in said) == words
