"""Flappy Drone: the game, and what a decision model is asked about it in every frame.

    game = Flappy(seed=7, difficulty="hard")
    while game.step(thrust=game.teacher()):
        print(game.frame, game.state_text())

The rules and the pilot are in C (csrc/games/flappy.h, which has the units). Nothing here knows of models or terminals.
"""

from __future__ import annotations

from ..schema import Questions
from ._flappy import (
    DRONE_HEIGHT,
    DRONE_LENGTH,
    HALF_SECOND,
    HEIGHT,
    HORIZON,
    TICKS,
    WALL_LENGTH,
    Flappy,
    difficulties,
)

__all__ = [
    "DIFFICULTIES",
    "DRONE_HEIGHT",
    "DRONE_LENGTH",
    "FRAMES_PER_SECOND",
    "HALF_SECOND",
    "HEIGHT",
    "HORIZON",
    "MARGINS",
    "QUESTIONS",
    "TICKS",
    "WALL_LENGTH",
    "Flappy",
]

FRAMES_PER_SECOND = 60
DIFFICULTIES = difficulties()

# the levels of the question `margin`, by what Flappy.margin() gives
MARGINS = ("none", "tight", "comfortable")

QUESTIONS: Questions = {
    "action": {
        "type": "choice",
        "instructions": "Which input keeps the drone flying through the next gap?",
        "criteria": {
            "thrust": "fire the rotors for an upward impulse",
            "glide": "let gravity pull the drone down",
        },
    },
    "danger": {
        "type": "noul",
        "instructions": "Will the drone crash within the next half second if it keeps gliding?",
    },
    "margin": {
        "type": "score",
        "instructions": "How much room is left above and below the drone?",
        "criteria": list(MARGINS),
    },
}
