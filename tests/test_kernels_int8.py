"""Products of 8-bit weights of every instruction set, against whole numbers in numpy and at their ranges' ends."""

from __future__ import annotations

import int8_reference
import numpy as np
import pytest
import reference
from test_kernels import EPS, Output, act_of, guarded, normal, tile_edges, vector

from skyinfer.core.kernels import Kernels, PackedMatrix

BLOCK = int8_reference.BLOCK


def bound(sums: np.ndarray, k: int) -> np.ndarray:
    """How far a float sum over blocks may be off, where the magnitudes of its terms add up to `sums`."""
    return (k / BLOCK + 8) * EPS * sums


def with_outliers(x: np.ndarray, every: int = 41) -> np.ndarray:
    """The same with every so manieth column 100 times as large."""
    x = x.copy()
    x[:, ::every] *= 100
    return x


def q8_0(rng: np.random.Generator, n: int, k: int) -> np.ndarray:
    """Random rows of Q8_0 with every whole number there is, -128 as well."""
    blocks = rng.integers(0, 256, (n, k // BLOCK, 2 + BLOCK), dtype=np.uint8)
    scales = (rng.random((n, k // BLOCK)) * 0.01).astype("<f2")
    blocks[..., :2] = scales[..., None].view(np.uint8).reshape(n, k // BLOCK, 2)
    return blocks.reshape(n, -1)


@pytest.mark.parametrize("outliers", [False, True])
def test_products_are_those_of_the_whole_numbers(isa: str, outliers: bool) -> None:
    kernels = Kernels(isa)
    rng = np.random.default_rng(1)
    for m, n, k in [*tile_edges(isa), (7, 33, 32), (5, 70, 64), (6, 32, 1024)]:
        a, w = normal(rng, m, k), normal(rng, n, k)
        a = with_outliers(a) if outliers else a
        bias, residual = normal(rng, n), normal(rng, m, n)
        out = Output(m, n)
        kernels.gemm(
            guarded(a), PackedMatrix(isa, w, int8=True), out.window, bias=vector(bias), residual=guarded(residual)
        )
        exact, sums = int8_reference.product_of_floats(a, w, isa)
        sums += np.abs(bias) + np.abs(residual)
        assert (np.abs(out.check() - exact - bias - residual) <= bound(sums, k)).all(), (m, n, k)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_weights_of_16_bits_become_what_the_same_floats_become(isa: str, dtype: str) -> None:
    rng = np.random.default_rng(2)
    a, half = normal(rng, 5, 77), normal(rng, 41, 77).astype(np.float16)
    wide = half.astype(np.float32)
    if dtype == "bfloat16":
        half = (wide.view(np.uint32) >> 16).astype(np.uint16)
        wide = (half.astype(np.uint32) << 16).view(np.float32)
    outs = [np.empty((5, 41), np.float32) for _ in range(2)]
    for w, out in zip((half, wide), outs, strict=True):
        Kernels(isa).gemm(a, PackedMatrix(isa, w, int8=True), out)
    np.testing.assert_array_equal(*outs)


@pytest.mark.parametrize("gated", [False, True])
def test_blocks_of_q8_0_are_taken_as_they_are(isa: str, gated: bool) -> None:
    rng = np.random.default_rng(3)
    for m, n, k in [(1, 2, 32), (7, 34, 96), (13, 66, 1024), (3, 2, 64)]:
        a, data = with_outliers(normal(rng, m, k), 50), q8_0(rng, n, k)
        exact, sums = int8_reference.product(a, int8_reference.q8_0_weights(data), isa)
        if gated:  # up * gate
            error = bound(sums[:, : n // 2], k) * np.abs(exact[:, n // 2 :])
            error += (np.abs(exact[:, : n // 2]) + error) * bound(sums[:, n // 2 :], k)
            exact = exact[:, : n // 2] * exact[:, n // 2 :]
            error += EPS * np.abs(exact)
        else:
            error = bound(sums, k)
        out = Output(*exact.shape)
        packed = PackedMatrix(isa, data, gated)
        Kernels(isa).gemm(guarded(a), packed, out.window, epilogue="gated linear" if gated else "linear")
        assert (np.abs(out.check() - exact) <= error).all(), (m, n, k)


@pytest.mark.parametrize("epilogue", ["relu", "gelu", "geglu", "swiglu", "gated relu_squared"])
def test_activations(isa: str, epilogue: str) -> None:
    rng = np.random.default_rng(4)
    gated = epilogue not in ("relu", "gelu")
    for m, n, k in [(13, 53, 257), (7, 32, 64), (1, 1, 31)]:
        rows = 2 * n if gated else n
        a, w, bias = normal(rng, m, k), normal(rng, rows, k), normal(rng, rows)
        out = Output(m, n)
        packed = PackedMatrix(isa, w, gated, int8=True)
        Kernels(isa).gemm(guarded(a), packed, out.window, bias=None if gated else vector(bias), epilogue=epilogue)
        exact, _ = int8_reference.product_of_floats(a, w, isa)
        exact = act_of(epilogue)(exact[:, :n]) * exact[:, n:] if gated else act_of(epilogue)(exact + bias)
        np.testing.assert_allclose(out.check(), exact, rtol=2e-4, atol=2e-6 + 2e-4 * np.abs(exact).max())


# Sums that would overflow 16 bits, or 32 if a wide block were longer: all as large as they get, of one sign or of both.
@pytest.mark.parametrize("weight", [-128, 127])
@pytest.mark.parametrize("sign", [-1, 1])
@pytest.mark.parametrize("wide", [False, True])
def test_nothing_saturates_at_the_ends(isa: str, weight: int, sign: int, wide: bool) -> None:
    m, n, k = 13, 67, 4096 if wide else 96
    data = np.zeros((n, k // BLOCK, 2 + BLOCK), np.uint8)
    data[..., :2] = np.array([0.5], "<f2").view(np.uint8)
    data[..., 2:] = weight & 0xFF
    a = np.zeros((m, k), np.float32)
    a[:, :BLOCK] = sign * np.arange(1, m + 1)[:, None]  # in a long row the one block that is not zero is an outlier
    if not wide:
        a[:] = a[:, :1]
    most = np.abs(int8_reference.quantized_activations(a, isa).whole).max()
    assert most == (16384 if isa not in int8_reference.OF_BYTES else 32512 if wide else 127)
    out = np.empty((m, n), np.float32)
    Kernels(isa).gemm(a, PackedMatrix(isa, data.reshape(n, -1)), out)
    exact = 0.5 * weight * a.sum(-1, dtype=np.float64)
    np.testing.assert_allclose(out, np.broadcast_to(exact[:, None], out.shape), rtol=1e-6)


@pytest.mark.parametrize("sign", [-1, 1])
@pytest.mark.parametrize("k", [1023, 1024, 2080])
def test_sums_of_whole_rows_do_not_overflow(isa: str, sign: int, k: int) -> None:
    """All weights and activations are the largest of their rows, so 1024 products take 31 bits where those have 16."""
    m, n = 13, 67
    a, w = np.full((m, k), 3, np.float32), np.full((n, k), sign * 0.5, np.float32)
    out = np.empty((m, n), np.float32)
    Kernels(isa).gemm(a, PackedMatrix(isa, w, int8=True), out)
    np.testing.assert_allclose(out, sign * 1.5 * k, rtol=1e-5)


def test_alternating_ends_cancel_exactly(isa: str) -> None:
    """Pairs and fours of the largest products of both signs: an intermediate sum that saturates would leave a rest."""
    k = 64
    data = np.zeros((2, k // BLOCK, 2 + BLOCK), np.uint8)
    data[..., :2] = np.array([1.0], "<f2").view(np.uint8)
    data[0, :, 2:] = 127
    data[1, :, 2:] = np.resize([127, 127, 0x80, 0x80], BLOCK)
    a = np.float32([np.resize([1.0, 1.0, -1.0, -1.0], k), np.resize([1.0, -1.0], k), np.ones(k)])
    out = np.empty((3, 2), np.float32)
    Kernels(isa).gemm(a, PackedMatrix(isa, data.reshape(2, -1)), out)
    np.testing.assert_allclose(out, [[0, k * 127.5], [0, 0], [127 * k, -0.5 * k]], rtol=1e-6, atol=0)


@pytest.mark.parametrize("k", [64, 1100])
def test_a_row_has_the_same_bits_wherever_it_stands(isa: str, k: int) -> None:
    """Alone, and among rows with outliers in some of its blocks."""
    rng = np.random.default_rng(5)
    kernels, packed = Kernels(isa), PackedMatrix(isa, normal(rng, 50, k), int8=True)
    a = normal(rng, 41, k)
    a[::3] = with_outliers(a[::3])
    a[1::4, 40] = 500
    together = np.empty((41, 50), np.float32)
    kernels.gemm(a, packed, together)
    for i in range(41):
        alone = np.empty((1, 50), np.float32)
        kernels.gemm(a[i : i + 1], packed, alone)
        np.testing.assert_array_equal(alone[0], together[i])
    backwards = np.empty_like(together)
    kernels.gemm(np.ascontiguousarray(a[::-1]), packed, backwards)
    np.testing.assert_array_equal(backwards[::-1], together)


def test_a_tiny_row_has_the_same_bits_beside_an_outlier(isa: str) -> None:
    """So small that its scale times a weight's is near the end of what floats hold."""
    rng = np.random.default_rng(13)
    kernels, packed = Kernels(isa), PackedMatrix(isa, q8_0(rng, 40, 128))
    a = normal(rng, 6, 128)
    a[::2] *= np.float32(1e-31)
    a[1::2, 40] = 500
    together, alone = np.empty((6, 40), np.float32), np.empty((3, 40), np.float32)
    kernels.gemm(a, packed, together)
    kernels.gemm(a[::2].copy(), packed, alone)
    assert alone.any()
    np.testing.assert_array_equal(together[::2], alone)


def test_an_outlier_leaves_the_rest_of_its_block_its_digits(isa: str) -> None:
    rng = np.random.default_rng(6)
    k = 1024
    a, w = normal(rng, 9, k), normal(rng, 33, k)
    plain, outliers = a.copy(), a.copy()
    outliers[:, [5, 700]] = 100.0
    plain[:, [5, 700]] = 0.0
    wide = w.copy()
    wide[:, [5, 700]] = 0.0  # so that what the outliers themselves add is nothing
    errors = []
    for x in (plain, outliers):
        out = np.empty((9, 33), np.float32)
        Kernels(isa).gemm(x, PackedMatrix(isa, wide, int8=True), out)
        errors.append(np.sqrt(np.mean((out - x.astype(np.float64) @ wide.T.astype(np.float64)) ** 2)))
    # Rounding to steps of s adds s^2 / 12. An outlier's block has two digits and no larger steps than it had; where the
    # row has one scale, all of its steps become those of the outlier, beside those of the weights, which stay.
    steps = 0.0 if isa in int8_reference.OF_BYTES else 100.0 / int8_reference.ROW_LEVELS
    of_weights = np.sqrt(np.mean((np.abs(wide).max(1) / int8_reference.LEVELS) ** 2))
    assert errors[1] <= np.hypot(1.0, steps / of_weights) * 1.02 * errors[0]  # 2 % for chance, of 297 sums


@pytest.mark.parametrize("fault", [np.nan, np.inf, -np.inf])
def test_a_fault_shows_in_its_row(isa: str, fault: float) -> None:
    rng = np.random.default_rng(7)
    for k in (9, 64, 700):
        a, w = normal(rng, 8, k), normal(rng, 12, k)
        a[2, k // 2] = fault
        out = np.zeros((8, 12), np.float32)
        Kernels(isa).gemm(a, PackedMatrix(isa, w, int8=True), out)
        assert np.isnan(out[2]).all()
        assert np.isfinite(np.delete(out, 2, 0)).all()


def test_sizes_of_all_kinds(isa: str) -> None:
    """Zeros, and numbers far from 1 on either side."""
    rng = np.random.default_rng(8)
    a, w = normal(rng, 6, 96), normal(rng, 17, 96)
    a[0] = 0
    a[1, 32:64] = 0
    a[2] *= 1e-20
    a[3] *= 1e18
    w[3] = 0
    for unit in (1.0, 1e-12, 1e12):
        out = np.empty((6, 17), np.float32)
        Kernels(isa).gemm(a, PackedMatrix(isa, w * np.float32(unit), int8=True), out)
        exact = a.astype(np.float64) @ w.T.astype(np.float64) * unit
        size = np.linalg.norm(a.astype(np.float64), axis=1)[:, None] * np.linalg.norm(w, axis=1) * unit
        assert (np.abs(out - exact) <= 0.01 * size).all()
        assert not out[0].any()
        assert not out[:, 3].any()


def test_a_block_of_one_tiny_number_leaves_zeros_zeros(isa: str) -> None:
    """An outlier so small that its levels over its size are no float. Its own column of w is 0, so all products are."""
    a, w = np.zeros((7, 64), np.float32), np.ones((17, 64), np.float32)
    a[:, 3], w[:, 3] = 10.0 ** -np.arange(30.0, 44.0, 2), 0
    out = np.empty((7, 17), np.float32)
    Kernels(isa).gemm(a, PackedMatrix(isa, w, int8=True), out)
    assert not out.any()


def test_weights_near_the_smallest_float_are_no_larger_than_they_were(isa: str) -> None:
    """Where a block's scale is subnormal its inverse may be no float, so every weight of it became the largest."""
    a, w = np.eye(64, dtype=np.float32), np.resize(2.0 ** -np.arange(7.0), (9, 64))
    for size in (1e-34, 1e-36, 2e-37, 1e-38, 1e-40):
        small = (w * size).astype(np.float32)
        out = np.empty((64, 9), np.float32)
        Kernels(isa).gemm(a, PackedMatrix(isa, small, int8=True), out)
        assert (np.abs(out) <= 1.01 * small.T.astype(np.float64) + size / 127).all(), size


def test_small_columns_under_large_activations_keep_their_digits(isa: str) -> None:
    """Outlier channels as in trained models: 100 times as large, and the columns that they feed as much smaller."""
    rng = np.random.default_rng(11)
    for k in (64, 1000):
        a, w = normal(rng, 9, k), normal(rng, 33, k)
        errors = []
        for size in (1.0, 100.0):
            x, v = a.copy(), w.copy()
            x[:, 7::60] *= np.float32(size)
            v[:, 7::60] /= np.float32(size)
            out = np.empty((9, 33), np.float32)
            Kernels(isa).gemm(x, PackedMatrix(isa, v, int8=True), out)
            exact, sums = int8_reference.product_of_floats(x, v, isa)
            assert (np.abs(out - exact) <= bound(sums, k)).all()
            errors.append(np.sqrt(np.mean((out - x.astype(np.float64) @ v.T.astype(np.float64)) ** 2)))
        assert errors[1] <= 1.3 * errors[0]


def test_the_largest_of_a_matrix_does_not_take_the_digits_of_the_least(isa: str) -> None:
    """Rows of very different sizes: scales in plain half precision would have no digits left for the small ones."""
    rng = np.random.default_rng(9)
    a, w = normal(rng, 4, 64), normal(rng, 16, 64)
    w *= (10.0 ** -np.arange(0.0, 6.4, 0.4, dtype=np.float32))[:, None]
    out = np.empty((4, 16), np.float32)
    Kernels(isa).gemm(a, PackedMatrix(isa, w, int8=True), out)
    exact = a.astype(np.float64) @ w.T.astype(np.float64)
    size = np.linalg.norm(a, axis=1)[:, None] * np.linalg.norm(w, axis=1)
    assert (np.abs(out - exact) <= 0.01 * size).all()


def test_faulty_weights_are_refused(isa: str) -> None:
    w = np.ones((3, 64), np.float32)
    for fault in (np.nan, np.inf):
        w[1, 40] = fault
        for faulty in (w, w.astype(np.float16)):
            with pytest.raises(ValueError, match="NaN or infinite"):
                PackedMatrix(isa, faulty, int8=True)
    data = q8_0(np.random.default_rng(0), 2, 64)
    data[1, 34:36] = [0, 0x7C]
    with pytest.raises(ValueError, match="NaN or infinite"):
        PackedMatrix(isa, data)
    with pytest.raises(ValueError, match="no blocks"):
        PackedMatrix(isa, data[:, :40].copy())


def test_the_reference_of_activations_is_near_them() -> None:
    rng = np.random.default_rng(10)
    x = normal(rng, 7, 200)
    x[:, [0, 150]] = 100
    near = int8_reference.quantized_activations(x, "avx512vnni").values[:, :200]
    largest = np.abs(int8_reference.in_blocks(x)).max(-1, keepdims=True)
    step = np.broadcast_to(largest / 127, (7, 7, BLOCK)).reshape(7, -1)[:, :200]
    assert (np.abs(near - x) <= 0.501 * step).all()
    assert (np.abs(near - x)[:, 3] <= step[:, 3] / 200).all()  # beside an outlier
    assert reference.relu(-1.0) == 0.0
