"""What answering many rows costs: arrays against a loop of `step`, two cores against one, the command against arrays.

    python benchmarks/rows.py [-m MODEL] [--states 100000] [--rounds 5] [--rows 1000000] [--mixed] [--laya N]
                              [--killed N]

Figures are rows a second, medians over rounds in which the ways take turns. The states are all of one flight, in order
(`requests_of.py`); with --mixed they are of 1 to 40 times its length. One core: threads=1, two: threads=2; the process
itself is not pinned. The command answers three questions about --rows rows of Parquet, once; its memory is the largest
resident size, before any answer and at the end. --rows 0 leaves it out. --killed N answers N rows in one go, and once
more with a SIGKILL at ten random moments. Needs the extra `rows`, and Linux for memory.

--laya N compares with the Laya runtime's `predict_batch` in this process (pip install laya==0.4.15), one core each, on
the first N states, after its answers were compared; MODEL is a checkpoint directory then, and N a few hundred.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from requests_of import DRONE, flight

import skyinfer

QUESTIONS = DRONE["questions"]
# The command where arguments follow the model, else only what it begins with; then the most memory that was
# resident, in kB: of this program alone, where getrusage begins with what its parent had.
_MEASURED = """
import re, sys, skyinfer
from skyinfer.command import rows
from skyinfer.command.main import main
rows.import_arrow()
skyinfer.load(sys.argv[1]) if len(sys.argv) < 3 else main(sys.argv[2:])
print(re.search(r"VmHWM:\\s*(\\d+)", open("/proc/self/status").read())[1])
"""


def in_turn(ways: dict[str, Callable[[], object]], n_states: int, rounds: int) -> dict[str, float]:
    """Rows a second of each way."""
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        for name, way in ways.items():
            start = time.perf_counter()
            way()
            if number:  # the first one makes buffers and learns words
                taken[name].append(time.perf_counter() - start)
    return {name: n_states / median(some) for name, some in taken.items()}


def show(name: str, rate: float, ratio: float, of: str) -> None:
    print(f"{name:36} {rate:>10,.{0 if rate >= 1000 else 1}f} rows/s  {ratio:6.2f} x {of}")


def in_process(model: skyinfer.Model, states: list[str], rounds: int) -> float:
    """Prints the ways of asking in one process; gives the rows a second of arrays on two cores."""
    one = skyinfer.load(model.path, threads=1)
    stepper, alone, both = one.compile(QUESTIONS), one.compile(QUESTIONS), model.compile(QUESTIONS)

    def stepped() -> None:
        for state in states:
            stepper.step(state)

    def decided() -> None:
        for state in states:
            one.decide(state, QUESTIONS)

    rates = in_turn(
        {
            "a loop of step, one core": stepped,
            "a loop of decide, one core": decided,
            "arrays, one core": lambda: alone.arrays(states, threads=1),
            "arrays, two cores": lambda: both.arrays(states, threads=2),
        },
        len(states),
        rounds,
    )
    step, decide, single, double = rates.values()
    for (name, rate), more in zip(rates.items(), ("", "", "", f", {double / single:.2f} x one core"), strict=True):
        show(name, rate, rate / step, f"a loop of step, {rate / decide:.2f} x one of decide{more}")
    return double


def beside_laya(model: skyinfer.Model, states: list[str], rounds: int) -> None:
    """Prints arrays on one core beside the Laya runtime, in its usual batches and in sizes that may do better."""
    import torch
    from laya.agent import Agent

    torch.set_num_threads(1)
    agent = Agent(str(model.path), device="cpu")
    compiled = skyinfer.load(model.path, threads=1).compile(QUESTIONS)
    own, theirs = compiled.many(states[:32]), agent.predict_batch(states[:32], QUESTIONS, batch_size=8)
    worst = max(
        abs(p - q)
        for mine, other in zip(own, theirs, strict=True)
        for name in QUESTIONS
        for p, q in zip(distribution(mine["answers"][name]), distribution(other["answers"][name]), strict=True)
    )
    if not worst < 1e-4:
        raise SystemExit(f"laya's probabilities differ by {worst:.2g}")
    ways: dict[str, Callable[[], object]] = {"arrays, one core": lambda: compiled.arrays(states, threads=1)}
    ways["laya predict_batch"] = lambda: agent.predict_batch(states, QUESTIONS)
    for size in (4, 8, 16):
        ways[f"laya predict_batch, {size} sorted states"] = lambda size=size: agent.predict_batch(
            states, QUESTIONS, batch_size=size, sort_by_length=True
        )
    rates = in_turn(ways, len(states), rounds)
    arrays = rates["arrays, one core"]
    print(f"{len(states)} states, probabilities within {worst:.1g} of laya's rounded ones")
    for name, rate in rates.items():
        show(name, rate, arrays / rate, "the time of arrays")


def distribution(answer: dict[str, Any]) -> list[float]:
    return [answer["noul"]] if answer["type"] == "noul" else list(answer["probabilities"].values())


def command(model: skyinfer.Model, n_rows: int, arrays: float) -> None:
    """Prints the command's rows a second, from its start to its end, and its memory."""
    with tempfile.TemporaryDirectory() as directory:
        asked = written(Path(directory), model, n_rows)
        measured = [sys.executable, "-c", _MEASURED, model.path]
        started = int(subprocess.run(measured, check=True, capture_output=True).stdout)
        start = time.perf_counter()
        ended = subprocess.run([*measured, *asked], check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        rate, peak = n_rows / (time.perf_counter() - start), int(ended.stdout)
    show(f"skyinfer rows, {n_rows} rows", rate, arrays / rate, "the time of arrays")
    print(f"{'its memory':34} {peak / 1024:>10,.0f} MB, {(peak - started) / 1024:,.0f} MB more than at the start")


def written(directory: Path, model: skyinfer.Model, n_rows: int) -> list[str | Path]:
    """The command for n_rows rows of Parquet, which are written first."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    source, questions = directory / "in.parquet", directory / "questions.json"
    pq.write_table(pa.table({"id": range(n_rows), "state": list(flight(n_rows))}), source)
    questions.write_text(json.dumps(QUESTIONS))
    return ["rows", source, "-q", questions, "-o", directory / "out.parquet", "-m", model.path]


def killed(model: skyinfer.Model, n_rows: int, n_times: int = 10) -> None:
    """Kills the command at random moments, resumes it each time, and compares the file with that of one go."""
    rng = random.Random(0)
    with tempfile.TemporaryDirectory() as directory:
        asked = [sys.executable, "-m", "skyinfer", *written(Path(directory), model, n_rows)]
        out = Path(directory, "out.parquet")
        start = time.perf_counter()
        subprocess.run(asked, check=True, stderr=subprocess.DEVNULL)
        taken = time.perf_counter() - start
        whole = out.read_bytes()
        out.unlink()
        moments = []
        while len(moments) < n_times:
            moments.append(rng.uniform(0, taken / 2))
            with subprocess.Popen([*asked, "--resume"], stderr=subprocess.DEVNULL) as running:
                try:
                    running.wait(moments[-1])
                    break  # it was done
                except subprocess.TimeoutExpired:
                    running.kill()
        if not out.exists():
            subprocess.run([*asked, "--resume"], check=True, stderr=subprocess.DEVNULL)
        same = "the same" if out.read_bytes() == whole else "OTHER"
    said = ", ".join(f"{moment:.1f}" for moment in moments)
    print(f"killed after {said} s (one go: {taken:.1f} s) and resumed: {same} bytes, {len(whole)} of them")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", metavar="MODEL")
    parser.add_argument("--states", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--killed", metavar="N", type=int, default=0)
    parser.add_argument("--mixed", action="store_true")
    parser.add_argument("--laya", metavar="N", type=int, default=0)
    options = parser.parse_args()
    warnings.simplefilter("ignore", RuntimeWarning)  # of temperatures that are clamped
    model = skyinfer.load(options.model)
    states = list(flight(options.states))
    if options.mixed:
        states = [" ".join([state] * (1 + i * 7 % 40)) for i, state in enumerate(states)]
    print(f"{model.name}, {model.isa}, {len(states)} states, {len(QUESTIONS)} questions")
    arrays = in_process(model, states, options.rounds)
    if options.laya:
        beside_laya(model, states[: options.laya], options.rounds)
    if options.rows:
        command(model, options.rows, arrays)
    if options.killed:
        killed(model, options.killed)


if __name__ == "__main__":
    main()
