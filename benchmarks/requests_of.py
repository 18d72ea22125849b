"""What every level above the kernels is timed on: one request, and the states of a flight to ask it about.

Whoever asks about one state over and over times a tokenizer that remembers its words against others that do not. A
flight's states are as a game sends them: other small numbers in every frame, which come back after a while.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import skyinfer
from skyinfer.core import border
from skyinfer.schema import QUESTION_TYPES

DRONE: dict[str, Any] = json.loads(
    (Path(__file__).parent.parent / "examples" / "request.json").read_text(encoding="utf-8")
)


def flight(n_states: int, seed: int = 0) -> Iterator[str]:
    """States of a drone that flies through gaps, not always well. The first is that of the request."""
    rng = random.Random(seed)
    speed, altitude, distance, gap, next_gap = 0, 32, 36, 33, 43
    for _ in range(n_states):
        up, down = gap + 8 - altitude, altitude - (gap - 8)
        yield f"vy {speed} dx {distance} up {up} dn {down} nxt {next_gap - gap} alt {altitude}"
        speed += 4 if altitude + 3 * speed < gap + rng.randint(-6, 2) else -1
        speed = max(-8, min(speed, 8))
        altitude = max(0, min(altitude + speed, 64))
        distance -= 3
        if distance < 0:
            distance, gap = rng.randint(30, 50), next_gap
            next_gap = max(10, min(next_gap + rng.randint(-18, 18), 54))


FLIGHT = list(flight(256))


def forward(model: skyinfer.Model, threads: int = 1) -> tuple[border.CorePlan, list[border.BatchItem]]:
    """A plan just large enough for the request, and its tokens: what `plan.run(batch)` takes, without text."""
    questions = DRONE["questions"]
    sequences = model.encode(DRONE["state"], questions)
    batch = [
        (sequence.ids, sequence.markers, QUESTION_TYPES.index(questions[qid]["type"]))
        for qid, sequence in sequences.items()
    ]
    plan = border.CorePlan(
        model._engine.core,
        n_tokens=sum(len(ids) for ids, _, _ in batch),
        n_sequences=len(batch),
        n_markers=sum(len(markers) for _, markers, _ in batch),
        sequence_tokens=max(len(ids) for ids, _, _ in batch),
        n_threads=threads,
    )
    return plan, batch
