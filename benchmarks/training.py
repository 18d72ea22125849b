"""How fast s1 and s2 of one size learn the same rows, in turn: examples (one question about one state) a second.

    python benchmarks/training.py [--size pico] [--states 2000] [--rounds 3] [--threads 1]

Two sets of rows: the drone's three questions about states of flights (about twenty tokens), and twenty questions of
four options about the same states. A round trains each model for one pass over the rows, from new weights, in batches
of the default size; the time is that of the updates alone, as the report has it. Needs torch.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from skyinfer.games.pilots import TeacherPilot
from skyinfer.games.s1_pico import Visits, collect
from skyinfer.train import train_rows

TWENTY: dict[str, Any] = {
    f"height {i}": {
        "type": "choice",
        "instructions": f"How high is the drone above {4 * i} units?",
        "criteria": {"below": "not above it", "near": "less than 8", "above": "less than 16", "far": "more than that"},
    }
    for i in range(20)
}


def drone(n: int) -> list[dict[str, Any]]:
    visits = Visits()
    collect(TeacherPilot(), visits, n, random.Random(0))
    return list(visits.rows(others_every=1))[:n]


def of_twenty(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    def answer(height: int) -> str:
        return "below" if height <= 0 else "near" if height < 8 else "above" if height < 16 else "far"

    found = []
    for row in rows:
        height = int(row["state"].split()[-1])
        answers = {name: answer(height - 4 * i) for i, name in enumerate(TWENTY)}
        found.append({"state": row["state"], "questions": TWENTY, "answers": answers})
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="pico")
    parser.add_argument("--states", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    rows = drone(options.states)
    print(f"{options.size}, {len(rows)} states, threads {options.threads}")
    for name, some in (("three questions", rows), ("twenty questions of four options", of_twenty(rows))):
        taken: dict[str, list[float]] = {"s1": [], "s2": []}
        examples = 0
        for number in range(options.rounds):
            for architecture, seconds in taken.items():
                with tempfile.TemporaryDirectory() as scratch:
                    report = train_rows(
                        some, Path(scratch, "model"), size=options.size, architecture=architecture, epochs=1,
                        held_out=0, augment=False, threads=options.threads, seed=number, progress=False,
                    )  # fmt: skip
                seconds.append(report.seconds)
                examples = report.examples
        rates = {architecture: examples / max(1e-3, median(seconds)) for architecture, seconds in taken.items()}
        for architecture, rate in rates.items():
            print(f"{name:34} {architecture}  {rate:>9,.0f} examples/s  {rate / rates['s1']:5.1f} x")


if __name__ == "__main__":
    main()
