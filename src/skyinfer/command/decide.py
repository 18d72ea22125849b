"""`skyinfer decide`: the answers to one request, as JSON."""

from __future__ import annotations

import argparse

from ..arguments import ONE_NUMBER, number_in
from ..errors import RequestError, SkyinferError
from ..terminal import put_json, say
from .model_option import add_model_option, model_path

SUMMARY = "Answer the questions of a request and print the answers as JSON."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("request", metavar="REQUEST.json", help="a request in UTF-8, or - to read it from stdin")
    add_model_option(parser)
    add("--timing", action="store_true", help="add micros, the microseconds that the (first) call took")
    add(
        "--min-confidence", metavar="P", type=number_in(float, 0, 1, ONE_NUMBER),
        help="mark answers whose probability is less (x_abstained); instead of the request's x_min_confidence",
    )  # fmt: skip
    add("--long", action="store_true", help="read all of a long state, in overlapping windows")
    add("--window", metavar="N", type=int, help="with --long: tokens of a window (default: by the model)")
    add(
        "--stride", metavar="N", type=int, help="with --long: tokens from one window to the next (default: half of one)"
    )
    add(
        "--no-temperature-clamp", dest="temperature_clamp", action="store_false",
        help="take the model's raw temperatures, as llama.cpp does",
    )  # fmt: skip


def run(arguments: argparse.Namespace) -> None:
    # faults of the request are told before a large model is loaded
    from ..runtime.thresholds import thresholds_of
    from ..runtime.windows import NO_THRESHOLD, Windows, windows_asked
    from ..schema import extensions_said, parse_request, unknown_extensions
    from .request_file import read_request

    given = {"--window": arguments.window, "--stride": arguments.stride}
    for option, number in given.items():
        if number is not None and not arguments.long:
            arguments.parser.error(f"{option} goes with --long")
        if number is not None and number < 1:
            arguments.parser.error(f"{option}: expected 1 or more, got {number}")
    if arguments.long and arguments.min_confidence is not None:
        arguments.parser.error("--min-confidence does not go with --long, whose probabilities are of single windows")
    if None not in given.values() and arguments.stride > arguments.window:
        arguments.parser.error(
            f"--stride {arguments.stride} is longer than --window {arguments.window}: a part would not be read"
        )
    name = "standard input" if arguments.request == "-" else arguments.request
    try:
        body = read_request(arguments.request)
        parse_request(body)
        ignored = unknown_extensions(body)
        least = body.get("x_min_confidence") if arguments.min_confidence is None else arguments.min_confidence
        thresholds_of(least, "x_min_confidence")
        windows = windows_asked(body.get("x_long"), "x_long")
        if arguments.long:
            windows = Windows(arguments.window, arguments.stride)
        if windows is not None and least is not None:
            raise RequestError(("x_min_confidence",), NO_THRESHOLD)
    except RequestError as error:
        raise SkyinferError(f"{name}: {error}") from error

    from ..model import load

    model = load(model_path(arguments), precision=arguments.precision, temperature_clamp=arguments.temperature_clamp)
    try:
        if windows is None:
            response = model.decide(body["state"], body["questions"], timing=arguments.timing, min_confidence=least)
        else:
            response = model.decide_long(body["state"], body["questions"], *windows, timing=arguments.timing)
    except RequestError as error:
        if arguments.long and error.loc == ("stride",):  # against the model's own window
            arguments.parser.error(f"--stride: {error.message}")
        raise SkyinferError(f"{name}: {error}") from error
    if ignored:
        say(f"warning: {extensions_said(ignored)}")
        response["x_ignored"] = ignored
    put_json(response)
