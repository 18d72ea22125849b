"""A decider of one's own from rules: a teacher function of a few lines, a model that learns to answer as it does.

    pip install '.[train]'
    python examples/traffic_light.py [DIR]        (two minutes or so on two cores; writes DIR, traffic-light by default)

The model then answers without the rules, with probabilities, from Python, from `skyinfer decide -m DIR` or in any
runtime that reads Laya checkpoints.
"""

from __future__ import annotations

import random
import sys
from typing import Any

import skyinfer
from skyinfer.train import train

QUESTIONS: dict[str, Any] = {
    "action": {
        "type": "choice",
        "instructions": "What should the driver do?",
        "criteria": {"go": "drive on", "slow": "ease off", "stop": "brake to a halt"},
    },
    "clear": {"type": "noul", "instructions": "Can the car still stop before the light?"},
}


def rules(state: dict[str, Any]) -> dict[str, Any]:
    """The teacher: what a driver does at a light, in fair weather and in the rain."""
    braking_m = (state["speed_kmh"] / 10) ** 2 / (1 if state["rain"] else 2)
    clear = braking_m <= state["distance_m"]
    if state["light"] == "green":
        action = "go"
    elif not clear:
        action = "go" if state["light"] == "amber" else "stop"
    else:
        action = "stop" if state["distance_m"] < 2 * braking_m else "slow"
    return {"action": action, "clear": clear}


def some_states(n: int, seed: int) -> list[dict[str, Any]]:
    draw = random.Random(seed)
    return [
        {
            "light": draw.choice(["red", "amber", "green"]),
            "distance_m": draw.randrange(1, 100),
            "speed_kmh": draw.randrange(5, 75),
            "rain": draw.random() < 0.5,
        }
        for _ in range(n)
    ]


def main() -> None:
    out = sys.argv[1] if len(sys.argv) > 1 else "traffic-light"
    known = some_states(12_000, seed=1)
    report = train(rules, QUESTIONS, known, out)
    print(f"\n{report}\n")

    model = skyinfer.load(out)
    seen = {str(state) for state in known}
    unseen = [state for state in some_states(4_000, seed=2) if str(state) not in seen]
    responses: list[Any] = model.decide_many(unseen, QUESTIONS)
    for key in QUESTIONS:
        agreed = 0
        for state, response in zip(unseen, responses, strict=True):
            answer = response["answers"][key]
            agreed += rules(state)[key] == (answer["choice"] if key == "action" else answer["noul"] > 0.5)
        print(f"{key}: agrees with the rules on {agreed} of {len(unseen)} unseen states ({agreed / len(unseen):.2%})")
    state = {"light": "amber", "distance_m": 20, "speed_kmh": 50, "rain": True}
    print(state, model.decide(state, QUESTIONS)["answers"], sep="\n")


if __name__ == "__main__":
    main()
