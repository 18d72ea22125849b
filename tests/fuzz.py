"""Mutated model files and mutated requests, by the hundred thousand: nothing but the documented errors may come out.

    python tests/fuzz.py files|requests|both --rounds N --seed S [--first ROUND] [--minutes M]

A round is made from (kind, seed, round) alone, so a fault is seen again with `--first ROUND --rounds 1`. Rounds run in
a child process under a watchdog: a crash, a hang, a memory blow-up and a wrong exception are all reported with the
round that did it, and its input is saved; so is a round whose input cannot be made. Exit status 1 where there was a
fault. A short run is part of the suite (test_fuzz.py).
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
from pathlib import Path

from fuzzing.watchdog import KINDS, child, fuzz, save


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Mutated model files and requests: only the documented errors may come out."
    )
    parser.add_argument("kind", choices=[*KINDS, "both"])
    parser.add_argument("--rounds", type=int, default=1000, help="of each kind (default: 1000)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, metavar="ROUND", help="the round to begin with (default: 0)")
    parser.add_argument("--minutes", type=float, default=1e6, help="stop each kind after so many")
    parser.add_argument(
        "--hang", type=float, default=10.0, metavar="SECONDS", help="a round that takes longer has hung"
    )
    parser.add_argument(
        "--out", type=Path, default=Path(tempfile.gettempdir()) / "skyinfer-faults", help="where inputs are saved"
    )
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--save", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--deadline", type=float, default=math.inf, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.save:
        save(options.kind, options.seed, options.first, options.child, options.save)
        return 0
    if options.child:
        child(
            options.kind, options.seed, options.first, options.first + options.rounds, options.child, options.deadline
        )
        return 0
    faults = []
    for kind in ("files", "requests") if options.kind == "both" else (options.kind,):
        faults += fuzz(
            kind, rounds=options.rounds, seed=options.seed, first=options.first, minutes=options.minutes,
            hang=options.hang, out=options.out,
        )  # fmt: skip
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
