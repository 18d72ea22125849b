"""s2 in turn with s1 of the same sizes, one thread: every speed that s2 is for.

    python benchmarks/s2.py [--sizes shipped pico nano] [--rounds 300] [--steps 10000] [--isa NAME]

"shipped" is s1-pico against s2-pico; others are painted (tests/checkpoints.py) with one tokenizer, and weights do not
change a pass's time. In each round every call is timed once, in an order that is drawn anew. Printed are medians and
first deciles, and how many times as fast s2 is by the latter, which other load on the machine changes least. Beside the
99th percentile of s2's steps is that of a sum that takes as long, which is the machine's own.
"""

from __future__ import annotations

import argparse
import gc
import random
import sys
import tempfile
import warnings
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import numpy as np
from requests_of import DRONE, FLIGHT

import skyinfer

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from checkpoints import SIZES, paint

SHIPPED = "shipped"
_LABELS = (
    "answer",
    "ignore",
    "escalate",
    "close",
    "wait",
    "retry",
    "refund",
    "ship",
    "hold",
    "check",
    "urgent",
    "billing",
)


def twenty() -> dict[str, Any]:
    """Questions of four options, no two alike, a line of text each."""
    rng = random.Random(20)
    return {
        f"question {i}": {
            "type": "choice",
            "instructions": f"What should happen with the {rng.choice(_LABELS)} of order {i}?",
            "criteria": {label: f"it is about {rng.choice(_LABELS)}" for label in rng.sample(_LABELS, 4)},
        }
        for i in range(20)
    }


def states_of(model: skyinfer.Model, n_tokens: int) -> list[str]:
    """States of about so many tokens: the flight's, one behind another."""
    found, frames = [], cycle(FLIGHT)
    while len(found) < 64:
        text = next(frames)
        while len(model.engine.builder.state(text).ids) < n_tokens:
            text = f"{text} {next(frames)}"
        words = text.split()
        while len(model.engine.builder.state(" ".join(words)).ids) > n_tokens:
            words.pop()
        found.append(" ".join(words))
    return found


Call = Callable[[int], Any]


def in_turn(calls: dict[str, Call], rounds: int) -> dict[str, np.ndarray]:
    """Microseconds of every call in each round, after a tenth of them to warm up."""
    rng, names = random.Random(0), list(calls)
    warm_up = max(2, rounds // 10)
    taken: dict[str, list[float]] = {name: [] for name in names}
    for number in range(warm_up + rounds):
        for name in rng.sample(names, len(names)):
            start = perf_counter_ns()
            calls[name](number)
            elapsed = (perf_counter_ns() - start) / 1000
            if number >= warm_up:
                taken[name].append(elapsed)
    return {name: np.array(times) for name, times in taken.items()}


def step_of(model: skyinfer.Model, questions: dict[str, Any], states: list[str]) -> Call:
    compiled = model.compile(questions)
    return lambda number: compiled.step(states[number % len(states)])


def sum_of(microseconds: float) -> Call:
    """A sum that takes about so long and always does the same: how evenly this machine runs anything."""
    start = perf_counter_ns()
    sum(range(100_000))
    numbers = range(round(100_000 * microseconds * 1000 / (perf_counter_ns() - start)))
    return lambda number: sum(numbers)


def models_of(size: str, folder: Path, isa: str | None) -> dict[str, skyinfer.Model]:
    """One of each architecture."""
    found = {}
    for name in ("s1", "s2"):
        path = f"{name}-pico" if size == SHIPPED else paint(folder / size / name, **SIZES[size], architecture=name)
        found[name] = skyinfer.load(path, threads=1, isa=isa)
    return found


def rows_of(models: dict[str, skyinfer.Model]) -> dict[str, dict[str, Call]]:
    """What is timed of one size: a call for each architecture, given the number of the round."""
    questions = DRONE["questions"]
    rows: dict[str, dict[str, Call]] = {}

    def decide(model: skyinfer.Model) -> Call:
        return lambda number: model.decide(FLIGHT[number % len(FLIGHT)], questions)

    def arrays(model: skyinfer.Model) -> Call:
        compiled, states = model.compile(questions), FLIGHT[:64]
        return lambda number: compiled.arrays(states, threads=1)

    short, long = (states_of(models["s2"], n) for n in (20, 200))
    for name, make in (
        ("three drone questions, step", lambda model: step_of(model, questions, FLIGHT)),
        ("three drone questions, decide", decide),
        ("twenty questions of four options, 20 tokens, step", lambda model: step_of(model, twenty(), short)),
        ("twenty questions of four options, 200 tokens, step", lambda model: step_of(model, twenty(), long)),
        ("64 states x 3 questions, arrays", arrays),
    ):
        rows[name] = {architecture: make(model) for architecture, model in models.items()}
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", choices=[SHIPPED, *SIZES], default=[SHIPPED, "pico", "nano"])
    parser.add_argument("--rounds", type=int, default=300, help="of each call that is timed")
    parser.add_argument("--steps", type=int, default=10_000, help="single calls whose 99th percentile is printed")
    parser.add_argument("--isa")
    options = parser.parse_args()
    warnings.simplefilter("ignore", RuntimeWarning)
    print(f"{'':<8}{'':<52} {'s1 us':>18} {'s2 us':>18} {'s2 is':>8}")
    print(f"{'size':<8}{'median and first decile of each':<52}")
    with tempfile.TemporaryDirectory() as folder:
        for size in options.sizes:
            models = models_of(size, Path(folder), options.isa)
            gc.freeze()
            for row, calls in rows_of(models).items():
                taken = in_turn(calls, options.rounds)
                middle = {name: (np.median(times), np.percentile(times, 10)) for name, times in taken.items()}
                shown = " ".join(f"{median:>9.1f} {first:>8.1f}" for median, first in middle.values())
                print(f"{size:<8}{row:<52} {shown} {middle['s1'][1] / middle['s2'][1]:>6.1f} x")
            step = step_of(models["s2"], DRONE["questions"], FLIGHT)
            median = float(np.median(in_turn({"step": step}, 1000)["step"]))
            taken = in_turn({"steps of s2": step, "sums of as long": sum_of(median)}, options.steps)
            for what, times in taken.items():
                median, p99, worst = np.percentile(times, [50, 99, 100])
                print(f"{size:<8}{options.steps} {what}: median {median:.1f}, worst {worst:.1f}")
                print(f"{'':<8}99th percentile {p99:.1f}, {p99 / median:.2f} x the median")


if __name__ == "__main__":
    main()
