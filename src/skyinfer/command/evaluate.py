"""`skyinfer evaluate`: how good a model is on labelled rows, or two models side by side."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from ..errors import SkyinferError
from ..terminal import Progress, put_json, put_line, say
from .model_option import A_MODEL, MODEL_VARIABLE, model_path

if TYPE_CHECKING:
    from ..evaluation import Evaluation

SUMMARY = "Measure a model, or two, on labelled rows."

_METRICS = ("accuracy", "log_loss", "brier", "ece", "auc", "mean_error")
_SUFFIXES = (".json", ".html")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("rows", metavar="LABELLED", help="rows of state, questions and answers, as `skyinfer train` reads them")
    add(
        "-m", "--model", metavar="MODEL", action="append",
        help=f"{A_MODEL} (default: {MODEL_VARIABLE}, or s1-pico); a second one is compared with the first",
    )  # fmt: skip
    add("-o", "--out", metavar="REPORT", help="write the report: .json, or .html for a page with diagrams")
    add("--by", metavar="COLUMN", help="also by a field of the rows (x_lang) or a key of their states (state.lang)")
    add(
        "--wanted-accuracy", metavar="A", type=float, default=0.95,
        help="find the threshold (min_confidence) for this accuracy (default: 0.95)",
    )  # fmt: skip
    add(
        "--fail-under", metavar="NAME=VALUE", action="append", type=_limit, default=[],
        help="exit with 1 where the first model has less, as accuracy=0.9 or QUESTION.auc=0.8",
    )  # fmt: skip
    add(
        "--fail-over", metavar="NAME=VALUE", action="append", type=_limit, default=[],
        help="exit with 1 where it has more, as ece=0.05, log_loss=0.4, brier=0.1",
    )  # fmt: skip
    add("--samples", metavar="N", type=int, default=1000, help="of the bootstrap; 0 for no intervals (default: 1000)")
    add("--seed", metavar="S", type=int, default=0, help="of the bootstrap (default: 0)")
    add("--force", action="store_true", help="replace REPORT")
    add("--json", action="store_true", help="print the report as JSON")


def _limit(text: str) -> tuple[str, float]:
    name, equals, value = text.rpartition("=")
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not equals or math.isnan(number) or name.rpartition(".")[2] not in _METRICS:
        raise argparse.ArgumentTypeError(f"{text!r}: expected NAME=VALUE, NAME one of {', '.join(_METRICS)}")
    return name, number


def run(arguments: argparse.Namespace) -> None:
    error = arguments.parser.error
    if not 0 < arguments.wanted_accuracy <= 1:
        error(f"--wanted-accuracy: expected a number above 0, up to 1, got {arguments.wanted_accuracy:g}")
    if arguments.samples < 0 or arguments.seed < 0:
        error("--samples and --seed: expected 0 or more")
    models = arguments.model or [None]
    if len(models) > 2:
        error(f"-m: one model or two, got {len(models)}")
    suffix = os.path.splitext(arguments.out or "")[1].lower()
    if arguments.out is not None and suffix not in _SUFFIXES:
        error(f"-o: the name of a report ends in {' or '.join(_SUFFIXES)}, not as {arguments.out!r}")

    from ..evaluation import evaluate
    from ..evaluation.labelled import read_labelled
    from ..files.whole_file import WholeFile, refuse_inputs
    from ..model import load
    from ..train.rows import RowsError

    if arguments.out is not None:
        refuse_inputs(arguments.out, arguments.rows, *models)
    target = None if arguments.out is None else WholeFile(arguments.out, replace=arguments.force)
    try:
        rows = read_labelled(arguments.rows, arguments.by)
    except RowsError as fault:
        for line in fault.lines():
            say(line)
        raise SkyinferError(f"{fault.source}: {len(fault.faults)} of {fault.n_rows} rows are faulty") from fault
    loaded = [load(model_path(argparse.Namespace(model=name))) for name in models]
    with Progress(sys.stderr) as progress:
        found = evaluate(
            rows,
            *loaded,
            by=arguments.by,
            wanted_accuracy=arguments.wanted_accuracy,
            samples=arguments.samples,
            seed=arguments.seed,
            progress=progress.show_steps,
        )
    if target is not None:
        from ..evaluation.page import page

        text = page(found.report) if suffix == ".html" else json.dumps(found.report, indent=1) + "\n"
        with target.writing() as file, target.faults_named():
            file.write(text.encode("utf-8", "backslashreplace"))
    if arguments.json:
        put_json(found.report)
    else:
        put_line(found.as_text())
    failed = [
        *_failed(found, arguments.fail_under, "under", lambda value, limit: value < limit),
        *_failed(found, arguments.fail_over, "over", lambda value, limit: value > limit),
    ]
    if failed:
        raise SkyinferError("; ".join(failed))


def _failed(
    found: Evaluation, limits: list[tuple[str, float]], word: str, fails: Callable[[float, float], bool]
) -> list[str]:
    """What is said of each limit that the first model does not keep."""
    failed = []
    for name, limit in limits:
        try:
            value = found.value(name)
        except KeyError:
            fault = "there is no such question, or it has no such number"
            raise SkyinferError(f"--fail-{word} {name}: {fault}") from None
        if value is None or fails(value, limit):
            failed.append(f"{name} is {'undefined' if value is None else format(value, '.6g')}, {word} {limit:g}")
    return failed
