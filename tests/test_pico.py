"""The models that come with skyinfer: their sizes, and that they do what their cards say, on games that they never
saw."""

from __future__ import annotations

import math
import random
from pathlib import Path

import numpy as np
import pytest

import skyinfer
from skyinfer.files.places import SHIPPED, shipped
from skyinfer.games.flappy import FRAMES_PER_SECOND, QUESTIONS, Flappy
from skyinfer.games.pilots import RandomPilot, RememberingPilot, TeacherPilot, disturbed, fly

DOCS = Path(__file__).parents[1] / "docs"
NAMES = ("s1-pico", "s2-pico")


@pytest.fixture(scope="module", params=NAMES)
def pico(request: pytest.FixtureRequest) -> skyinfer.Model:
    return skyinfer.load(request.param)


def test_what_comes_along() -> None:
    assert tuple(SHIPPED) == NAMES
    assert skyinfer.load().name == "s1-pico"


def test_its_sizes(pico: skyinfer.Model) -> None:
    file = shipped(pico.name)
    assert pico.path == file
    assert file.stat().st_size < 500_000
    card = (DOCS / f"{pico.name}.md").read_text("utf-8")
    assert f"{file.stat().st_size:,} bytes" in card
    parameters = sum(map(math.prod, pico.config.expected_tensors().values()))
    assert parameters <= 400_000
    assert f"{parameters:,} parameters" in card
    assert (pico.config.max_tokens, pico.config.max_head_tokens) == (256, 96)
    assert f"{pico.config.architecture}-pico" == pico.name


def test_it_flies_at_the_hardest_setting(pico: skyinfer.Model) -> None:
    memory: dict[str, bool] = {}
    for seed in range(900, 903):
        minute = fly(RememberingPilot(pico, memory), Flappy(seed, "hard"), 60 * FRAMES_PER_SECOND)
        assert minute.survived
        assert minute.gaps > 50
        assert fly(RandomPilot(seed), Flappy(seed, "hard"), 60 * FRAMES_PER_SECOND).frames < 60 * FRAMES_PER_SECOND / 20


def test_it_knows_danger_and_margin(pico: skyinfer.Model) -> None:
    """Against the rules themselves: half a second of gliding on a copy of the game, and the room above and below."""
    compiled = pico.compile(QUESTIONS)
    places = dict(zip(compiled.ids, compiled.offsets, strict=False))
    dangers: dict[bool, list[float]] = {False: [], True: []}
    margins = []
    rng = random.Random(910)
    for seed in range(910, 930):
        for number, game in enumerate(disturbed(TeacherPilot(), Flappy(seed, "hard"), rng)):
            if number % 7 or number > 1000:
                continue
            p = compiled.step(game.state_text())
            ahead = game.copy()
            while ahead.alive and ahead.frame < game.frame + FRAMES_PER_SECOND // 2:
                ahead.step(False)
            dangers[not ahead.alive].append(float(p[places["danger"] + 1]))
            margins.append(int(np.argmax(p[places["margin"] :])) == game.margin())
    assert min(map(len, dangers.values())) > 50
    ranks = [yes > no for yes in dangers[True] for no in dangers[False]]
    assert np.mean(ranks) >= 0.97
    assert np.mean(margins) >= 0.95
