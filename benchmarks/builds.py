"""Two builds of skyinfer in turn, each build in its own process: `decide` and `step` of s1-pico, three questions.

    python benchmarks/builds.py OLD_PYTHON NEW_PYTHON [--rounds N] [--calls N]

OLD_PYTHON and NEW_PYTHON are interpreters of two environments, say one with an older commit installed. Prints, for
every instruction set that both have, first deciles and medians in microseconds, and the rounds' median of new by old.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
from typing import Any

_TIMED = """
import json, sys, time
import numpy as np
import skyinfer
from skyinfer.games.flappy import QUESTIONS

n_calls = int(sys.argv[1])
model = skyinfer.load()
places = [(vy, dx, alt) for vy in (0, -2, 3) for dx in (36, 12, 5) for alt in (32, 20, 8)]
states = [f"vy {vy} dx {dx} up 9 dn 7 nxt 10 alt {alt}" for vy, dx, alt in places]
calls = {"decide": lambda state: model.decide(state, QUESTIONS), "step": model.compile(QUESTIONS).step}
found = {}
for name, call in calls.items():
    for state in states * 5:
        call(state)
    taken = []
    for i in range(n_calls):
        state = states[i % len(states)]
        start = time.perf_counter_ns()
        call(state)
        taken.append(time.perf_counter_ns() - start)
    found[name] = [float(np.percentile(taken, 10)) / 1e3, float(np.median(taken)) / 1e3]
print(json.dumps(found))
"""


def ran(python: str, *arguments: str, isa: str | None = None) -> Any:
    """What a program in another environment prints as JSON."""
    environment = {name: value for name, value in os.environ.items() if name != "SKYINFER_ISA"}
    if isa is not None:
        environment["SKYINFER_ISA"] = isa
    run = subprocess.run([python, *arguments], env=environment, capture_output=True, text=True, check=True)
    return json.loads(run.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("old")
    parser.add_argument("new")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--calls", type=int, default=1500, help="of each kind in a round (default: 1500)")
    options = parser.parse_args()
    supported = [
        ran(python, "-m", "skyinfer", "info", "--json")["isa"]["supported"] for python in (options.old, options.new)
    ]
    for isa in [name for name in supported[0] if name in supported[1] and name != "portable"]:
        rounds = [
            [ran(python, "-c", _TIMED, str(options.calls), isa=isa) for python in (options.old, options.new)]
            for _ in range(options.rounds)
        ]
        for call in ("decide", "step"):
            for place, what in enumerate(("first decile", "median")):
                old, new = ([one[build][call][place] for one in rounds] for build in (0, 1))
                ratio = statistics.median(b / a for a, b in zip(old, new, strict=True))
                print(
                    f"{isa:8} {call:6} {what:12} old {min(old):7.1f} us, new {min(new):7.1f} us, new by old {ratio:.3f}"
                )


if __name__ == "__main__":
    main()
