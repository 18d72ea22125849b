"""What is fair about level 4, whoever the rivals are: answers are compared before anything is timed, all are asked
about the same states in the same order, and none is always timed behind the same other one.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
from agreement import Worst

Distributions = Mapping[str, np.ndarray]

MARGIN = 1e-3  # of a probability; the painted weights are initial ones, on which llama-server's roundings stay below it
MARGIN_INT8 = 2e-2  # where weights and activations have 8 bits
MOST_REPEATS = 20  # of a call in a round, each about another state


class Rival(NamedTuple):
    """One way to answer. `call` is what is timed, with a state's number; `read` makes of what it gave the distributions
    by question id; `margin` is how far off they may be."""

    name: str
    call: Callable[[int], Any]
    read: Callable[[Any], Distributions]
    margin: float = MARGIN


def errors(rivals: list[Rival], exact: Mapping[int, Distributions]) -> list[float]:
    """The largest difference of each rival's probabilities from the exact ones, which are given by a state's number.

    Raises:
        SystemExit: one is over the margin, or is no number, or an answer has other questions or options.
    """
    found = []
    for rival in rivals:
        worst = Worst()
        for state, expected in exact.items():
            given = rival.read(rival.call(state))
            same = {qid: p.shape for qid, p in given.items()} == {qid: p.shape for qid, p in expected.items()}
            for qid, probabilities in expected.items():
                worst.see("probabilities", given[qid] if same else np.nan, probabilities)
        found.append(worst.of["probabilities"])
    if wrong := [
        f"{rival.name} ({error:.1e})" for rival, error in zip(rivals, found, strict=True) if error > rival.margin
    ]:
        raise SystemExit(
            f"nothing was timed: answers are off by more than they may: {', '.join(wrong)}."
            " Leave a rival out by --without"
        )
    return found


def time_in_turn(rivals: list[Rival], rounds: int, n_states: int, seed: int = 0) -> list[list[float]]:
    """Seconds of one call of each rival in each round, after a warm-up. All begin a round at the same state."""
    repeats = []
    for rival in rivals:
        rival.call(0)
        start = perf_counter()
        rival.call(0)
        repeats.append(max(1, min(MOST_REPEATS, int(0.005 / (perf_counter() - start)))))
    times: list[list[float]] = [[] for _ in rivals]
    order = list(range(len(rivals)))
    shuffle = random.Random(seed).shuffle
    for done in range(rounds):
        first = done * (1 + MOST_REPEATS)
        shuffle(order)
        for i in order:
            call = rivals[i].call
            states = [(first + j) % n_states for j in range(1 + repeats[i])]
            call(states[0])  # not timed: its weights come back into the caches, the last one's threads fall asleep
            start = perf_counter()
            for state in states[1:]:
                call(state)
            times[i].append((perf_counter() - start) / repeats[i])
    return times
