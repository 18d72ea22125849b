"""What a forward pass loses to a second process that streams through the caches and memory that both use.

    python benchmarks/beside.py MODEL... [--rounds 20] [--seconds 0.3] [--isa NAME]

One thread, the drone request, on one CPU; the other process copies 64 MB arrays on another. Spells of quiet and of
copying take turns. Printed are median and first decile of the passes of each kind, busy by quiet, and which share of
the core's peak a pass reaches: the peak is measured around it, so a slower clock does not count against the pass. FLOP
as profile_forward.py counts them.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import warnings
from multiprocessing.synchronize import Event
from statistics import median, quantiles
from time import perf_counter, sleep

import numpy as np
from kernel_runs import Kernels
from profile_forward import is_tabulated, operations
from requests_of import DRONE, forward

import skyinfer
from skyinfer.core import kernels as core_kernels

_STREAMED_BYTES = 64 << 20  # of each array: larger than the cache that cores share


def _pin(cpu: int) -> None:
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {cpu})


def _stream(go: Event, cpu: int) -> None:
    """Copies while `go` is set."""
    _pin(cpu)
    arrays = [np.ones(_STREAMED_BYTES // 8) for _ in range(2)]
    while True:
        go.wait()
        np.copyto(arrays[0], arrays[1])
        arrays.reverse()


def flops_of(model: skyinfer.Model) -> int:
    sequences = model.encode(DRONE["state"], DRONE["questions"]).values()
    lengths, markers = [len(one.ids) for one in sequences], [one.options for one in sequences]
    steps = operations(model.config, is_tabulated(model.config, "exact"), Kernels(model.isa, lengths), markers)
    return sum(one.flops for one in steps)


def measure(path: str, rounds: int, seconds: float, isa: str | None, go: Event) -> None:
    model = skyinfer.load(path, isa=isa, threads=1)
    plan, asks = forward(model)
    core, flops = core_kernels.Kernels(model.isa), flops_of(model)
    peak_rounds = min(flops, 20_000_000) // (4 * core.tile[0] * core.tile[1]) + 1
    times: tuple[list[float], list[float]] = [], []  # quiet and busy
    shares: tuple[list[float], list[float]] = [], []
    plan.run(asks)
    for spell in range(2 * rounds):
        busy = spell % 2
        (go.set if busy else go.clear)()
        sleep(0.05)  # a copy that is under way ends
        end = perf_counter() + seconds
        while True:
            start = perf_counter()
            core.fma_peak(peak_rounds)
            begin = perf_counter()
            plan.run(asks)
            done = perf_counter()
            peak_flops = 2 * core.fma_peak(peak_rounds)
            last = perf_counter()
            times[busy].append(done - begin)
            shares[busy].append(flops / (done - begin) / (peak_flops / (begin - start + last - done)))
            if last > end:
                break
    go.clear()
    weights = ", ".join(model.engine.core.parameters)
    print(f"\n{path}, {model.isa}, weights in {weights}: {len(times[0])} quiet passes, {len(times[1])} busy ones")
    print(f"{'':<14} {'quiet ms':>10} {'busy ms':>10} {'busy/quiet':>11}")
    deciles = [quantiles(one, n=10)[0] if len(one) > 1 else one[0] for one in times]
    for what, (quiet, busy_time) in (("median", map(median, times)), ("first decile", deciles)):
        print(f"{what:<14} {1e3 * quiet:>10.3f} {1e3 * busy_time:>10.3f} {busy_time / quiet:>11.2f}")
    print(f"{'of the peak':<14} {median(shares[0]):>10.1%} {median(shares[1]):>10.1%}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", metavar="MODEL")
    parser.add_argument("--rounds", type=int, default=20, help="spells of each kind, for each model")
    parser.add_argument("--seconds", type=float, default=0.3, help="that a spell takes at least")
    parser.add_argument("--isa")
    options = parser.parse_args()
    warnings.simplefilter("ignore", RuntimeWarning)  # of temperatures that are clamped
    cpus = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))
    if len(cpus) < 2:
        raise SystemExit("a second process needs a CPU of its own, and there is one")
    context = multiprocessing.get_context("spawn")
    go = context.Event()
    other = context.Process(target=_stream, args=(go, cpus[1]), daemon=True)
    other.start()
    _pin(cpus[0])
    for path in options.models:
        measure(path, options.rounds, options.seconds, options.isa, go)


if __name__ == "__main__":
    main()
