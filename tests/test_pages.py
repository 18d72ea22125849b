"""Both pages in Chromium: first decision, 300 frames of the game, typing, broken files, no console error (web/browser).

Needs Debian's chromium (or CHROMIUM, its path) and npm ci --prefix web. SKYINFER_EXPECT_WEB makes a missing one a
failure.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from programs import need
from test_web import WEB, need_packages

import skyinfer
from skyinfer.files.places import SHIPPED
from skyinfer.games.flappy import QUESTIONS, Flappy

CHROMIUM = os.environ.get("CHROMIUM", "/usr/bin/chromium")


def need_browser() -> None:
    need_packages()
    need("npm")
    if not Path(CHROMIUM).exists():
        if os.environ.get("SKYINFER_EXPECT_WEB"):
            pytest.fail(f"SKYINFER_EXPECT_WEB is set, and there is no {CHROMIUM}")
        pytest.skip(f"needs {CHROMIUM}")


def test_pages_in_a_browser() -> None:
    need_browser()
    run = subprocess.run(
        ["npm", "run", "--silent", "test:browser"], cwd=WEB, env=os.environ | {"PYTHON": sys.executable},
        capture_output=True, text=True, check=False, timeout=400,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr
    assert "# fail 0" in run.stdout
    assert "# pass 0" not in run.stdout


@pytest.mark.parametrize("name", SHIPPED)
def test_a_flight_in_a_browser_is_pythons(name: str) -> None:
    """The same inputs, frame by frame. SKYINFER_FLIGHT_FRAMES=36000 for ten minutes of flight."""
    need_browser()
    seed, frames = 7, int(os.environ.get("SKYINFER_FLIGHT_FRAMES", "1200"))
    command = ["node", "build/browser/flight.js", name, str(seed), str(frames)]
    environment = os.environ | {"PYTHON": sys.executable}
    flight = subprocess.run(command, cwd=WEB, env=environment, capture_output=True, text=True, check=True, timeout=600)
    flown = json.loads(flight.stdout)

    game, inputs = Flappy(seed), ""
    compiled = skyinfer.load(name).compile({"action": QUESTIONS["action"]})
    for _ in range(frames):
        thrust, glide = compiled.step(game.state_text())
        inputs += str(int(thrust >= glide))
        if not game.step(bool(thrust >= glide)):
            break
    assert (flown["alive"], flown["frames"], flown["gaps"]) == (True, frames, game.score)
    assert "".join(f"{int(digit, 16):04b}" for digit in flown["inputs"]) == inputs
