"""`skyinfer evaluate`: how good a model is on labelled rows, or two models side by side."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from ..arguments import A_MODEL, add_precision_options, precisions_of
from ..errors import SkyinferError
from ..terminal import Progress, put_json, put_line
from .labelled_rows import add_labelled_rows, read_labelled_rows
from .model_option import MODEL_VARIABLE, model_path

if TYPE_CHECKING:
    from ..evaluation import Evaluation

SUMMARY = "Measure a model, or two, on labelled rows."

# each with the most that it can be; the least is 0
_METRICS = {"accuracy": 1.0, "log_loss": math.inf, "brier": 2.0, "ece": 1.0, "auc": 1.0, "mean_error": math.inf}
_SUFFIXES = (".json", ".html", ".png")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add_labelled_rows(parser)
    add(
        "-m", "--model", metavar="MODEL", action="append",
        help=f"{A_MODEL} (default: {MODEL_VARIABLE}, or s1-pico); a second one is compared with the first",
    )  # fmt: skip
    add(
        "-o",
        "--out",
        metavar="REPORT",
        help="write the report: .json, or with diagrams .html or .png (needs the extra skyinfer[plot])",
    )
    add_precision_options(parser)
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
    metric = name.rpartition(".")[2]
    if not equals or math.isnan(number) or metric not in _METRICS:
        raise argparse.ArgumentTypeError(f"{text!r}: expected NAME=VALUE, NAME one of {', '.join(_METRICS)}")
    if not 0 <= number <= _METRICS[metric]:
        most = "0 or more" if math.isinf(_METRICS[metric]) else f"0 to {_METRICS[metric]:g}"
        raise argparse.ArgumentTypeError(f"{text!r}: {metric} is {most}")
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
    precisions = precisions_of(arguments, len(models))
    suffix = os.path.splitext(arguments.out or "")[1].lower()
    if arguments.out is not None and suffix not in _SUFFIXES:
        error(f"-o: the name of a report ends in .json, .html or .png, not as {arguments.out!r}")

    from ..evaluation import evaluate
    from ..files.whole_file import WholeFile, refuse_inputs
    from ..model import load

    if arguments.out is not None:
        refuse_inputs(arguments.out, arguments.rows, arguments.questions, *models)
    target = None if arguments.out is None else WholeFile(arguments.out, replace=arguments.force)
    drawn = _drawing(suffix)
    rows = read_labelled_rows(arguments, arguments.by)
    loaded = [
        load(model_path(argparse.Namespace(model=name)), precision=precision)
        for name, precision in zip(models, precisions, strict=True)
    ]
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
        content = drawn(found)
        with target.writing() as file, target.faults_named():
            file.write(content)
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


def _drawing(suffix: str) -> Callable[[Evaluation], bytes]:
    """What makes the report's file of an evaluation.

    Raises:
        SkyinferError: matplotlib is missing; told before anything is measured.
    """
    if suffix == ".png":
        from ..evaluation.picture import picture
        from ..train.reliability_plot import new_figure

        try:
            new_figure(1, 1)
        except ImportError as error:
            raise SkyinferError(f"{error}, or write .html, which needs nothing") from error
        return lambda found: picture(found.report)
    if suffix == ".html":
        from ..evaluation.page import page

        return lambda found: page(found.report).encode("utf-8", "backslashreplace")
    return lambda found: (json.dumps(found.report, indent=1) + "\n").encode()


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
