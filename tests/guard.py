"""Whether a small rule that is learned from 3,000 rows holds in any order of options and keys and in either spelling of
numbers, on states that were never learned from; and how long that takes. Needs torch.

    python tests/guard.py [--architecture s1|s2] [--rows N] [--epochs N] [--seed S] [--threads N]

Exit code 1 where it holds for less than 97 (s2: 98) in 100 states in some way of writing.
"""

from __future__ import annotations

import argparse
import itertools
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import skyinfer
from skyinfer.train import train

CRITERIA = {"attack": "go for the intruder", "flee": "run away", "hide": "stay out of sight"}
ORDERS = list(itertools.permutations(CRITERIA.items()))
REQUIRED = {"s1": 0.97, "s2": 0.98}


def question(order: int) -> dict[str, Any]:
    criteria = dict(ORDERS[order % len(ORDERS)])
    return {"act": {"type": "choice", "instructions": "What does the guard do?", "criteria": criteria}}


def rule(state: dict[str, Any]) -> dict[str, Any]:
    if state["hp"] < 30:
        return {"act": "flee" if state["distance"] < 15 else "hide"}
    return {"act": "attack" if state["ammo"] > 0 and state["distance"] < 40 else "hide"}


def some_states(n: int, draw: random.Random) -> list[dict[str, Any]]:
    return [
        {"hp": draw.randint(0, 100), "distance": draw.randint(0, 60), "ammo": draw.randint(0, 12)} for _ in range(n)
    ]


def turned(state: dict[str, Any], draw: random.Random) -> dict[str, Any]:
    items = list(state.items())
    draw.shuffle(items)
    return dict(items)


def as_floats(state: dict[str, Any], draw: random.Random) -> dict[str, Any]:
    return {key: float(value) for key, value in state.items()}


def in_part(state: dict[str, Any], draw: random.Random) -> dict[str, Any]:
    return {key: float(value) if draw.random() < 0.5 else value for key, value in turned(state, draw).items()}


WAYS: dict[str, tuple[Callable[[dict[str, Any], random.Random], dict[str, Any]], bool]] = {
    "as given": (lambda state, _: state, False),
    "options in every order": (lambda state, _: state, True),
    "keys in any order": (turned, False),
    "57.0 for 57": (as_floats, False),
    "all of it, spellings mixed": (in_part, True),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=3000)
    parser.add_argument("--epochs", type=float)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--architecture", choices=list(REQUIRED), default="s1")
    options = parser.parse_args()
    known = some_states(options.rows, random.Random(f"learned {options.seed}"))
    seen = {tuple(state.items()) for state in known}
    unseen = [state for state in some_states(2200, random.Random("asked")) if tuple(state.items()) not in seen][:2000]
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "guard"
        began, cpu = time.perf_counter(), time.process_time()
        report = train(
            rule, question(0), known, out, architecture=options.architecture, epochs=options.epochs, seed=options.seed,
            threads=options.threads,
        )  # fmt: skip
        print(report)
        print(f"\n{time.perf_counter() - began:.0f} s, {time.process_time() - cpu:.0f} s of CPU time")
        model = skyinfer.load(out)
        worst = 1.0
        for name, (change, any_order) in WAYS.items():
            draw, right = random.Random(name), 0
            for i, state in enumerate(unseen):
                response: Any = model.decide(change(state, draw), question(i if any_order else 0))
                right += response["answers"]["act"]["choice"] == rule(state)["act"]
            worst = min(worst, right / len(unseen))
            print(f"{name:<28} {right / len(unseen):.4f} of {len(unseen)} unseen states")
    return 0 if worst >= REQUIRED[options.architecture] else 1


if __name__ == "__main__":
    sys.exit(main())
