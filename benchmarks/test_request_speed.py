"""Level 3: a whole call, from a state and questions to answers. Every call is about the next state of a flight."""

from __future__ import annotations

from itertools import cycle
from typing import Any

import pytest
from requests_of import DRONE, FLIGHT

import skyinfer

QUESTIONS = DRONE["questions"]
STATES_AT_ONCE = 16


def test_decide(benchmark: Any, model: skyinfer.Model) -> None:
    states = cycle(FLIGHT)
    benchmark(lambda: model.decide(next(states), QUESTIONS))


def test_decide_many(benchmark: Any, model: skyinfer.Model) -> None:
    if model.isa == "portable" and model.config.d_model > 64:
        pytest.skip("many seconds a call, and nobody's path")
    some = cycle([FLIGHT[i : i + STATES_AT_ONCE] for i in range(0, len(FLIGHT), STATES_AT_ONCE)])
    benchmark.extra_info["states"] = STATES_AT_ONCE
    benchmark(lambda: model.decide_many(next(some), QUESTIONS))


def test_step(benchmark: Any, model: skyinfer.Model) -> None:
    states, compiled = cycle(FLIGHT), model.compile(QUESTIONS)
    benchmark(lambda: compiled.step(next(states)))


def test_run_tokens(benchmark: Any, model: skyinfer.Model) -> None:
    compiled = model.compile(QUESTIONS)
    states = cycle([model.engine.builder.state(state).ids for state in FLIGHT])
    benchmark(lambda: compiled.run_tokens(next(states)))


def test_encode(benchmark: Any, model: skyinfer.Model) -> None:
    states = cycle(FLIGHT)
    benchmark(lambda: model.encode(next(states), QUESTIONS))
