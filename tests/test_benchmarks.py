"""What the benchmarks rest on: whom they ask, what they refuse to time, and how much work they think there is."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
from collections import Counter
from itertools import groupby, pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import skyinfer
from skyinfer.runtime.cpus import available_cpus

ROOT = Path(__file__).parents[1]
PAINTED = ROOT / "examples" / "painted"
EXACT = {state: {"a": np.array([0.25, 0.75]), "b": np.array([0.1, 0.2, 0.7])} for state in range(3)}


@pytest.fixture
def in_turn(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "benchmarks" / "peers")
    return importlib.import_module("in_turn")


def changed(state: int, number: float) -> dict[int, dict[str, np.ndarray]]:
    """The exact answers, but one probability of one state."""
    return EXACT | {state: EXACT[state] | {"b": np.array([0.1, number, 0.7])}}


def rival(in_turn: ModuleType, name: str, answers: Any) -> Any:
    return in_turn.Rival(name, lambda state: state, lambda state: answers[state])


def test_errors_are_the_largest_of_all_states(in_turn: ModuleType) -> None:
    rivals = [rival(in_turn, "same", EXACT), rival(in_turn, "near", changed(1, 0.2004))]
    assert in_turn.errors(rivals, EXACT) == [0.0, pytest.approx(0.0004)]


@pytest.mark.parametrize(
    "answers",
    [
        pytest.param(changed(0, np.nan), id="no number, then right ones"),
        pytest.param(changed(2, np.nan), id="no number, after right ones"),
        pytest.param(changed(1, np.inf), id="infinity"),
        pytest.param(changed(1, 0.202), id="too far off"),
        pytest.param(EXACT | {1: {"a": EXACT[1]["a"]}}, id="a question is missing"),
        pytest.param(EXACT | {1: EXACT[1] | {"c": EXACT[1]["a"]}}, id="a question too many"),
        pytest.param(EXACT | {1: EXACT[1] | {"b": np.array([0.1])}}, id="options are missing"),
    ],
)
def test_wrong_answers_are_not_timed(in_turn: ModuleType, answers: Any) -> None:
    with pytest.raises(SystemExit, match=r"nothing was timed.* wrong one") as stop:
        in_turn.errors([rival(in_turn, "right one", EXACT), rival(in_turn, "wrong one", answers)], EXACT)
    assert isinstance(stop.value.code, str)  # which Python prints, to exit with 1
    assert "right one" not in stop.value.code


def test_all_are_asked_about_the_same_states_behind_different_others(
    in_turn: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, asked = 0.0, list[tuple[str, int]]()
    seconds = {"quick": 1e-5, "slow": 1e-3, "slowest": 1.0}

    def rival(name: str) -> Any:
        def call(state: int) -> None:
            nonlocal now
            now += seconds[name]
            asked.append((name, state))

        return in_turn.Rival(name, call, lambda nothing: {})

    def turns() -> list[tuple[str, list[int]]]:
        """The rivals in the order in which they had their turns, each with the states of its turn."""
        asked.clear()
        times = in_turn.time_in_turn([rival(name) for name in seconds], rounds=60, n_states=256)
        for seen, expected in zip(times, seconds.values(), strict=True):
            assert seen == pytest.approx([expected] * 60)
        after_trial = groupby(asked[2 * len(seconds) :], lambda call: call[0])
        return [(name, [state for _, state in calls]) for name, calls in after_trial]

    monkeypatch.setattr(in_turn, "perf_counter", lambda: now)
    by_rival = {name: [state for who, states in turns() if who == name for state in states] for name in seconds}
    assert by_rival["quick"] == [i % 256 for i in range(60 * 21)]
    assert by_rival["slowest"] == [(21 * i + j) % 256 for i in range(60) for j in range(2)]
    first = {(21 * i) % 256 for i in range(60)}
    assert first <= set(by_rival["slow"])
    order = [name for name, _ in turns()]
    followed = Counter(pairwise(order))
    assert len(followed) == 6
    assert min(followed.values()) > 8
    assert [name for name, _ in turns()] == order  # seeded


def test_a_flight_begins_with_the_request_and_changes() -> None:
    requests_of = importlib.import_module("requests_of")
    states = requests_of.FLIGHT
    assert states[0] == json.loads((ROOT / "examples" / "request.json").read_text("utf-8"))["state"]
    assert states == list(requests_of.flight(256))
    assert states != list(requests_of.flight(256, seed=1))
    assert len(states) == 256
    assert len(set(states)) > 250
    form = re.compile(r"vy (-?\d+) dx (\d+) up (-?\d+) dn (-?\d+) nxt (-?\d+) alt (\d+)")
    numbers = np.array([[int(number) for number in form.fullmatch(state).groups()] for state in states])
    assert np.abs(numbers).max() < 100
    speed, _, up, down, _, altitude = numbers.T
    np.testing.assert_array_equal(np.diff(altitude), speed[1:])  # it is nowhere near the ground or the ceiling
    assert set(up + down) == {16}  # as high as every gap


def test_the_profile_counts_the_operations_of_a_pass() -> None:
    """The painted pico: three layers, the first product from a table, and one block of which markers alone ask."""
    kernel_runs, profile = importlib.import_module("kernel_runs"), importlib.import_module("profile_forward")
    config = skyinfer.load(PAINTED, threads=1).config
    lengths, markers = [74, 59, 67], [2, 2, 3]
    steps = list(profile.operations(config, True, kernel_runs.Kernels("portable", lengths), markers))
    flops = Counter[str]()
    for step in steps:
        flops[step.kind] += step.flops
    n, d, d_ff, m = 200, 64, 128, 7
    near = sum(int((np.abs(np.subtract.outer(np.arange(k), np.arange(k))) <= 64).sum()) for k in lengths)
    n_global = sum(config.layer_is_global)
    assert flops == {
        "qkv": 2 * 2 * n * 3 * d * d,
        "output": 3 * 2 * n * d * d,
        "up, gated": 3 * 2 * n * 2 * d_ff * d,
        "down": 3 * 2 * n * d * d_ff,
        "attention, global": n_global * 4 * d * sum(k * k for k in lengths),
        "attention, local": (3 - n_global) * 4 * d * near,
        "head attention": 4 * d * sum(k * asking for k, asking in zip(lengths, markers, strict=True)),
        "head products": 2 * (n * 2 * d * d + m * (d * d + d * d + 2 * 4 * d * d) + m * (d * d + d)),
        "norms": 0,
    }
    assert sum(step.kind == "norms" for step in steps) == 2 + 3 + 1 + 2 + 1
    for step in steps:
        step.run()


def test_the_profile_prints_every_part() -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "profile_forward.py"), str(PAINTED), "--seconds", "0.1"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode == 0, run.stderr
    lines = dict(re.findall(r"^(\S.*?)  +(\d.*)$", run.stdout, re.MULTILINE))
    assert {"whole pass", "qkv", "up, gated", "attention, local", "head products", "norms"} <= lines.keys()
    microseconds, share, _, of_peak = lines["whole pass"].split()
    assert float(microseconds) > 0
    assert share == "100.0%"
    assert float(of_peak.rstrip("%")) > 0


def test_benchmarks_are_collected_beside_tests_and_without_their_plugin() -> None:
    """Each folder has a conftest.py, of which Python imports one as `conftest`."""
    # nothing runs there, so no instruction set can be missed
    environment = {name: value for name, value in os.environ.items() if name != "SKYINFER_EXPECT_ISAS"}
    here = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]
    both = [str(ROOT / "benchmarks"), str(ROOT / "tests" / "test_c_core.py")]
    for extra, expected in [
        (["--benchmark-only"], "test_forward_speed.py"),
        (["-p", "no:benchmark"], "test_c_core.py"),
    ]:
        run = subprocess.run(
            [*here, *extra, *both],
            cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert run.returncode == 0, run.stdout + run.stderr
        assert expected in run.stdout
        assert ("test_forward_speed.py" in run.stdout) == ("--benchmark-only" in extra)


@pytest.mark.skipif(available_cpus() < 2, reason="needs a CPU for the second process")
def test_a_pass_is_timed_beside_another_process() -> None:
    command = [sys.executable, ROOT / "benchmarks" / "beside.py", PAINTED, "--rounds", "1", "--seconds", "0.01"]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert re.search(r"weights in f32: [1-9]\d* quiet passes, [1-9]\d* busy ones", out)
    for line in ("median", "first decile", "of the peak"):
        assert re.search(rf"^{line} +[\d.]+", out, re.MULTILINE)


def test_s2_is_timed_in_turn_with_s1() -> None:
    command = [sys.executable, "s2.py", "--sizes", "shipped", "--rounds", "2", "--steps", "5"]
    run = subprocess.run(command, cwd=ROOT / "benchmarks", capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert len(re.findall(r"^shipped .* [\d.]+ x$", run.stdout, re.MULTILINE)) == 5


@pytest.mark.parametrize("precision", ["exact", "int8"])
def test_loads_are_measured_in_either_precision(precision: str) -> None:
    command = [sys.executable, "load.py", PAINTED, "--loads", "1", "--precision", precision]
    run = subprocess.run(command, cwd=ROOT / "benchmarks", capture_output=True, text=True, check=True)
    columns, row = run.stdout.splitlines()
    assert columns.split("  ")[-1].strip() == "model"
    packed, peak, ratio = map(float, row.split()[3:6])
    kept = skyinfer.load(PAINTED, precision=precision).engine.core.n_bytes / (1 << 20)
    assert packed == pytest.approx(kept, abs=0.06)
    assert ratio == pytest.approx(peak / kept, rel=0.01)
