"""`skyinfer decide`: the answers to one request, as JSON."""

from __future__ import annotations

import argparse

from ..errors import RequestError, SkyinferError
from ..terminal import put_json
from .model_option import add_model_option, model_path

SUMMARY = "Answer the questions of a request and print the answers as JSON."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("request", metavar="REQUEST.json", help="a request in UTF-8, or - to read it from stdin")
    add_model_option(parser)
    add("--timing", action="store_true", help="add micros, the microseconds that the (first) call took")
    add(
        "--no-temperature-clamp", dest="temperature_clamp", action="store_false",
        help="take the model's raw temperatures, as llama.cpp does",
    )  # fmt: skip


def run(arguments: argparse.Namespace) -> None:
    # faults of the request are told before a large model is loaded
    from ..schema import parse_request
    from .request_file import read_request

    name = "standard input" if arguments.request == "-" else arguments.request
    try:
        body = read_request(arguments.request)
        parse_request(body)
    except RequestError as error:
        raise SkyinferError(f"{name}: {error}") from error

    from ..model import load

    model = load(model_path(arguments), temperature_clamp=arguments.temperature_clamp)
    try:
        response = model.decide(body["state"], body["questions"], timing=arguments.timing)
    except RequestError as error:
        raise SkyinferError(f"{name}: {error}") from error
    put_json(response)
