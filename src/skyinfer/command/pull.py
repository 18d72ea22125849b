"""`skyinfer pull`: a model of the Hugging Face hub into the hub's cache, before it is needed or to know its path."""

from __future__ import annotations

import argparse

from ..errors import SkyinferError
from ..terminal import put_line
from .signals import termination_raised

SUMMARY = "Download a model of the Hugging Face hub and print where it is."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "repository", metavar="OWNER/NAME", help="with @REVISION, and :FILE.gguf or :FOLDER, where there are several"
    )


def run(arguments: argparse.Namespace) -> None:
    from ..files import hub
    from ..files.config import ModelConfig
    from ..model import open_source

    repository = hub.parse(arguments.repository)
    if repository is None:
        raise SkyinferError(f"{arguments.repository}: expected OWNER/NAME of a repository of the Hugging Face hub")
    with termination_raised():
        path = hub.fetch(repository, fresh=True)
    # what only another runtime reads is told here, and not at the first request
    with open_source(path) as source:
        ModelConfig.from_source(source)
    put_line(str(path))
