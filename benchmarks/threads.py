"""What a limit of threads costs: CPU time of a pass for each limit, and how many threads a model keeps.

    python benchmarks/threads.py MODEL [--limits 2 8 32 128] [--rounds 20] [--callers 16]

Wall and CPU time are medians of calls in turn, in milliseconds for one call of `decide` about the drone's questions;
the ratio is CPU time against the first limit. The callers' threads ask at once, with a limit of 32. Needs Linux, which
tells how many threads there are, and a model of 4 million parameters or so: steps of smaller ones are not shared.
"""

from __future__ import annotations

import argparse
import os
import threading
import time
import warnings
from statistics import median

from requests_of import DRONE, FLIGHT

import skyinfer
from skyinfer.runtime.cpus import available_cpus


def n_threads() -> int:
    return len(os.listdir("/proc/self/task"))


def cost(path: str, limits: list[int], rounds: int, calls: int) -> None:
    models = {limit: skyinfer.load(path, threads=limit) for limit in limits}
    wall: dict[int, list[float]] = {limit: [] for limit in limits}
    cpu: dict[int, list[float]] = {limit: [] for limit in limits}
    for round_number in range(rounds + 1):
        for limit, model in models.items():
            start, cpu_start = time.perf_counter(), time.process_time()
            for state in FLIGHT[:calls]:
                model.decide(state, DRONE["questions"])
            if round_number:  # the first one makes buffers
                wall[limit].append((time.perf_counter() - start) / calls)
                cpu[limit].append((time.process_time() - cpu_start) / calls)
    print(f"{'limit':>6} {'wall ms':>9} {'CPU ms':>9} {'ratio':>6}")
    for limit in limits:
        ratio = median(cpu[limit]) / median(cpu[limits[0]])
        print(f"{limit:>6} {1e3 * median(wall[limit]):>9.2f} {1e3 * median(cpu[limit]):>9.2f} {ratio:>6.2f}")


def keep(path: str, callers: int, limit: int, calls: int) -> None:
    before = n_threads()
    model = skyinfer.load(path, threads=limit)
    ready = threading.Barrier(callers)

    def call() -> None:
        ready.wait()
        for state in FLIGHT[:calls]:
            model.decide(state, DRONE["questions"])

    threads = [threading.Thread(target=call) for _ in range(callers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    time.sleep(0.1)  # the callers' own are still ending
    after, start = n_threads() - before, time.monotonic()
    while n_threads() > before and time.monotonic() - start < 30:
        time.sleep(0.05)
    idle = time.monotonic() - start
    print(f"{callers} callers at once, a limit of {limit}: {after} threads more than before they began,", end=" ")
    print(f"{n_threads() - before} of them after {idle:.1f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", metavar="MODEL")
    parser.add_argument("--limits", type=int, nargs="+", default=[2, 8, 32, 128])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--calls", type=int, default=10, help="of each round and caller")
    parser.add_argument("--callers", type=int, default=16)
    options = parser.parse_args()
    warnings.simplefilter("ignore", RuntimeWarning)  # of temperatures that are clamped
    print(f"{options.model}, {available_cpus()} CPUs")
    cost(options.model, options.limits, options.rounds, options.calls)
    keep(options.model, options.callers, 32, options.calls)


if __name__ == "__main__":
    main()
