"""How even a game loop runs: the distribution of single calls, which means and medians hide.

    python benchmarks/latency.py MODEL [--steps 10000] [--threads 1] [--isa NAME]

Times `decide` and a compiled `step` in turn, about the states of a flight, and prints median, 99th percentile and worst
of each.
"""

from __future__ import annotations

import argparse
import gc
import warnings
from itertools import cycle, islice
from time import perf_counter_ns

import numpy as np
from requests_of import DRONE, FLIGHT

import skyinfer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--isa")
    options = parser.parse_args()
    warnings.simplefilter("ignore", RuntimeWarning)
    model = skyinfer.load(options.model, threads=options.threads, isa=options.isa)
    questions = DRONE["questions"]
    compiled = model.compile(questions)
    calls = {"decide": lambda state: model.decide(state, questions), "step": compiled.step}
    taken: dict[str, list[int]] = {name: [] for name in calls}
    gc.freeze()
    for state in islice(cycle(FLIGHT), options.steps):
        for name, call in calls.items():
            start = perf_counter_ns()
            call(state)
            taken[name].append(perf_counter_ns() - start)
    print(f"{model.isa}, {model.threads} thread{'s' * (model.threads > 1)}, {options.steps} calls of each, in turn")
    print(f"{'':<8} {'median us':>10} {'p99 us':>10} {'worst us':>10} {'p99/median':>11}")
    for name, nanoseconds in taken.items():
        median, p99, worst = np.percentile(nanoseconds, [50, 99, 100]) / 1000
        print(f"{name:<8} {median:>10.1f} {p99:>10.1f} {worst:>10.1f} {p99 / median:>11.2f}")
    print(f"step is {np.median(taken['decide']) / np.median(taken['step']):.3f} x as fast as decide")


if __name__ == "__main__":
    main()
