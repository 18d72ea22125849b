"""What command lines have in common: options, and types of values. `skyinfer --help` imports this: keep it light."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable

from .runtime.precision import EXACT, PRECISIONS

# for `number_in`: said of a threshold that is not one, as x_min_confidence of a request may hold
ONE_NUMBER = "; the command takes one number only, for all questions"

# what a MODEL on the command line may be
A_MODEL = "a GGUF file, a checkpoint directory, s1-pico or s2-pico, or OWNER/NAME on the Hugging Face hub"

_A_PRECISION = (
    "exact (default), or int8: weights of 8 bits, a quarter of the memory, answers near the exact ones, in less time "
    "for large models"
)


def add_precision_option(parser: argparse.ArgumentParser, of: str = "") -> None:
    """`of`: which model it is about, in a command that has several."""
    text = f"of {of}: {_A_PRECISION}" if of else _A_PRECISION
    parser.add_argument("--precision", choices=PRECISIONS, default=EXACT, help=text)


def add_precision_options(parser: argparse.ArgumentParser) -> None:
    """--precision of a command that compares models; `precisions_of` reads it."""
    parser.add_argument(
        "--precision", choices=PRECISIONS, action="append", default=[],
        help=f"{_A_PRECISION}; once for all models, or once for each -m, in their order",
    )  # fmt: skip


def precisions_of(arguments: argparse.Namespace, n_models: int) -> list[str]:
    """One precision for each model; a number of them that fits neither way ends the command as argparse does."""
    given: list[str] = arguments.precision or [EXACT]
    if len(given) == 1:
        return given * n_models
    if len(given) != n_models:
        models = f"each of {n_models} models" if n_models > 1 else "one model (name it twice to compare precisions)"
        arguments.parser.error(f"--precision: given {len(given)} times; expected once, or once for {models}")
    return given


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
