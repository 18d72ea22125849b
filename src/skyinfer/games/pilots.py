"""Pilots of Flappy Drone: the look-ahead teacher, random numbers, or a model give the input; and whole flights."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple, Protocol

from .flappy import FRAMES_PER_SECOND, QUESTIONS, Flappy

if TYPE_CHECKING:
    from ..model import Model


# of a disturbed flight, in frames
_LONGEST = 25 * FRAMES_PER_SECOND


class Pilot(Protocol):
    """Gives the inputs of one game at a time."""

    def thrust(self, game: Flappy) -> bool:
        """The input of the frame to come. Leaves the game as it is."""


class TeacherPilot:
    """The search in the game's C code."""

    def thrust(self, game: Flappy) -> bool:
        return game.teacher()


class RandomPilot:
    """Thrusts in each frame with probability 1/2."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def thrust(self, game: Flappy) -> bool:
        return self._random.random() < 0.5


class ModelPilot:
    """Asks a model all three questions in every frame.

    Attributes:
        p_thrust, p_danger: of the last frame.
        p_margin: of the last frame: none, tight, comfortable.
    """

    def __init__(self, model: Model) -> None:
        self._compiled = model.compile(QUESTIONS)
        self.p_thrust = self.p_danger = 0.0
        self.p_margin = (0.0, 0.0, 0.0)

    def thrust(self, game: Flappy) -> bool:
        p_thrust, p_glide, _, self.p_danger, *margin = self._compiled.step(game.state_text()).tolist()
        self.p_thrust, self.p_margin = p_thrust, (margin[0], margin[1], margin[2])
        return bool(p_thrust > p_glide)


class RememberingPilot:
    """Asks a model for the input alone, and about each text once: for millions of frames, of which many repeat.

    `memory` has the input for each text; pilots in several threads may share it.
    """

    def __init__(self, model: Model, memory: dict[str, bool]) -> None:
        self._compiled = model.compile({"action": QUESTIONS["action"]})
        self._memory = memory

    def thrust(self, game: Flappy) -> bool:
        text = game.state_text()
        known = self._memory.get(text)
        if known is None:
            p_thrust, p_glide = self._compiled.step(text).tolist()
            known = self._memory[text] = p_thrust > p_glide
        return known


class Flight(NamedTuple):
    frames: int
    gaps: int
    survived: bool


def fly(pilot: Pilot, game: Flappy, frames: int) -> Flight:
    """Fly until the game is over, or its frame number is `frames`."""
    while game.alive and game.frame < frames:
        game.step(pilot.thrust(game))
    return Flight(game.frame, game.score, game.alive)


def disturbed(pilot: Pilot, game: Flappy, rng: random.Random) -> Iterator[Flappy]:
    """The game in every frame of a flight in which random inputs replace the pilot's now and then, until it crashes."""
    slips = rng.choice((0.0, 0.0, 0.01, 0.02, 0.05))
    bursts = rng.choice((0.0, 0.004, 0.004, 0.01))
    if rng.random() < 0.25:  # mostly random inputs
        slips = rng.random()
    burst, p_thrust = 0, 0.0
    while game.alive and game.frame < _LONGEST:
        yield game
        if burst:
            burst -= 1
            thrust = rng.random() < p_thrust
        elif rng.random() < slips:
            thrust = rng.random() < 0.4
        else:
            thrust = pilot.thrust(game)
            if rng.random() < bursts:
                burst, p_thrust = rng.randint(2, 12), rng.choice((0.0, 0.0, 0.1, 0.3, 0.7))
        game.step(thrust)
