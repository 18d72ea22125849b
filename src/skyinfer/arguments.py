"""What command lines have in common: options, and types of values. `skyinfer --help` imports this: keep it light."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable

from .runtime.precision import EXACT, PRECISIONS

# for `number_in`: said of a threshold that is not one, as x_min_confidence of a request may hold
ONE_NUMBER = "; the command takes one number only, for all questions"


def add_precision_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--precision", choices=PRECISIONS, default=EXACT,
        help="exact (default), or int8: weights of 8 bits, a quarter of the memory, answers near the exact ones, "
        "in less time for large models",
    )  # fmt: skip


def number_in(kind: type[int] | type[float], least: float, most: float, hint: str = "") -> Callable[[str], float]:
    """For argparse's `type`: a number from `least` to `most`. `hint`: what else is said of a text that is none."""

    def parse(text: str) -> float:
        try:
            value = kind(text)
        except ValueError:
            value = math.nan
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"expected {least:g} to {most:.10g}, got {text!r}{hint}")
        return value

    return parse
