"""What command lines have in common: options, and types of values. `skyinfer --help` imports this: keep it light."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable

from .runtime.precision import EXACT, PRECISIONS


def add_precision_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--precision", choices=PRECISIONS, default=EXACT,
        help="exact (default), or int8: weights of 8 bits, a quarter of the memory, faster, and answers near the exact",
    )  # fmt: skip


def number_in(kind: type[int] | type[float], least: float, most: float) -> Callable[[str], float]:
    """For argparse's `type`: a number from `least` to `most`."""

    def parse(text: str) -> float:
        try:
            value = kind(text)
        except ValueError:
            value = math.nan
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"expected {least:g} to {most:.10g}, got {text!r}")
        return value

    return parse
