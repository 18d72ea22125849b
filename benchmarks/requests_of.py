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
from skyinfer.schema import parse_questions

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


def forward(model: skyinfer.Model, threads: int = 1) -> tuple[border.CorePlan, border.CoreAsks]:
    """A plan just large enough for the request, and its tokens: what `plan.run(asks)` takes, without text."""
    prepared = model.engine.prepare(parse_questions(DRONE["questions"]))
    asks = border.CoreAsks([prepared.ask(prepared.read(DRONE["state"]))], pass_tokens=1 << 20)
    n_tokens, n_sequences, n_markers, longest = asks.sizes
    plan = border.CorePlan(
        model.engine.core,
        n_tokens=n_tokens,
        n_sequences=n_sequences,
        n_markers=n_markers,
        sequence_tokens=longest,
        n_threads=threads,
    )
    return plan, asks
