"""What those who time kernels alone share: arrays as a plan keeps them, calls, and rates against the measured peak."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import accumulate
from statistics import median
from time import perf_counter
from typing import NamedTuple

import numpy as np

from skyinfer.core import kernels as core_kernels


class Rate(NamedTuple):
    """One line of the closing table. `share` is of the core's measured peak."""

    what: str
    gflops: float
    share: float
    error: float


def rows(rng: np.random.Generator, m: int, n: int) -> np.ndarray:
    """[m, n] as a plan keeps it: rows apart by other than a multiple of 1 KB, on huge pages, for which numpy asks where
    it allocates 4 MB or more without clearing them."""
    stride = (n + 15) // 16 * 16
    stride += 16 if stride % 256 == 0 else 0
    whole = np.empty((max(m, (8 << 20) // (4 * stride)), stride), np.float32)
    whole[:] = 0.0
    whole[:m, :n] = rng.standard_normal((m, n))
    return whole[:m, :n]


def seen_pairs(n: int, window: int) -> int:
    """Pairs of a query and a key that it sees, in a sequence of n tokens; all where the window is negative."""
    return n * n if window < 0 else sum(min(i + window, n - 1) - max(i - window, 0) + 1 for i in range(n))


class Operation(NamedTuple):
    """One kernel's call, with what it is a part of."""

    kind: str
    flops: int
    run: Callable[[], None]


class Kernels:
    """Makes operations. They share arrays [tokens, width] as those of a pass do; weights they do not share."""

    def __init__(self, isa: str, lengths: list[int], weights: str = "f32") -> None:
        """`weights`: a type of `Core.parameters`, that of all products but where another is asked for."""
        self.core, self.lengths, self.rng = core_kernels.Kernels(isa), lengths, np.random.default_rng(0)
        self.weights = weights
        self.arrays: dict[tuple[str, int], np.ndarray] = {}

    def array(self, use: str, width: int) -> np.ndarray:
        if (use, width) not in self.arrays:
            self.arrays[use, width] = rows(self.rng, sum(self.lengths), width)
        return self.arrays[use, width]

    def product(
        self,
        kind: str,
        m: int,
        n: int,
        k: int,
        epilogue: str = "linear",
        *,
        bias: bool = False,
        residual: bool = False,
        weights: str | None = None,
    ) -> Operation:
        weights = weights or self.weights
        gated = epilogue in ("geglu", "swiglu")
        spread = np.float32(np.sqrt(12 / k))  # gives outputs of about 1, on which softmax does what it does in a pass
        w = core_kernels.PackedMatrix(
            self.core.isa, self.weights_of(n, k, spread, weights), gated, int8=weights == "int8"
        )
        a, out = self.array("in", k)[:m], self.array("out", n // 2 if gated else n)[:m]
        b, x = np.ones(n, np.float32) if bias else None, self.array("x", n)[:m] if residual else None
        run = partial(self.core.gemm, a, w, out, bias=b, residual=x, epilogue=epilogue)
        return Operation(kind, 2 * m * n * k, run)

    def weights_of(self, n: int, k: int, spread: np.float32, dtype: str) -> np.ndarray:
        values = (self.rng.random((n, k), np.float32) - np.float32(0.5)) * spread
        if dtype == "bf16":
            return (values.view(np.uint32) >> 16).astype(np.uint16)
        return values.astype(np.float16 if dtype == "f16" else np.float32)

    def norm(self, m: int, d: int) -> Operation:
        x, out, weight = self.array("x", d)[:m], self.array("in", d)[:m], np.ones(d, np.float32)
        return Operation("norms", 0, partial(self.core.layer_norm, x, weight, 1e-5, out))

    def attention(
        self, kind: str, d: int, n_heads: int, asking: list[int], window: int = -1, rope: bool = False
    ) -> Iterator[Operation]:
        """Every head of every sequence; `asking` counts the rows that ask."""
        qkv, out, d_head = self.array("out", 3 * d), self.array("in", d), d // n_heads
        for end, n_keys, n_queries in zip(accumulate(self.lengths), self.lengths, asking, strict=True):
            angles = np.outer(np.arange(n_keys), 0.1 ** np.arange(d_head // 2)).astype(np.float32)
            turns = {"cos": np.cos(angles), "sin": np.sin(angles)} if rope else {}
            flops = 4 * d_head * (seen_pairs(n_keys, window) if window >= 0 else n_queries * n_keys)
            keys, queries = slice(end - n_keys, end), slice(end - n_keys, end - n_keys + n_queries)
            for head in range(0, d, d_head):
                q, k, v = (qkv[keys, part + head : part + head + d_head] for part in (0, d, 2 * d))
                arrays = (q[:n_queries], k, v, out[queries, head : head + d_head])
                run = partial(self.core.attention, *arrays, **turns, window=window, scale=d_head**-0.5)
                yield Operation(kind, flops, run)


def share_of_peak(
    kernels: core_kernels.Kernels, work: Callable[[], object], flops: int, rounds: int = 31
) -> tuple[float, float]:
    """(GFLOP/s, share of the peak), medians over rounds that time the peak and the work in turn.

    On a machine whose clock moves, only a ratio of neighbours means something.
    """
    _, columns = kernels.tile
    peak_rounds = max(1, flops // (2 * kernels.tile[0] * columns))
    work()
    rates, shares = [], []
    for _ in range(rounds):
        start = perf_counter()
        peak_flops = kernels.fma_peak(peak_rounds)
        middle = perf_counter()
        work()
        end = perf_counter()
        rates.append(flops / (end - middle))
        shares.append(flops / (end - middle) / (peak_flops / (middle - start)))
    return median(rates) / 1e9, median(shares)
