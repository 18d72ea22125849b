"""`skyinfer calibrate`: a copy of a model with temperatures that suit labelled rows."""

from __future__ import annotations

import argparse
import sys

from ..terminal import Progress, put_json, put_line
from .labelled_rows import add_labelled_rows, read_labelled_rows
from .model_option import add_model_option, model_path
from .signals import termination_raised

SUMMARY = "Fit a model's temperatures to labelled rows and write a copy that has them."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add_labelled_rows(parser)
    add_model_option(parser)
    add("-o", "--out", metavar="OUT", required=True, help="a GGUF file where MODEL is one, else a new directory")
    add(
        "--held-out", metavar="SHARE", type=float, default=0.3,
        help="of the states, which nothing is learned from, for the numbers before and after (default: 0.3)",
    )  # fmt: skip
    add("--seed", metavar="S", type=int, default=0, help="of the draw of held-out states (default: 0)")
    add("--force", action="store_true", help="replace the file OUT; a directory is never replaced")
    add("--json", action="store_true", help="print the report as JSON")


def run(arguments: argparse.Namespace) -> None:
    if not 0 < arguments.held_out < 1:
        arguments.parser.error(f"--held-out: expected a number between 0 and 1, got {arguments.held_out:g}")
    if arguments.seed < 0:
        arguments.parser.error("--seed: expected 0 or more")

    from ..evaluation import calibrate
    from ..files.whole_file import refuse_inputs
    from ..model import load

    refuse_inputs(arguments.out, arguments.rows, arguments.questions, model_path(arguments))
    rows = read_labelled_rows(arguments)
    with termination_raised(), Progress(sys.stderr) as progress:
        found = calibrate(
            rows,
            load(model_path(arguments), precision=arguments.precision),
            arguments.out,
            held_out=arguments.held_out,
            seed=arguments.seed,
            force=arguments.force,
            progress=progress.show_steps,
        )
    if arguments.json:
        put_json(found.report)
    else:
        put_line(found.as_text())
