"""`skyinfer serve`: POST /v1/systemone over HTTP. Its options are those of the server, in serve/options.py."""

from __future__ import annotations

import argparse
import os

from ..serve.options import add_arguments, from_arguments
from .model_option import MODEL_VARIABLE
from .signals import interruptions_deferred

__all__ = ["SUMMARY", "add_arguments", "run"]

SUMMARY = "Answer POST /v1/systemone over HTTP (needs the extra skyinfer[serve])."


def run(arguments: argparse.Namespace) -> None:
    parser: argparse.ArgumentParser = arguments.parser
    if not arguments.models and os.environ.get(MODEL_VARIABLE):
        arguments.models = [os.environ[MODEL_VARIABLE]]
    try:
        options = from_arguments(arguments, dict(os.environ))
    except ValueError as error:
        parser.error(str(error))
    from ..serve import running

    with interruptions_deferred():
        running.import_packages()
    running.run(options)
