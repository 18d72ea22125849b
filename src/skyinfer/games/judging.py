"""How well a model plays Flappy Drone: its flights and those of other pilots, and its answers against the truth.

`REQUIRED` has what the models that come with skyinfer must reach.
"""

from __future__ import annotations

import random
import statistics
import threading
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np

from ..metrics import area_under_curve, expected_calibration_error, reliability
from ..runtime.cpus import available_cpus
from .flappy import DIFFICULTIES, FRAMES_PER_SECOND, Flappy
from .pilots import Flight, ModelPilot, Pilot, RandomPilot, RememberingPilot, TeacherPilot, disturbed, fly

if TYPE_CHECKING:
    from ..model import Model

FLIGHT_SEEDS = 0  # and the following
STATE_SEEDS = 1_000_000
N_STATES = 20_000

_OF_S1 = {
    "median flight, of the teacher's": 0.95,
    "median flight, of chance's": 20.0,
    "danger AUC": 0.97,
    "danger ECE, at most": 0.03,
    "margin accuracy": 0.95,
}
REQUIRED = {  # by architecture
    "s1": _OF_S1,
    "s2": _OF_S1
    | {"flights that survive": 1.0, "danger AUC": 0.995, "danger ECE, at most": 0.01, "margin accuracy": 0.9995},
}


def flights(pilot_for: Callable[[int], Pilot], n: int, frames: int, difficulty: str) -> list[Flight]:
    """One flight for each of the first `n` seeds, on as many threads as there are CPUs."""
    with ThreadPoolExecutor(available_cpus()) as pool:
        seeds = range(FLIGHT_SEEDS, FLIGHT_SEEDS + n)
        return list(pool.map(lambda seed: fly(pilot_for(seed), Flappy(seed, difficulty), frames), seeds))


def model_pilots(model: Model) -> Callable[[int], Pilot]:
    """A pilot for each thread, all with the same known answers."""
    memory: dict[str, bool] = {}
    own = threading.local()

    def pilot_for(seed: int) -> Pilot:
        if not hasattr(own, "pilot"):
            own.pilot = RememberingPilot(model, memory)
        return own.pilot  # type: ignore[no-any-return]

    return pilot_for


def summary(flown: Iterable[Flight]) -> dict[str, Any]:
    some = list(flown)
    frames = [flight.frames for flight in some]
    return {
        "flights": len(some),
        "survived": sum(flight.survived for flight in some),
        "frames": {"min": min(frames), "median": statistics.median(frames), "max": max(frames)},
        "seconds": statistics.median(frames) / FRAMES_PER_SECOND,
        "gaps": statistics.median(flight.gaps for flight in some),
    }


def judge_states(model: Model, seen: Collection[str], n: int) -> dict[str, Any]:
    """Answers to all questions in `n` states of disturbed flights at all difficulties; texts in `seen` are left out."""
    pilot, rng = ModelPilot(model), random.Random(0)
    said: list[float] = []
    true: list[bool] = []
    margins: list[bool] = []
    actions: list[bool] = []
    seed = STATE_SEEDS
    while len(said) < n:
        game = Flappy(seed, DIFFICULTIES[seed % len(DIFFICULTIES)])
        for at in disturbed(TeacherPilot(), game, rng):
            if rng.random() < 0.1 and at.state_text() not in seen:
                thrust = pilot.thrust(at)
                said.append(pilot.p_danger)
                true.append(at.will_crash())
                margins.append(int(np.argmax(pilot.p_margin)) == at.margin())
                actions.append(thrust == at.teacher())
        seed += 1
    p, found, weights = np.array(said), np.array(true, np.float64), np.ones(len(said))
    table = reliability(p, found, weights)
    return {
        "states": len(said),
        "danger": {
            "rate": float(found.mean()),
            "auc": area_under_curve(p, found, weights),
            "ece": expected_calibration_error(table),
            "reliability": [[row.n, row.said, row.found] for row in table],
        },
        "margin": {"accuracy": float(np.mean(margins))},
        "action": {"agreement": float(np.mean(actions))},
    }


def judge(
    model: Model, seen: Collection[str], n_flights: int, frames: int, say: Callable[[str], None]
) -> dict[str, Any]:
    """All scores, with flights at the highest difficulty, and whether they reach what is required."""
    scores = judge_states(model, seen, N_STATES)
    say(f"judged {scores['states']:,} states")
    hardest = DIFFICULTIES[-1]
    scores["flights"] = flown = {}
    for name, pilots in (
        ("model", model_pilots(model)),
        ("teacher", lambda seed: TeacherPilot()),
        ("random", RandomPilot),
    ):
        flown[name] = summary(flights(pilots, n_flights, frames, hardest))
        say(f"judged {n_flights} flights: {name}")
    median = {name: one["frames"]["median"] for name, one in flown.items()}
    reached = {
        "median flight, of the teacher's": median["model"] / median["teacher"],
        "median flight, of chance's": median["model"] / max(1, median["random"]),
        "danger AUC": scores["danger"]["auc"] or 0.0,
        "danger ECE, at most": scores["danger"]["ece"],
        "margin accuracy": scores["margin"]["accuracy"],
        "flights that survive": flown["model"]["survived"] / n_flights,
    }
    scores["reached"] = reached
    scores["required"] = required = REQUIRED[model.architecture]
    scores["met"] = {
        name: reached[name] <= bound if name.endswith("at most") else reached[name] >= bound
        for name, bound in required.items()
    }
    return scores


def as_text(scores: dict[str, Any]) -> str:
    lines = ["flights, hardest   survived   median s   frames min   median      max"]
    for name, one in scores["flights"].items():
        frames = one["frames"]
        lines.append(
            f"  {name:<16} {one['survived']:4} of {one['flights']:3} {one['seconds']:9.1f} {frames['min']:12,} "
            f"{frames['median']:8,.0f} {frames['max']:8,}"
        )
    lines.append("required")
    lines += [
        f"  {name:<34} {bound:6} {scores['reached'][name]:9.4f}  {'met' if scores['met'][name] else 'NOT MET'}"
        for name, bound in scores["required"].items()
    ]
    return "\n".join(lines)
