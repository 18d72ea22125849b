"""`skyinfer train`: a model from rows of states, questions and answers."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import SkyinferError
from ..terminal import put_json, put_line, say
from .request_file import read_questions
from .signals import Terminated, termination_raised

DEFAULT_SIZE = "pico"

SUMMARY = "Train a model on rows of states, questions and answers."

# those that `train_rows` has under the same names
_OPTIONS = ("size", "architecture", "init", "epochs", "seed", "vocab_size", "max_len", "head_max_len", "batch_size",
            "lr", "held_out", "augment", "evaluate", "threads", "resume", "force")  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "rows",
        metavar="ROWS",
        help="a file of JSON Lines, an object a line: state, questions, answers; or a .csv table",
    )
    add("-q", "--questions", metavar="FILE", help="JSON: the questions of rows that have none of their own")
    add("-o", "--out", metavar="DIR", required=True, help="the checkpoint directory to write")
    add("--size", metavar="NAME", help="pico, nano or micro (default: pico; not with --init)")
    add(
        "--architecture",
        metavar="NAME",
        help="s1, a Laya model (default), or s2, which reads a state once for all questions",
    )
    add("--init", metavar="MODEL", help="start from this checkpoint or GGUF file: its weights, size and tokenizer")
    add("--epochs", metavar="N", type=float, help="passes over the rows (default: by their number)")
    add("--seed", metavar="S", type=int, default=0, help="same seed, same bytes (default: 0)")
    add("--vocab-size", metavar="N", type=int, help="tokens of the tokenizer (default: by the size)")
    add("--max-len", metavar="N", type=int, help="tokens of a sequence (default: by the size)")
    add("--head-max-len", metavar="N", type=int, help="tokens of question and options (default: by size)")
    add("--batch-size", metavar="N", type=int, help="questions in a step (default: 128, or fewer)")
    add("--lr", metavar="RATE", type=float, help="highest learning rate (default: by the size)")
    add(
        "--held-out", metavar="FRACTION", type=float,
        help="of the states, for temperatures and report (default: a tenth, at most 10,000 states)",
    )  # fmt: skip
    add(
        "--augment", metavar="KINDS", default="all",
        help="what is varied: options, keys, numbers, spaces, extra, with commas between them; all (default) or none",
    )  # fmt: skip
    add("--eval", dest="evaluate", metavar="FILE", help="rows of your own that the report judges the model on")
    add("--threads", metavar="N", type=int, help="default: the CPUs that the process may use")
    add("--resume", action="store_true", help="go on with the unfinished training in DIR")
    add("--force", action="store_true", help="replace the checkpoint, or the unfinished training, in DIR")
    add("--json", action="store_true", help="print the report as JSON")


def run(arguments: argparse.Namespace) -> None:
    try:
        from ..train.training import train_rows
    except ImportError as error:
        raise SkyinferError(str(error)) from error
    check_start(arguments)
    if arguments.resume and arguments.force:
        arguments.parser.error("--resume goes on with a training and --force starts over; give one of them")
    questions = None if arguments.questions is None else read_questions(arguments.questions)
    with termination_raised(), training_faults_told(arguments, "--resume goes on from here"):
        report = train_rows(
            arguments.rows,
            arguments.out,
            questions=questions,
            **{name: getattr(arguments, name) for name in _OPTIONS},
        )
    if arguments.json:
        put_json(report.as_dict())
    else:
        put_line(report.as_text())


def check_start(arguments: argparse.Namespace) -> None:
    """Refuses a size beside `init`, whose own is taken, and takes the default where neither is given."""
    if arguments.init is not None and arguments.size is not None:
        arguments.parser.error("--size: a model that starts from --init has its size; leave --size out")
    arguments.size = arguments.size or DEFAULT_SIZE


@contextmanager
def training_faults_told(
    arguments: argparse.Namespace, after_interruption: str, kept: Path | None = None
) -> Iterator[None]:
    """Tells what a training raises by the options of a command, which has `out`, `force` and `parser`.

    `after_interruption`: said where there is something to go on with: an unfinished training, or the file `kept`.
    """
    from ..train.directory import SnapshotError
    from ..train.options import OptionError, UnfinishedError
    from ..train.rows import RowsError

    unfinished = _time_of(arguments.out)
    try:
        yield
    except RowsError as error:
        for line in error.lines():
            say(line)
        raise SkyinferError(f"{error.summary}; nothing was trained") from error
    # the library names its arguments, the command its options
    except SnapshotError as error:
        raise SkyinferError(f"{error.fault}; --force starts over") from error
    except UnfinishedError as error:
        message = "holds an unfinished training; --resume goes on with it, --force starts over"
        raise FileExistsError(error.errno, message, error.filename) from None
    except FileExistsError as error:
        message = "holds a checkpoint already; --force replaces it"
        raise FileExistsError(error.errno, message, error.filename) from None
    except OptionError as error:
        arguments.parser.error(str(error))
    except FloatingPointError as error:
        raise SkyinferError(str(error)) from error
    except (KeyboardInterrupt, Terminated):
        # one that --force was about to replace is of another training
        now = _time_of(arguments.out)
        goes_on = now is not None and not (arguments.force and now == unfinished)
        if goes_on or (kept is not None and kept.exists()):
            say(f"interrupted; {after_interruption}")
        raise


def _time_of(out: str) -> int | None:
    """When the snapshot of the unfinished training in `out` was written."""
    from ..train.directory import snapshot_of

    try:
        return snapshot_of(out).stat().st_mtime_ns
    except (OSError, ValueError):
        return None
