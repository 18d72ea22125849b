"""`skyinfer play`: flights of the drone in a picture, or without one as a table or JSON."""

from __future__ import annotations

import argparse

from ..terminal import flush_stdout, printable, put_json, put_line
from .model_option import add_model_option, model_path
from .signals import termination_raised

SUMMARY = "Watch a model fly a drone through walls, or fly it yourself."

# seconds of a flight: by default without a terminal, and at most
_HEADLESS_SECONDS, _LONGEST_FLIGHT = 600, 10_000_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add_model_option(parser)
    add("--pilot", choices=("model", "teacher", "random"), default="model", help="default: model")
    add("--difficulty", choices=("easy", "normal", "hard"), default="hard", help="default: hard")
    add("--seed", metavar="S", type=int, default=0, help="of the first flight; later ones count up")
    add(
        "--seconds", metavar="N", type=float,
        help=f"that a flight may last (default: {_HEADLESS_SECONDS} headless, else no limit)",
    )  # fmt: skip
    add("--episodes", metavar="N", type=int, help="flights (default: 1 headless, else until you quit)")
    add("--headless", action="store_true", help="fly as fast as it goes, show a table and no picture")
    add("--json", action="store_true", help="with --headless: print JSON")


def run(arguments: argparse.Namespace) -> None:
    parser: argparse.ArgumentParser = arguments.parser
    episodes, seconds = arguments.episodes, arguments.seconds
    if episodes is not None and episodes < 1:
        parser.error(f"argument --episodes: expected at least 1, got {episodes}")
    if seconds is not None and not 0 < seconds <= _LONGEST_FLIGHT:
        parser.error(f"argument --seconds: expected more than 0 and at most {_LONGEST_FLIGHT}, got {seconds:g}")
    if not 0 <= arguments.seed < 1 << 63:
        parser.error(f"argument --seed: expected at least 0 and below 2**63, got {arguments.seed}")
    if arguments.json and not arguments.headless:
        parser.error("argument --json: needs --headless")

    from ..games import play
    from ..games.flappy import FRAMES_PER_SECOND

    terminal = None if arguments.headless else play.open_terminal()
    model = model_name = None
    if arguments.pilot == "model":
        from ..model import load

        model = load(model_path(arguments), precision=arguments.precision)
        model_name = printable(model.name)
    if terminal is None:
        frames = max(1, round((seconds or _HEADLESS_SECONDS) * FRAMES_PER_SECOND))
        seeds = range(arguments.seed, arguments.seed + (episodes or 1))
        flown = []
        if not arguments.json:
            put_line(play.TABLE_HEAD)
        for episode in play.fly_headless(arguments.pilot, model, arguments.difficulty, seeds, frames):
            flown.append(episode)
            if not arguments.json:
                put_line(play.table_row(episode))
                flush_stdout()
    else:
        with termination_raised():
            flown = play.Show(
                terminal,
                arguments.pilot,
                model,
                model_name=model_name,
                difficulty=arguments.difficulty,
                seed=arguments.seed,
                frames=None if seconds is None else max(1, round(seconds * FRAMES_PER_SECOND)),
                episodes=episodes,
            ).run()
        put_line(play.TABLE_HEAD)
        for episode in flown:
            put_line(play.table_row(episode))
    if arguments.json:
        put_json(play.as_json(flown))
    elif flown:
        put_line(play.table_foot(flown))
