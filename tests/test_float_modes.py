"""Answers have the same bits in a thread whose floating-point mode another library has changed, and it keeps its mode.

A few lines of C over csrc/float_mode.h set the modes: subnormals flushed and read as zero, and other rounding.
"""

from __future__ import annotations

import ctypes
import platform
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import checkpoints
import numpy as np
import pytest
from programs import need

import skyinfer

ROOT = Path(__file__).parents[1]
PAINTED = ROOT / "examples" / "painted"
MODES = {
    "x86_64": {"flush to zero": 0x9FC0, "upward": 0x5F80, "downward": 0x3F80, "to zero, flushed": 0xFFC0},
    "aarch64": {"flush to zero": 1 << 24, "upward": 1 << 22, "downward": 2 << 22, "to zero, flushed": 7 << 22},
}.get({"AMD64": "x86_64", "arm64": "aarch64"}.get(platform.machine(), platform.machine()), {})
QUESTIONS: dict[str, Any] = {
    "which": {"type": "choice", "instructions": "Which?", "criteria": ["left", "right", "neither"]},
    "much": {"type": "score", "instructions": "How much?", "criteria": ["none", "some", "much"]},
    "safe": {"type": "noul", "instructions": "Is it safe?"},
}
STATE = {"speed": 0.1, "height": [1e-5, 123456.789]}
CODE = """
#include "float_mode.h"
unsigned long long mode(void) { return sky_float_mode_get(); }
void set_mode(unsigned long long mode) { sky_float_mode_set((sky_float_mode)mode); }
"""


@pytest.fixture(scope="module")
def in_mode(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Any]:
    need("cc")
    folder = tmp_path_factory.mktemp("modes")
    (folder / "mode.c").write_text(CODE)
    command = ["cc", "-shared", "-fPIC", "-I", str(ROOT / "csrc"), "mode.c", "-o", "mode.so"]
    subprocess.run(command, cwd=folder, check=True)
    library = ctypes.CDLL(str(folder / "mode.so"))
    library.mode.restype = ctypes.c_uint64
    library.set_mode.argtypes = [ctypes.c_uint64]

    @contextmanager
    def context(mode: int) -> Iterator[None]:
        before = library.mode()
        library.set_mode(mode)
        try:
            yield
            after = library.mode()
        finally:
            library.set_mode(before)
        flags = 0x3F if platform.machine() in ("x86_64", "AMD64") else 0  # what Python's own arithmetic has raised
        assert after & ~flags == mode & ~flags

    return context


@pytest.fixture(scope="module")
def subnormal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The painted checkpoint with scores so small that they are subnormal."""
    folder = shutil.copytree(PAINTED, tmp_path_factory.mktemp("subnormal") / "model")
    tensors = checkpoints.read_safetensors(folder / "model.safetensors")
    for name in ("scorer.3.weight", "scorer.3.bias"):
        tensors[name] = tensors[name] * np.float32(1e-40)
    checkpoints.write_safetensors(folder / "model.safetensors", tensors)
    return folder


def answers_of(model: skyinfer.Model) -> tuple[Any, dict[str, bytes], bytes]:
    compiled = model.compile(QUESTIONS)
    logits = {key: row.tobytes() for key, row in model.logits(STATE, QUESTIONS).items()}
    answered = [model.decide(STATE, QUESTIONS), *model.decide_many([STATE, "other"], QUESTIONS)]
    return answered, logits, compiled.step(STATE).tobytes() + compiled.step_many([STATE, "other"]).tobytes()


@pytest.mark.parametrize("mode", MODES)
def test_answers_have_the_same_bits(mode: str, in_mode: Callable[[int], Any], subnormal: Path) -> None:
    for path in (PAINTED, subnormal):
        model = skyinfer.load(path, threads=2)
        expected = answers_of(model)
        with in_mode(MODES[mode]):
            seen = answers_of(model)
        assert seen == expected, path


@pytest.mark.parametrize("mode", MODES)
def test_a_model_loaded_in_another_mode_is_the_same(mode: str, in_mode: Callable[[int], Any], subnormal: Path) -> None:
    for path in (PAINTED, subnormal):
        expected = answers_of(skyinfer.load(path))
        with in_mode(MODES[mode]):
            model = skyinfer.load(path)
        assert answers_of(model) == expected, path


def test_the_scores_are_subnormal(subnormal: Path) -> None:
    for row in skyinfer.load(subnormal).logits(STATE, QUESTIONS).values():
        assert (row != 0).all()
        assert (np.abs(row) < np.finfo(np.float32).tiny).all()


def test_torch_flushes_subnormals(subnormal: Path) -> None:
    torch = pytest.importorskip("torch")
    model = skyinfer.load(subnormal)
    expected = answers_of(model)
    if not torch.set_flush_denormal(True):
        pytest.skip("torch cannot flush subnormals here")
    try:
        seen = answers_of(model)
    finally:
        torch.set_flush_denormal(False)
    assert seen == expected
