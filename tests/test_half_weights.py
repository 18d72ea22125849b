"""Weights of 16 bits stay so in memory, and every answer has the bits that it has from the same weights as float32."""

from __future__ import annotations

import warnings
from pathlib import Path

import checkpoints
import numpy as np
import pytest
from cores import CONSTANTS
from test_kernels import Output, guarded, normal, tile_edges, vector
from test_model import QUESTIONS, STATE, load

import skyinfer
from skyinfer.core import border
from skyinfer.core.kernels import EPILOGUES, Kernels, PackedMatrix
from skyinfer.runtime import engine

ISAS = [name for name in border.isa_names() if border.isa_supported(name)]
HALVES = ("f16", "bf16")


def halves_of(w: np.ndarray, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """w rounded to 16 bits, as `PackedMatrix` takes it, and as float32."""
    if dtype == "f16":
        half = w.astype(np.float16)
        return half, half.astype(np.float32)
    wide = w.view(np.uint32) & np.uint32(0xFFFF0000)
    return (wide >> 16).astype(np.uint16), wide.view(np.float32)


def same(a: np.ndarray, b: np.ndarray) -> bool:
    return a.tobytes() == b.tobytes()


@pytest.mark.parametrize("epilogue", ["linear", "relu", "gelu", "geglu", "swiglu"])
@pytest.mark.parametrize("dtype", HALVES)
def test_a_product_has_the_bits_of_the_widened_weights(isa: str, dtype: str, epilogue: str) -> None:
    """That those are right is what test_kernels.py shows. NaN and canaries stand around what is read and written."""
    kernels, rng = Kernels(isa), np.random.default_rng(1)
    gated = EPILOGUES[epilogue][0] == EPILOGUES["geglu"][0]
    for m, n, k in [*tile_edges(isa), (300, 34, 1031)]:
        rows = 2 * n if gated else n
        half, wide = halves_of(normal(rng, rows, k), dtype)
        half[0, 0], wide[0, 0] = (np.float16(6e-8) if dtype == "f16" else 1), np.float32(0)  # subnormal
        wide[0, 0] = np.float32(half[0, 0]) if dtype == "f16" else np.array([1 << 16], np.uint32).view(np.float32)[0]
        a, out, want = guarded(normal(rng, m, k)), Output(m, n), Output(m, n)
        bias = None if gated else vector(normal(rng, rows))
        residual = guarded(normal(rng, m, n)) if epilogue == "linear" else None
        kernels.gemm(a, PackedMatrix(isa, half, gated), out.window, bias=bias, residual=residual, epilogue=epilogue)
        kernels.gemm(a, PackedMatrix(isa, wide, gated), want.window, bias=bias, residual=residual, epilogue=epilogue)
        assert same(out.check(), want.check()), (m, n, k)


@pytest.mark.parametrize("dtype", HALVES)
def test_every_number_of_16_bits_is_widened_exactly(isa: str, dtype: str) -> None:
    """One weight is each of them in turn, times one."""
    every = np.arange(65536, dtype=np.uint16)
    half = every.view(np.float16) if dtype == "f16" else every
    wide = half.astype(np.float32) if dtype == "f16" else (every.astype(np.uint32) << 16).view(np.float32)
    finite = np.isfinite(wide)
    half, wide = np.ascontiguousarray(half[finite][:, None]), wide[finite]
    for m in (1, 40):  # widened beside the first rows, and before them
        out = np.empty((m, len(wide)), np.float32)
        Kernels(isa).gemm(np.ones((m, 1), np.float32), PackedMatrix(isa, half), out)
        np.testing.assert_array_equal(out, np.broadcast_to(wide, out.shape))


@pytest.fixture(scope="module", params=HALVES)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path, Path]:
    """A type, a file of it, and the same numbers in float32."""
    directory = checkpoints.paint(
        tmp_path_factory.mktemp("half") / "model", **checkpoints.SIZES["golden"] | {"dtype": request.param.upper()}
    )
    half = skyinfer.convert(directory, directory.parent / "half.gguf", outtype=request.param)
    return request.param, half, skyinfer.convert(directory, directory.parent / "wide.gguf", outtype="f32")


@pytest.mark.parametrize("token_table_bytes", [0, 16 << 20])
def test_answers_have_the_bits_of_the_widened_file(
    pair: tuple[str, Path, Path], token_table_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    dtype, half, wide = pair
    monkeypatch.setattr(engine, "_WIDENED_BYTES", 0)
    monkeypatch.setattr(engine, "_ROWS_AT_ONCE", 100)
    for isa in ISAS:
        models = [load(path, isa=isa, token_table_bytes=token_table_bytes, threads=2) for path in (half, wide)]
        counts = [model.engine.core.parameters for model in models]
        assert sum(counts[0].values()) == sum(counts[1].values())
        assert list(counts[1]) == ["f32"]
        assert list(counts[0]) == ([dtype] if token_table_bytes == 0 else ["f32", dtype])
        for state in ("", "10", STATE):
            mine, other = (model.logits(state, QUESTIONS) for model in models)
            assert all(same(mine[key], other[key]) for key in QUESTIONS), (isa, state)


@pytest.mark.parametrize("dtype", HALVES)
def test_memory_of_a_parameter(dtype: str, tmp_path: Path) -> None:
    """Beside what every model has: tables of positions, vectors, and what panels are rounded up by."""
    directory = checkpoints.paint(tmp_path / "nano", **checkpoints.SIZES["nano"] | {"dtype": dtype.upper()})
    wide = skyinfer.convert(directory, tmp_path / "wide.gguf", outtype="f32")
    for path, bytes_each, kept in ((directory, 2, dtype), (wide, 4, "f32")):
        core = load(path, token_table_bytes=0).engine.core
        assert list(core.parameters) == [kept]
        assert core.n_bytes < (bytes_each + 0.1) * core.parameters[kept]


def test_small_models_are_widened(tmp_path: Path) -> None:
    directory = checkpoints.paint(tmp_path / "pico", **checkpoints.SIZES["pico"] | {"dtype": "F16"})
    model = load(directory)
    assert list(model.engine.core.parameters) == ["f32"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert "f32" in repr(model)


def small_core(dtype: str, **more: int) -> border.CoreModel:
    sizes = {"d_model": 8, "d_ff": 6, "n_vocab": 5, "n_layers": 1, "n_decision_blocks": 1}
    return border.CoreModel(**sizes, **CONSTANTS, dtypes=dict.fromkeys(border.tensor_shapes(**sizes), dtype), **more)


@pytest.mark.parametrize("dtype", HALVES)
def test_a_matrix_is_set_in_the_type_that_was_said(dtype: str) -> None:
    core, one = small_core(dtype), np.full((8, 8), 0x3C00, np.uint16)
    other = "f16" if dtype == "bf16" else "bf16"
    core.set("cls.weight", one, dtype)
    for name, shape in (("cls.weight", (8, 8)), ("token_embd.weight", (5, 8))):
        for values, wrong in ((np.ones(shape, np.float32), "f32"), (np.ones(shape, np.uint16), other)):
            with pytest.raises(ValueError, match=f"{name}: is not of the data type"):
                core.set(name, values, wrong)
    core.set("cls.bias", np.ones(8, np.float32))  # vectors are widened, so they may be of any
    small_core(dtype, widened_bytes=1 << 20).set("cls.weight", np.ones((8, 8), np.float32))


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", ["cls.weight", "token_embd.weight"])
def test_a_half_that_is_no_number_is_refused(dtype: str, name: str) -> None:
    infinity, largest = (0x7C00, 0x7BFF) if dtype == "f16" else (0x7F80, 0x7F7F)
    core, values = small_core(dtype), np.zeros((5 if name == "token_embd.weight" else 8, 8), np.uint16)
    for fault in (infinity, infinity | 0x8000, infinity | 1, 0xFFFF, 0x7FFF):
        values[-1, -1] = fault
        with pytest.raises(ValueError, match=f"{name}: holds a NaN"):
            core.set(name, values, dtype)
    values[-1, -1] = largest
    core.set(name, values, dtype)


def test_an_unknown_type_is_refused() -> None:
    with pytest.raises(KeyError):
        small_core("q9")
