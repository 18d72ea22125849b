"""The labelled rows of a command: a file, and the questions of rows that have none of their own."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ..errors import SkyinferError
from ..terminal import say
from .request_file import read_questions

if TYPE_CHECKING:
    from ..evaluation.labelled import LabelledRows


def add_labelled_rows(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "rows", metavar="LABELLED", help="rows of state, questions and answers, as `skyinfer train` reads them"
    )
    parser.add_argument(
        "-q",
        "--questions",
        metavar="FILE",
        help="JSON: the questions of rows without their own, as in a .csv",
    )


def read_labelled_rows(arguments: argparse.Namespace, by: str | None = None) -> LabelledRows:
    """The rows that the command line names; every fault is said, with its line.

    Raises:
        SkyinferError, OSError: they are faulty, or cannot be read.
    """
    from ..evaluation.labelled import read_labelled
    from ..train.rows import RowsError

    questions = None if arguments.questions is None else read_questions(arguments.questions)
    try:
        return read_labelled(arguments.rows, by, questions)
    except RowsError as fault:
        for line in fault.lines():
            say(line)
        raise SkyinferError(fault.summary) from fault
