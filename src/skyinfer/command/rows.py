"""`skyinfer rows`: the same questions about every row of a file."""

from __future__ import annotations

import argparse
import errno
import os
import sys
import time
from typing import Any

from ..arguments import ONE_NUMBER, number_in
from ..errors import RequestError, SkyinferError, faults_named
from ..terminal import Progress, say
from .model_option import add_model_option, model_path
from .request_file import read_questions
from .signals import Terminated, WholeWrites, termination_raised

SUMMARY = "Answer the same questions about every row of a Parquet, CSV, JSON Lines or Arrow file."

_FORMATS = ("parquet", "csv", "jsonl", "arrow")
_ALLOCATOR = "ARROW_DEFAULT_MEMORY_POOL"  # read when pyarrow is imported
_SAY_EVERY = 60.0  # seconds, where there is no terminal


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("source", metavar="IN", help="the file of rows; - reads JSON Lines from stdin")
    add("-q", "--questions", metavar="QUESTIONS.json", required=True, help="questions by id, or a request with them")
    add("-o", "--out", metavar="OUT", required=True, help="the file to write; - writes JSON Lines to stdout")
    add_model_option(parser)
    add("--state", metavar="COLUMN", action="append", help="the state's column (default: state); several: an object")
    add("--parse-json", action="store_true", help="the state's column holds JSON as text")
    add("--text", action="store_true", help="take every column of a CSV file for text")
    add("--from", dest="source_format", choices=_FORMATS, help="format of IN (default: by its name)")
    add("--to", dest="out_format", choices=_FORMATS, help="format of OUT (default: by its name)")
    add("--probabilities", choices=("list", "columns"), help="a list for each question (default; for CSV columns)")
    add("--prefix", default="", help="what the names of the answers' columns begin with")
    add("--on-error", choices=("stop", "keep"), default="stop",
        help="a faulty row ends the run (default), or has null answers and its error in x_error")  # fmt: skip
    add("--min-confidence", metavar="P", type=number_in(float, 0, 1, ONE_NUMBER),
        help="add columns that say of which answers the probability is less (ID_abstained)")  # fmt: skip
    add("--shard", metavar="I/N", type=_shard, default=(1, 1), help="only the I-th of N equal parts, from 1 on")
    add(
        "--threads",
        metavar="N",
        type=number_in(int, 1, 256),
        help="batches at once (default: by the model and the CPUs)",
    )
    add("--resume", action="store_true", help="go on with the unfinished run in OUT.parts")
    add("--force", action="store_true", help="replace OUT, and an unfinished run")


def import_arrow() -> None:
    """Imports pyarrow with the system's allocator, unless the environment names another: its usual one keeps tens of
    megabytes that its threads have freed. Without effect where pyarrow has been imported already.

    Raises:
        SkyinferError: it is not there.
    """
    named = _ALLOCATOR in os.environ
    os.environ.setdefault(_ALLOCATOR, "system")
    try:
        from .. import rows as _  # noqa: F401
    except ImportError as error:
        raise SkyinferError(str(error)) from error
    finally:
        if not named:
            del os.environ[_ALLOCATOR]


def run(arguments: argparse.Namespace) -> None:
    import_arrow()
    from ..rows.files import format_of
    from ..rows.runs import UnfinishedError, parts_of
    from ..rows.states import ColumnError

    try:
        formats = format_of(arguments.source, arguments.source_format), format_of(arguments.out, arguments.out_format)
    except ValueError as error:
        arguments.parser.error(f"{error}, or give --from and --to")
    for path, form in zip((arguments.source, arguments.out), formats, strict=True):
        if path == "-" and form != "jsonl":
            arguments.parser.error("standard input and output are JSON Lines")
    if "-" in (arguments.source, arguments.out) and (arguments.resume or arguments.shard != (1, 1)):
        arguments.parser.error("--resume and --shard are for files")
    if arguments.resume and arguments.force:
        arguments.parser.error("--resume goes on with a run and --force starts over; give one of them")
    questions = read_questions(arguments.questions)
    options = {
        "state": arguments.state or [],
        "parse_json": arguments.parse_json,
        "as_text": arguments.text,
        "probabilities": arguments.probabilities or ("columns" if formats[1] == "csv" else "list"),
        "prefix": arguments.prefix,
        "on_error": "keep" if arguments.on_error == "keep" else "raise",
        "min_confidence": arguments.min_confidence,
        "threads": arguments.threads,
    }
    name = "standard input" if arguments.source == "-" else arguments.source
    with termination_raised(), Progress(sys.stderr) as progress:
        try:
            n_rows = _answered(arguments, questions, formats, options, _Rate(progress))
        except UnfinishedError as error:
            raise SkyinferError(str(error)) from error
        except ColumnError as error:
            raise SkyinferError(f"{name}: {error}") from error
        except RequestError as error:
            if error.loc[:1] == ("questions",):
                raise SkyinferError(f"{arguments.questions}: {error}") from error
            if error.loc[:1] != ("rows",):
                raise
            raise SkyinferError(f"{name}: {error}; --on-error keep writes such rows with their errors") from error
        except (KeyboardInterrupt, Terminated):
            if parts_of(arguments.out).is_dir():
                say("interrupted; --resume goes on from here")
            raise
    if arguments.out != "-":
        say(f"{arguments.out}: {n_rows} row{'' if n_rows == 1 else 's'}")


def _answered(
    arguments: argparse.Namespace, questions: Any, formats: tuple[str, str], options: dict[str, Any], rate: _Rate
) -> int:
    from .. import load
    from ..files.paths import checked_path, open_regular
    from ..files.whole_file import WholeFile, refuse_inputs
    from ..rows.runs import answer_file, answer_stream, replaces

    replace = arguments.force or (arguments.resume and replaces(arguments.out))
    if arguments.out != "-":
        refuse_inputs(arguments.out, arguments.source, arguments.questions, model_path(arguments))
    whole = None if arguments.out == "-" else WholeFile(arguments.out, replace=replace)
    if arguments.source != "-":
        path = checked_path(arguments.source)
        with faults_named(path):
            open_regular(path).close()
    model = load(model_path(arguments), precision=arguments.precision)
    if arguments.source != "-" and whole is not None:
        return answer_file(
            model, questions, path, formats[0], whole, formats[1], shard=arguments.shard, resume=arguments.resume,
            force=arguments.force, progress=rate.show, **options,
        )  # fmt: skip
    if arguments.source == "-":
        source, name = sys.stdin.buffer if sys.stdin is not None else None, "standard input"
        if source is None:
            raise OSError(errno.EBADF, "is closed", name)
    else:
        source, name = open(path, "rb"), str(path)  # noqa: SIM115
    with source:
        if whole is not None:
            with whole.writing() as out:
                return answer_stream(
                    model, questions, source, name, formats[0], out, formats[1], progress=rate.show, **options
                )
        if sys.stdout is None:
            raise OSError(errno.EBADF, "is closed", "standard output")
        with faults_named("standard output"):
            return answer_stream(
                model, questions, source, name, formats[0], WholeWrites(sys.stdout.buffer), formats[1],
                progress=rate.show, **options,
            )  # fmt: skip


class _Rate:
    """Rows a second since the run began, and the time left: drawn on a terminal, said once a minute elsewhere."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._begun: tuple[float, int] | None = None
        self._said = time.monotonic()

    def show(self, done: int, total: int | None) -> None:
        now = time.monotonic()
        if self._begun is None:  # what an earlier run did does not count
            self._begun = now, done
            return
        start, before = self._begun
        rate = (done - before) / max(now - start, 1e-9)
        text = f"{rate:,.0f} rows/s"
        if total is not None and rate > 0:
            text += f", {_duration((total - done) / rate)} left"
        self._progress.show_rows(text, done, total)
        if not self._progress.is_shown and now - self._said >= _SAY_EVERY:
            self._said = now
            say(f"{done} rows{'' if total is None else f' of {total}'}, {text}")


def _duration(seconds: float) -> str:
    minutes, hours = seconds / 60, seconds / 3600
    return f"{seconds:.0f} s" if minutes < 2 else f"{minutes:.0f} min" if hours < 2 else f"{hours:.0f} h"


def _shard(text: str) -> tuple[int, int]:
    i, _, n = text.partition("/")
    if not (i.isdecimal() and n.isdecimal() and 1 <= int(i) <= int(n)):
        raise argparse.ArgumentTypeError(f"expected I/N such as 1/4, from 1/N to N/N, got {text!r}")
    return int(i), int(n)
