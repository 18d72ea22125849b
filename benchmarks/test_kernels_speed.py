"""Level 1: each kernel alone, on the shapes of the pico, nano and large models."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import reference
from kernel_runs import Rate, rows, seen_pairs, share_of_peak

from skyinfer.core.kernels import Kernels, PackedMatrix

# name: m, n, k, epilogue; n counts rows of the weights
PRODUCTS = {
    "pico qkv": (200, 192, 64, "linear"),
    "pico up": (200, 256, 64, "geglu"),
    "pico down": (200, 64, 128, "linear"),
    "nano qkv": (191, 768, 256, "linear"),
    "nano up": (191, 768, 256, "geglu"),
    "nano down": (191, 256, 384, "linear"),
    "large qkv": (185, 3072, 1024, "linear"),
    "large up": (185, 5248, 1024, "geglu"),
    "large down": (185, 1024, 2624, "linear"),
}
# sequence lengths, d_head, window
HEADS = {
    "pico local": (80, 64, 64),
    "large global": (62, 64, -1),
    "512 local": (512, 64, 64),
    "512 global": (512, 64, -1),
}


@pytest.mark.parametrize("shape", PRODUCTS)
def test_gemm(benchmark: Any, isa: str, shape: str, rates: list[Rate]) -> None:
    m, n, k, epilogue = PRODUCTS[shape]
    if isa == "portable" and n * k > 1 << 20:
        pytest.skip("seconds a call, and nobody's path")
    rng = np.random.default_rng(0)
    gated = epilogue == "geglu"
    kernels = Kernels(isa)
    a, weights = rows(rng, m, k), rng.standard_normal((n, k), dtype=np.float32)
    packed = PackedMatrix(isa, weights, gated)
    out = rows(rng, m, n // 2 if gated else n)
    flops = 2 * m * n * k
    repeat = max(1, 20_000_000 // flops)

    def work() -> None:
        kernels.gemm(a, packed, out, epilogue=epilogue, repeat=repeat)

    benchmark(work)
    gflops, share = share_of_peak(kernels, work, flops * repeat)
    exact = a.astype(np.float64) @ weights.T.astype(np.float64)
    if gated:
        exact = reference.gelu_erf(exact[:, : n // 2]) * exact[:, n // 2 :]
    error = float(np.abs(out - exact).max() / np.abs(exact).max())
    rates.append(Rate(f"{isa} gemm {shape} {m}x{n}x{k} {epilogue}", gflops, share, error))


@pytest.mark.parametrize("shape", HEADS)
def test_attention(benchmark: Any, isa: str, shape: str, rates: list[Rate]) -> None:
    n, d_head, window = HEADS[shape]
    rng = np.random.default_rng(0)
    kernels = Kernels(isa)
    qkv = rows(rng, n, 3 * d_head)
    q, k, v = qkv[:, :d_head], qkv[:, d_head : 2 * d_head], qkv[:, 2 * d_head :]
    angles = np.arange(n)[:, None] * 10000.0 ** -(np.arange(0, d_head, 2) / d_head)
    cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    out = rows(rng, n, d_head)

    def work() -> None:
        kernels.attention(q, k, v, out, cos=cos, sin=sin, window=window, scale=d_head**-0.5)

    benchmark(work)
    gflops, share = share_of_peak(kernels, work, 4 * seen_pairs(n, window) * d_head)
    heads = [np.asarray(x, np.float64)[:, None, :] for x in (q, k, v)]
    heads[:2] = [reference.rope(x, 10000.0) for x in heads[:2]]
    exact = reference.attention(*heads, window if window >= 0 else None)
    rates.append(Rate(f"{isa} attention {shape} {n}", gflops, share, float(np.abs(out - exact).max())))


@pytest.mark.parametrize("d", [64, 256, 1024])
def test_layer_norm(benchmark: Any, isa: str, d: int) -> None:
    rng = np.random.default_rng(0)
    x, weight = rows(rng, 200, d), np.ones(d, np.float32)
    out = rows(rng, 200, d)
    benchmark(Kernels(isa).layer_norm, x, weight, 1e-5, out)
