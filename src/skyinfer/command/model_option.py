"""Which model a command uses, and in which precision: the options -m and --precision, the environment variable
SKYINFER_MODEL, or the model of the package."""

from __future__ import annotations

import argparse
import os

from ..arguments import A_MODEL, add_precision_option

MODEL_VARIABLE = "SKYINFER_MODEL"


def add_model_option(parser: argparse.ArgumentParser, runs: bool = True) -> None:
    """`runs`: whether the command loads the model to run it here, so that there is a precision to choose."""
    parser.add_argument(
        "-m", "--model", metavar="MODEL",
        help=f"{A_MODEL} (default: the environment variable {MODEL_VARIABLE}, or s1-pico)",
    )  # fmt: skip
    if runs:
        add_precision_option(parser)


def model_path(arguments: argparse.Namespace) -> str | None:
    """What -m or the environment names; None for the model that comes with skyinfer."""
    if arguments.model is not None:
        return str(arguments.model)  # also an empty one, which is refused where it is opened
    return os.environ.get(MODEL_VARIABLE) or None
