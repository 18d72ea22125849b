"""What answering many rows costs: arrays against a loop of `step`, two cores against one, the command against arrays.

    python benchmarks/rows.py [-m MODEL] [--states 100000] [--rounds 5] [--rows 1000000] [--mixed]

Figures are rows a second, medians over rounds in which the ways take turns. The states are all of one flight, in order
(`requests_of.py`); with --mixed they are of 1 to 40 times its length. One core: threads=1, two: threads=2; the process
itself is not pinned. The command answers three questions about --rows rows of Parquet, once; its memory is the largest
resident size, before any answer and at the end. --rows 0 leaves it out. Needs the extra `rows`, and Linux for memory.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from statistics import median

from requests_of import DRONE, flight

import skyinfer

QUESTIONS = DRONE["questions"]
_STARTED = "import resource, skyinfer, skyinfer.rows; skyinfer.load({model!r}); " + (
    "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
)


def in_process(model: skyinfer.Model, states: list[str], rounds: int) -> float:
    """Prints the ways of asking in one process; gives the rows a second of arrays on two cores."""
    one = skyinfer.load(model.path, threads=1)
    stepper, alone, both = one.compile(QUESTIONS), one.compile(QUESTIONS), model.compile(QUESTIONS)

    def stepped() -> None:
        for state in states:
            stepper.step(state)

    ways: dict[str, Callable[[], object]] = {
        "a loop of step, one core": stepped,
        "arrays, one core": lambda: alone.arrays(states, threads=1),
        "arrays, two cores": lambda: both.arrays(states, threads=2),
    }
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        for name, way in ways.items():
            start = time.perf_counter()
            way()
            if number:  # the first one makes buffers and learns words
                taken[name].append(time.perf_counter() - start)
    rates = {name: len(states) / median(some) for name, some in taken.items()}
    loop, single, double = rates.values()
    for (name, rate), ratio in zip(rates.items(), (1.0, single / loop, double / single), strict=True):
        print(f"{name:28} {rate:>10,.0f} rows/s  {ratio:5.2f} x")
    return double


def command(model: skyinfer.Model, n_rows: int, arrays: float) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    with tempfile.TemporaryDirectory() as directory:
        source, questions = Path(directory, "in.parquet"), Path(directory, "questions.json")
        pq.write_table(pa.table({"id": range(n_rows), "state": list(flight(n_rows))}), source)
        questions.write_text(json.dumps(QUESTIONS))
        code = _STARTED.format(model=str(model.path))
        started = int(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True).stdout)
        start = time.perf_counter()
        subprocess.run(
            [sys.executable, "-m", "skyinfer", "rows", source, "-q", questions, "-o", Path(directory, "out.parquet"),
             "-m", model.path], check=True, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        rate = n_rows / (time.perf_counter() - start)
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    print(f"{f'skyinfer rows, {n_rows} rows':28} {rate:>10,.0f} rows/s  {arrays / rate:5.2f} x the time of arrays")
    print(f"{'its memory':28} {peak / 1024:>10,.0f} MB, {(peak - started) / 1024:,.0f} MB more than at the start")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", metavar="MODEL")
    parser.add_argument("--states", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--mixed", action="store_true")
    options = parser.parse_args()
    warnings.simplefilter("ignore", RuntimeWarning)  # of temperatures that are clamped
    model = skyinfer.load(options.model)
    states = list(flight(options.states))
    if options.mixed:
        states = [" ".join([state] * (1 + i * 7 % 40)) for i, state in enumerate(states)]
    print(f"{model.name}, {model.isa}, {len(states)} states, {len(QUESTIONS)} questions")
    arrays = in_process(model, states, options.rounds)
    if options.rows:
        command(model, options.rows, arrays)


if __name__ == "__main__":
    main()
