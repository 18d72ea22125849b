"""What those who time kernels alone share: arrays as a plan keeps them, and rates against the core's measured peak."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from time import perf_counter
from typing import NamedTuple

import numpy as np

from skyinfer import _core


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


def share_of_peak(
    kernels: _core.Kernels, work: Callable[[], object], flops: int, rounds: int = 31
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
