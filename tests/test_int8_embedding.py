"""An embedding of more than 32 MB in 8-bit precision, against Q8_0 as the gguf package quantizes it.

The core is asked alone, because painting a file with so many tokens takes long.
"""

from __future__ import annotations

import functools

import int8_reference
import numpy as np
import pytest
from cores import CONSTANTS
from gguf import GGMLQuantizationType, quants
from numpy.typing import NDArray

from skyinfer.core import border

DTYPES = ("f32", "f16", "bf16")
D, VOCAB = 64, 263_000  # 32.1 MB in 16 bits
SIZES = {"d_model": D, "d_ff": 32, "n_vocab": VOCAB, "n_layers": 1, "n_decision_blocks": 0}
NAME = "token_embd.weight"
IDS = [0, 1, 2, 3, 4, 5, 6, 4095, 4096, 99_999, 100_000, 131_072, VOCAB - 1]
Rows = NDArray[np.float32]


@functools.cache
def stored(dtype: str) -> tuple[np.ndarray, Rows]:
    """[VOCAB, D] as a file has them in that type, and as floats: rows of many sizes, with outliers and zeros."""
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((VOCAB, D), np.float32)
    rows[1] = 0
    rows[2, ::9] *= 50
    rows[3] *= 1e-2
    rows[4] *= 1e2
    rows[5, :32] = 0
    rows[6] = np.where(np.arange(D) % 2, 127, -3)
    if dtype == "f16":
        half = rows.astype(np.float16)
        return half.view(np.uint16), half.astype(np.float32)
    if dtype == "bf16":
        top = (rows.view(np.uint32) >> 16).astype(np.uint16)
        return top, (top.astype(np.uint32) << 16).view(np.float32)
    return rows, rows


def filled(dtype: str, precision: str, isa: str | None = None) -> border.CoreModel:
    """A frozen model of these rows, set in parts that are no multiples of anything."""
    core = border.CoreModel(**SIZES, **CONSTANTS, isa=isa, precision=precision, dtypes={NAME: dtype})
    rng = np.random.default_rng(1)
    for name, shape in border.tensor_shapes(**SIZES).items():
        if name != NAME:
            core.set(name, rng.standard_normal(shape, np.float32))
    for first in range(0, VOCAB, 99_999):
        core.set(NAME, stored(dtype)[0][first : first + 99_999], dtype, first_row=first)
    core.freeze()
    return core


def embedded(core: border.CoreModel) -> Rows:
    """[IDS, D]: the embedding of the tokens, behind its norm, as a pass has it."""
    questions = border.CoreQuestions(core, [(IDS[:2], [0], 0, 16)], [[0]], sep_id=IDS[-1])
    batch = border.CoreAsks([(questions, 0, 1, np.array(IDS[2:-1], np.int32), False)], 16)
    plan = border.CorePlan(core, n_tokens=16, n_sequences=1, n_markers=1, sequence_tokens=16)
    trace: dict[str, np.ndarray] = {}
    plan.run(batch, None, trace)
    return trace["embd_norm"]


def normed(rows: np.ndarray) -> np.ndarray:
    """The norm of an embedding, in float64, with the weight that `filled` draws for it."""
    rng, weight = np.random.default_rng(1), np.zeros(0, np.float32)
    for name, shape in border.tensor_shapes(**SIZES).items():
        if name == "token_embd_norm.weight":
            weight = rng.standard_normal(shape, np.float32)
            break
        if name != NAME:
            rng.standard_normal(shape, np.float32)
    x = rows.astype(np.float64)
    x = x - x.mean(-1, keepdims=True)
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * weight


def in_8_bits(rows: Rows) -> NDArray[np.float64]:
    """Numbers in blocks of Q8_0: whole multiples, at most 127, of the scale that is stored in half precision."""
    blocks = int8_reference.in_blocks(rows)
    scale = (np.abs(blocks).max(-1, keepdims=True) / np.float32(127)).astype(np.float16).astype(np.float32)
    with np.errstate(divide="ignore"):
        factor = np.where(scale > 0, np.float32(1) / scale, np.float32(0)).astype(np.float32)
    whole = np.rint(np.clip(blocks * factor, -127, 127))
    return int8_reference.Blocks(whole.astype(np.int64), scale.astype(np.float64)).values


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_large_embedding_has_8_bits(dtype: str) -> None:
    """Of a byte and a sixteenth for each number; in exact precision it is what it is in the file."""
    exact, int8 = (
        border.CoreModel(**SIZES, **CONSTANTS, precision=precision, dtypes={NAME: dtype}, measured=True)
        for precision in border.PRECISIONS
    )
    assert exact.parameters[dtype] >= D * VOCAB
    assert int8.parameters["int8"] >= D * VOCAB
    assert int8.parameters.get(dtype, 0) < D * VOCAB
    saved = (4 if dtype == "f32" else 2) - 34 / 32
    assert exact.n_bytes - int8.n_bytes == pytest.approx(saved * D * VOCAB, rel=0.01)


@pytest.mark.parametrize("dtype", DTYPES)
def test_its_rows_are_those_of_the_reference(dtype: str, isa: str) -> None:
    found = embedded(filled(dtype, "int8", isa))
    expected = normed(in_8_bits(stored(dtype)[1][IDS]))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    assert np.abs(found - normed(stored(dtype)[1][IDS])).max() > 1e-3  # 8 bits it is
    np.testing.assert_array_equal(found[1], np.zeros(D))


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_reference_is_near_the_gguf_package(dtype: str) -> None:
    """Which divides by the scale as it is before it is rounded to half precision: where a number is near the middle
    between two the other may be taken, and what comes back is a little farther from the floats."""
    rows = stored(dtype)[1][:4096]
    blocks = quants.quantize(rows, GGMLQuantizationType.Q8_0)
    theirs, ours = quants.dequantize(blocks, GGMLQuantizationType.Q8_0), in_8_bits(rows)
    steps = np.repeat(np.abs(rows).reshape(len(rows), -1, 32).max(-1) / 127, 32, axis=1)
    assert (np.abs(ours - theirs) <= 1.01 * steps).all()
    assert (np.abs(ours - theirs) <= 1e-6 * np.abs(theirs)).mean() > 0.98
    assert np.abs(ours - rows).mean() <= np.abs(theirs - rows).mean()


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_that_cannot_be_in_8_bits_is_refused(dtype: str, isa: str) -> None:
    """NaN and infinity, and of types that hold them numbers whose scale half precision does not."""
    core = border.CoreModel(**SIZES, **CONSTANTS, isa=isa, precision="int8", dtypes={NAME: dtype})
    faults = {
        "f32": [np.nan, -np.inf, 127 * 65600.0],
        "f16": [0x7E00, 0xFC00, 0x7C01],
        "bf16": [0x7FC0, 0xFF80, 0x4B80],  # the last is 2^24
    }[dtype]
    for fault in faults:
        for at in (0, D - 1):
            rows = stored(dtype)[0][:3].copy()
            rows[2, at] = fault
            with pytest.raises(ValueError, match=f"{NAME}: holds a NaN or infinite value"):
                core.set(NAME, rows, dtype, first_row=0)
    core.set(NAME, stored(dtype)[0][:3], dtype, first_row=0)  # what can be is taken afterwards
