"""Every kernel of every instruction set against float64, with bounds that scale with the sum and not a loose tolerance.

Operands lie inside larger arrays: what surrounds an input is NaN, which would spread if it were read, and what
surrounds an output is a canary, which must survive.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import reference

from skyinfer import IsaError
from skyinfer.core import border
from skyinfer.core.kernels import EPILOGUES, Kernels, PackedMatrix
from skyinfer.files.activations import BY_NAME

EPS = 2.0**-24  # unit roundoff of float32
CANARY = np.float32(12345.678)


def guarded(values: np.ndarray, pad: int = 3) -> np.ndarray:
    """The same values, 4-byte aligned, as a window of an array of NaN."""
    rows, cols = values.shape
    whole = np.full((rows + 2, cols + 2 * pad), np.nan, np.float32)
    whole[1:-1, pad:-pad] = values
    return whole[1:-1, pad:-pad]


class Output:
    """A window for `rows` x `cols` results in an array of canaries."""

    def __init__(self, rows: int, cols: int, pad: int = 5) -> None:
        self.whole = np.full((rows + 2, cols + 2 * pad), CANARY, np.float32)
        self.window = self.whole[1:-1, pad:-pad]
        self.pad = pad

    def check(self) -> np.ndarray:
        """The results, after a look at every canary."""
        inside = np.zeros(self.whole.shape, bool)
        inside[1:-1, self.pad : -self.pad] = True
        assert (self.whole[~inside] == CANARY).all(), "wrote outside its output"
        return self.window


def vector(values: np.ndarray) -> np.ndarray:
    """The same values with NaN behind them, unaligned."""
    whole = np.full(len(values) + 35, np.nan, np.float32)
    whole[1 : 1 + len(values)] = values
    return whole[1 : 1 + len(values)]


def normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape, dtype=np.float32)


def tile_edges(isa: str) -> list[tuple[int, int, int]]:
    """(m, n, k) at the tile and one beside it, and primes."""
    rows, cols = Kernels(isa).tile
    edges = [(m, n, 37) for m in (1, rows - 1, rows, rows + 1) for n in (1, cols - 1, cols, cols + 1)]
    tails = [(m, cols + 7, 5) for m in range(1, rows + 1)]
    long = [(13, 53, 257), (19, 41, 1025), (9, 35, 2624), (301, 5, 1031)]  # the last in several blocks of rows
    return [*edges, *tails, (2 * rows + 3, 61, 1), (7, 97, 131), (29, 2 * cols, 64), *long]


def test_gemm_adds_bias_and_residual(isa: str) -> None:
    kernels = Kernels(isa)
    rng = np.random.default_rng(1)
    for m, n, k in tile_edges(isa):
        a, w = normal(rng, m, k), normal(rng, n, k)
        bias, residual = normal(rng, n), normal(rng, m, n)
        out = Output(m, n)
        packed = PackedMatrix(isa, w)
        kernels.gemm(guarded(a), packed, out.window, bias=vector(bias), residual=guarded(residual))
        exact = a.astype(np.float64) @ w.T.astype(np.float64) + bias + residual
        scale = np.abs(a).astype(np.float64) @ np.abs(w).T.astype(np.float64) + np.abs(bias) + np.abs(residual)
        assert (np.abs(out.check() - exact) <= (k + 2) * EPS * scale).all(), (m, n, k)


@pytest.mark.parametrize("k", [33, 2100])
def test_gemm_residual_may_be_the_output(isa: str, k: int) -> None:
    rng = np.random.default_rng(2)
    a, w, residual = normal(rng, 19, k), normal(rng, 41, k), normal(rng, 19, 41)
    packed, kernels = PackedMatrix(isa, w), Kernels(isa)
    apart, inplace = np.empty((19, 41), np.float32), residual.copy()
    kernels.gemm(a, packed, apart, residual=residual)
    kernels.gemm(a, packed, inplace, residual=inplace)
    np.testing.assert_array_equal(inplace, apart)


# the steepest that they get on |x| <= 200, where it is more than GELU's and SiLU's
STEEPEST = {"relu_squared": 400.0, "hardswish": 1.5}


def act_of(epilogue: str) -> Callable[[np.ndarray], np.ndarray]:
    """The activation of an epilogue in float64."""
    if not epilogue.startswith("gated "):
        return {"relu": reference.relu, "swiglu": reference.silu}.get(epilogue, reference.gelu_erf)
    return reference.ACTIVATIONS[BY_NAME[epilogue.removeprefix("gated ")].transformers[0]]


def gelu_bound(isa: str) -> float:
    """Of GELU's absolute error (vec_tpl.h)."""
    return {"avx2": 5e-7, "avxvnni": 5e-7, "avx512": 3e-7, "avx512vnni": 3e-7}.get(isa, 1.1e-6)


def test_every_activation_of_the_core_has_a_name() -> None:
    assert list(BY_NAME) == list(border.ACTIVATIONS)
    assert sorted(border.ACTIVATIONS.values()) == list(range(len(BY_NAME)))


@pytest.mark.parametrize("epilogue", [name for name in EPILOGUES if name != "linear"])
def test_gemm_activations(isa: str, epilogue: str) -> None:
    kernels = Kernels(isa)
    rng = np.random.default_rng(3)
    gated = epilogue not in ("relu", "gelu")
    activation = act_of(epilogue)
    slope = STEEPEST.get(epilogue.removeprefix("gated "), 1.13)
    for m, n, k in tile_edges(isa):
        rows = 2 * n if gated else n
        a, w, bias = normal(rng, m, k), normal(rng, rows, k), normal(rng, rows)
        out = Output(m, n)
        packed = PackedMatrix(isa, w, gated)
        kernels.gemm(guarded(a), packed, out.window, bias=None if gated else vector(bias), epilogue=epilogue)
        exact = a.astype(np.float64) @ w.T.astype(np.float64)
        scale = np.abs(a).astype(np.float64) @ np.abs(w).T.astype(np.float64)
        if gated:
            up, gate = exact[:, :n], exact[:, n:]
            expected = activation(up) * gate
            # |act'| is at most the slope; act's own error is relative to |up| where that is large
            error = (k + 2) * EPS * (slope * scale[:, :n] * np.abs(gate) + scale[:, n:] * np.abs(activation(up)))
            own = np.abs(gate) * (gelu_bound(isa) + 8 * EPS * np.maximum(np.abs(up), np.abs(activation(up))))
        else:
            exact, scale = exact + bias, scale + np.abs(bias)
            expected = activation(exact)
            error, own = 1.13 * (k + 2) * EPS * scale, gelu_bound(isa) + 8 * EPS * np.abs(exact)
        if epilogue == "relu":
            own = 0.0
        assert (np.abs(out.check() - expected) <= error + own).all(), (m, n, k)


def through_epilogue(isa: str, x: np.ndarray, epilogue: str) -> np.ndarray:
    """An activation of each x, by way of a product with one."""
    gated = epilogue not in ("relu", "gelu")
    w = np.zeros((2, 2), np.float32) if gated else np.ones((1, 1), np.float32)
    a = x[:, None]
    if gated:
        w[0, 0] = w[1, 1] = 1.0  # up is x, gate is 1
        a = np.stack([x, np.ones_like(x)], 1)
    out = np.empty((len(x), 1), np.float32)
    Kernels(isa).gemm(np.ascontiguousarray(a), PackedMatrix(isa, w, gated), out, epilogue=epilogue)
    return out[:, 0]


def test_gelu_is_the_exact_one_everywhere(isa: str) -> None:
    magnitudes = np.concatenate([np.linspace(0, 9, 200_003), 10.0 ** np.linspace(-38, 30, 2_001)])
    x = np.concatenate([magnitudes, -magnitudes]).astype(np.float32)
    error = np.abs(through_epilogue(isa, x, "gelu") - reference.gelu_erf(x))
    assert error[np.abs(x) <= 9].max() <= gelu_bound(isa)
    assert (error <= gelu_bound(isa) + 2 * EPS * np.abs(x)).all()
    far = np.array([-6.0, -50.0, -1e30, 6.0, 50.0, 1e30], np.float32)
    np.testing.assert_array_equal(through_epilogue(isa, far, "gelu"), np.maximum(far, 0.0))
    assert not np.isfinite(through_epilogue(isa, np.array([np.inf], np.float32), "gelu")).any()
    assert np.isnan(through_epilogue(isa, np.array([-np.inf], np.float32), "gelu")).all()


def test_silu_is_right_everywhere(isa: str) -> None:
    x = np.concatenate([np.linspace(-87, 87, 200_003), [-1e30, -200.0, 200.0, 1e30]]).astype(np.float32)
    exact = reference.silu(x)
    np.testing.assert_allclose(through_epilogue(isa, x, "swiglu"), exact, rtol=8 * EPS, atol=1e-7)


@pytest.mark.parametrize("name", BY_NAME)
def test_every_activation_is_right_everywhere(isa: str, name: str) -> None:
    x = np.concatenate([np.linspace(-87, 87, 200_003), np.linspace(-7, 7, 20_001), [0.0, -0.0, 200.0, 1e10]])
    x = np.concatenate([x, -(10.0 ** np.linspace(-30, 10, 401))]).astype(np.float32)
    error = np.abs(through_epilogue(isa, x, f"gated {name}") - reference.ACTIVATIONS[BY_NAME[name].transformers[0]](x))
    exact = np.abs(act_of(f"gated {name}")(x))
    bound = gelu_bound(isa) if name in ("gelu", "gelu_clipped") else 5e-7
    assert (error <= bound + 8 * EPS * exact).all(), x[np.argmax(error - 8 * EPS * exact)]


@pytest.mark.parametrize("name", BY_NAME)
def test_an_activation_of_nan_is_nan(isa: str, name: str) -> None:
    x = np.array([1.0, np.nan, -1.0], np.float32)
    assert np.isnan(through_epilogue(isa, x, f"gated {name}")).tolist() == [False, True, False]


@pytest.mark.parametrize("with_bias", [False, True])
def test_layer_norm(isa: str, with_bias: bool) -> None:
    rng = np.random.default_rng(4)
    for rows, d in [(1, 1), (3, 7), (2, 16), (5, 31), (4, 33), (7, 64), (3, 127), (2, 1024), (2, 1031), (9, 31)]:
        x = normal(rng, rows, d) * 3 + normal(rng, rows, 1) * 10
        weight, bias = normal(rng, d), normal(rng, d)
        out = Output(rows, d)
        Kernels(isa).layer_norm(guarded(x), vector(weight), 1e-5, out.window, bias=vector(bias) if with_bias else None)
        exact = reference.layer_norm(x, weight, bias if with_bias else 0.0, 1e-5)
        # x - mean loses what the mean's size costs, and the scale magnifies it
        loss = np.abs(x).max(-1, keepdims=True) / np.sqrt(x.astype(np.float64).var(-1, keepdims=True) + 1e-5)
        bound = (d / 8 + 8) * EPS * (loss * np.abs(weight) + np.abs(exact) + np.abs(bias))
        assert (np.abs(out.check() - exact) <= bound).all(), (rows, d)


def test_layer_norm_of_a_constant_row_is_its_bias(isa: str) -> None:
    x, bias = np.full((1, 37), 3.0, np.float32), np.arange(37, dtype=np.float32)
    out = np.empty_like(x)
    Kernels(isa).layer_norm(x, np.ones(37, np.float32), 1e-5, out, bias=bias)
    np.testing.assert_array_equal(out[0], bias)


def exact_attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, base: float | None, window: int) -> np.ndarray:
    """[n_queries, d_head] of one head."""
    q, k, v = (x.astype(np.float64)[:, None, :] for x in (q, k, v))
    if base is not None:
        q, k = reference.rope(q, base), reference.rope(k, base)
    return reference.attention(q, k, v, window if window >= 0 else None)


@pytest.mark.parametrize(
    ("n_queries", "n_keys", "d_head", "base", "window"),
    [
        (1, 1, 64, 10000.0, -1),
        (7, 7, 64, 160000.0, 64),
        (65, 65, 64, 10000.0, 64),
        (66, 66, 64, 10000.0, 64),
        (129, 129, 64, 10000.0, 64),
        (200, 200, 64, 160000.0, -1),
        (200, 200, 32, 10000.0, 3),
        (40, 40, 2, 10000.0, 0),
        (33, 33, 6, 100.0, 5),
        (31, 31, 48, 10000.0, 16),
        (50, 50, 96, 10000.0, -1),
        (9, 200, 64, None, -1),
        (1, 97, 33, None, -1),
        (12, 32, 128, None, -1),
        (1, 1, 2, None, -1),
        (3, 3, 64, None, -1),
        (5, 5, 6, None, -1),
        (40, 8, 33, None, -1),
        (8, 9, 96, None, -1),
    ],
)
def test_attention(isa: str, n_queries: int, n_keys: int, d_head: int, base: float | None, window: int) -> None:
    rng = np.random.default_rng(5)
    q, k, v = normal(rng, n_queries, d_head) * 2, normal(rng, n_keys, d_head) * 2, normal(rng, n_keys, d_head)
    scale = 1 / math.sqrt(d_head)
    cos = sin = None
    if base is not None:
        frequency = base ** -(np.arange(0, d_head, 2) / d_head)
        angles = np.arange(n_keys)[:, None] * frequency
        cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    out = Output(n_queries, d_head)
    Kernels(isa).attention(guarded(q), guarded(k), guarded(v), out.window, cos=cos, sin=sin, window=window, scale=scale)
    exact = exact_attention(q, k, v, base, window)
    # a score is off by its sum's rounding; softmax turns that into the same relative error, PV adds its own
    reach = np.abs(q).astype(np.float64).sum(-1, keepdims=True) * np.abs(k).max() * scale
    bound = ((d_head + 16) * EPS * reach + (n_keys + 16) * EPS) * np.abs(v).max()
    assert (np.abs(out.check() - exact) <= bound).all()


def test_attention_over_any_number_of_keys(isa: str) -> None:
    """Keys end in every place of a vector and a panel, and windows begin in every one."""
    rng = np.random.default_rng(12)
    rows = normal(rng, 110, 18)
    for n in range(1, 111):
        for window in (-1, n // 3):
            q, k, v = (rows[:n, i : i + 6] for i in (0, 6, 12))
            out = Output(n, 6)
            Kernels(isa).attention(guarded(q), guarded(k), guarded(v), out.window, window=window, scale=6**-0.5)
            error = np.abs(out.check() - exact_attention(q, k, v, None, window))
            reach = np.abs(q).astype(np.float64).sum(-1, keepdims=True) * np.abs(k).max()
            bound = ((6 + 16) * EPS * reach * 6**-0.5 + (n + 16) * EPS) * np.abs(v).max()
            assert (error <= bound).all(), (n, window)


def test_attention_stands_scores_that_overflow_a_plain_exp(isa: str) -> None:
    rng = np.random.default_rng(6)
    q, k, v = normal(rng, 20, 64) * 100, normal(rng, 20, 64) * 100, normal(rng, 20, 64)
    out = np.empty((20, 64), np.float32)
    Kernels(isa).attention(q, k, v, out, scale=1.0)
    winner = (q.astype(np.float64) @ k.T.astype(np.float64)).argmax(-1)
    np.testing.assert_allclose(out, v[winner], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("fault", [np.nan, np.inf])
@pytest.mark.parametrize("where", ["q", "k"])
def test_attention_shows_faulty_scores(isa: str, where: str, fault: float) -> None:
    """A softmax over a NaN or an infinity gives NaN, never weights that look like any others."""
    rng = np.random.default_rng(8)
    for n in (1, 5, 8, 9, 20, 41):
        rows = {name: np.abs(normal(rng, n, 16)) for name in ("q", "k", "v")}
        rows[where][n // 2, 3] = fault
        out = np.zeros((n, 16), np.float32)
        Kernels(isa).attention(rows["q"], rows["k"], rows["v"], out)
        faulty = np.arange(n) == n // 2 if where == "q" else np.ones(n, bool)  # a key is in every row's softmax
        assert np.isnan(out[faulty]).all()
        assert np.isfinite(out[~faulty]).all()


@pytest.mark.parametrize(
    ("markers", "prefix", "n", "window"),
    [
        ((3,), 8, 20, -1),
        ((3, 9), 12, 12, 2),
        ((5, 6, 30), 41, 97, 7),
        ((5, 6, 30), 41, 38, 7),
        ((2, 20, 38, 56, 74), 93, 200, 16),
        ((2, 20, 38, 56, 74), 93, 200, 0),
        ((40, 50, 90), 120, 150, 64),
        ((1, 2), 4, 5, 100),
    ],
)
def test_attention_among_options_in_parallel(
    isa: str, markers: tuple[int, ...], prefix: int, n: int, window: int
) -> None:
    rng = np.random.default_rng(10)
    position, option = (x.astype(np.int32) for x in reference.parallel_layout(markers, prefix, n))
    for d_head in (6, 64):
        q, k, v = (normal(rng, n, d_head) for _ in range(3))
        angles = np.arange(n)[:, None] * 10000.0 ** (-np.arange(d_head // 2) * 2 / d_head)
        cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
        out = Output(n, d_head)
        Kernels(isa).attention(
            guarded(q), guarded(k), guarded(v), out.window, cos=cos, sin=sin, window=window, scale=d_head**-0.5,
            position=position, option=option,
        )  # fmt: skip
        turned = [reference.rope(x[:, None, :], 10000.0, position) for x in (q, k)]
        layout = position.astype(np.int64), option.astype(np.int64)
        exact = reference.attention(*turned, v[:, None, :], window if window >= 0 else None, layout=layout)
        assert np.abs(out.check() - exact).max() <= 2e-5 * np.abs(v).max()


@pytest.mark.parametrize("epilogue", ["linear", "relu", "gelu", "geglu", "swiglu"])
def test_gemm_shows_nan(isa: str, epilogue: str) -> None:
    rng = np.random.default_rng(9)
    gated = epilogue in ("geglu", "swiglu")
    a, w = normal(rng, 5, 9), normal(rng, 12, 9)
    a[2, 4] = np.nan
    out = np.zeros((5, 6 if gated else 12), np.float32)
    Kernels(isa).gemm(a, PackedMatrix(isa, w, gated), out, epilogue=epilogue)
    assert np.isnan(out[2]).all()
    assert np.isfinite(np.delete(out, 2, 0)).all()


@pytest.mark.parametrize(("k", "int8"), [(77, False), (2100, False), (77, True)])
@pytest.mark.parametrize("epilogue", ["linear", "gelu", "geglu", "swiglu"])
def test_rows_have_the_same_bits_wherever_they_stand(isa: str, k: int, int8: bool, epilogue: str) -> None:
    """In tiles of all heights, of which whole ones may finish an activation by code of their own."""
    rng = np.random.default_rng(7)
    kernels, gated = Kernels(isa), epilogue in ("geglu", "swiglu")
    a, packed = normal(rng, 41, k), PackedMatrix(isa, normal(rng, 100 if gated else 50, k), gated, int8=int8)
    together = np.empty((41, 50), np.float32)
    kernels.gemm(a, packed, together, epilogue=epilogue)
    for i in range(41):
        alone = np.empty((1, 50), np.float32)
        kernels.gemm(a[i : i + 1], packed, alone, epilogue=epilogue)
        np.testing.assert_array_equal(alone[0], together[i])


@pytest.mark.parametrize("d", [7, 64, 100])
def test_norms_and_queries_have_the_same_bits_wherever_they_stand(isa: str, d: int) -> None:
    rng = np.random.default_rng(13)
    kernels = Kernels(isa)
    x, weight, keys = normal(rng, 41, d), normal(rng, d), normal(rng, 75, d)
    runs = (
        lambda rows, out: kernels.layer_norm(rows, weight, 1e-5, out),
        lambda rows, out: kernels.attention(rows, keys, keys, out),
    )
    for run in runs:
        together, alone = np.empty_like(x), np.empty_like(x)
        run(x, together)
        for i in range(41):
            run(x[i : i + 1], alone[i : i + 1])
        np.testing.assert_array_equal(alone, together)


def test_an_unknown_instruction_set_is_refused() -> None:
    with pytest.raises(IsaError, match="sse9"):
        Kernels("sse9")
    assert not border.isa_supported("sse9")


def test_widening_takes_every_half(isa: str) -> None:
    half = np.arange(65536, dtype=np.uint16)
    out = np.empty(65536, np.float32)
    Kernels(isa).widen_f16(half, out)
    np.testing.assert_array_equal(out, half.view(np.float16).astype(np.float32))


def test_the_bindings_refuse_what_a_kernel_would_overrun(isa: str) -> None:
    kernels = Kernels(isa)
    rows, vec = np.zeros((4, 8), np.float32), np.zeros(8, np.float32)
    packed, gated = PackedMatrix(isa, np.zeros((6, 8), np.float32)), PackedMatrix(isa, rows, True)
    out = np.zeros((4, 6), np.float32)
    faulty = [
        lambda: kernels.gemm(rows[:, :3], packed, out),
        lambda: kernels.gemm(rows, packed, out[:3]),
        lambda: kernels.gemm(rows, packed, np.zeros((4, 12), np.float32)[:, ::2]),
        lambda: kernels.gemm(rows, packed, out, bias=vec),
        lambda: kernels.gemm(rows, packed, out, residual=out[:1]),
        lambda: kernels.gemm(rows, packed, out, epilogue="geglu"),
        lambda: kernels.gemm(rows, gated, out[:, :2]),
        lambda: kernels.gemm(rows, gated, out[:, :2], epilogue="geglu", bias=vec[:2]),
        lambda: PackedMatrix(isa, rows[:3], True),
        lambda: PackedMatrix(isa, rows[:0]),
        lambda: kernels.layer_norm(rows, vec[:1], 1e-5, rows.copy()),
        lambda: kernels.layer_norm(rows, vec, 1e-5, rows[:2].copy()),
        lambda: kernels.layer_norm(rows, vec, 1e-5, rows.copy(), bias=vec[:2]),
        lambda: kernels.attention(rows, rows, rows, rows.copy(), cos=rows[:, :4].copy()),
        lambda: kernels.attention(rows, rows, rows, rows.copy(), cos=rows[:2, :4].copy(), sin=rows[:2, :4].copy()),
        lambda: kernels.attention(rows, rows[:3], rows, rows.copy()),
        lambda: kernels.attention(rows, rows[:3], rows[:3], rows.copy(), window=2),
        lambda: kernels.widen_f16(np.zeros(4, np.uint16), vec),
    ]
    for number, call in enumerate(faulty):
        try:
            call()
        except ValueError:
            continue
        pytest.fail(f"call {number} was accepted")
