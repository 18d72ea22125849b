"""The command `skyinfer`: the parser, and an exit code that says whose fault it was.

    0    fine; `serve`, too, when a signal has ended it and everyone was answered
    1    the input or a stream is at fault: one line on stderr, never a traceback
    2    the command line is at fault (argparse's own)
    130  interrupted by Ctrl-C; 128 + n, by signal n, once the files that were begun are removed
    141  the reader of stdout went away (`skyinfer ... | head`); nothing is said

A subcommand is a module beside this one with SUMMARY, `add_arguments(parser)` and `run(arguments)`. All of them are
imported for `--help`, so what does the work is imported in `run`.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Any

from .. import __version__
from ..errors import SkyinferError, faults_named, is_exhaustion
from ..files.whole_file import NotForcedError
from ..terminal import abandon_stdout, flush_stdout, say, warnings_said
from . import calibrate, convert, decide, distill, evaluate, info, inspect, play, pull, rows, serve, train, web
from .signals import Terminated, interruptions_noted

# in the order of `--help`
_COMMANDS = {
    "convert": convert,
    "decide": decide,
    "inspect": inspect,
    "pull": pull,
    "train": train,
    "distill": distill,
    "rows": rows,
    "evaluate": evaluate,
    "calibrate": calibrate,
    "play": play,
    "serve": serve,
    "web": web,
    "info": info,
}

_INTERRUPTED, _PIPE_CLOSED = 130, 141
_SIGNALLED = 128


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` (default: the process's own) and return its exit code.

    Raises:
        SystemExit: `--help`, `--version`, or a faulty command line.
    """
    with interruptions_noted() as interruptions:
        return _run(argv, interruptions)


def _run(argv: Sequence[str] | None, interruptions: list[int]) -> int:
    """`main`; `interruptions` is not empty once Ctrl-C has been pressed."""
    try:
        try:
            with warnings_said():
                arguments = parser().parse_args(argv)
                arguments.run(arguments)
        finally:
            flush_stdout()
    except KeyboardInterrupt:
        return _INTERRUPTED
    except Terminated as signalled:
        return _SIGNALLED + signalled.number
    except BrokenPipeError:
        abandon_stdout()
        return _PIPE_CLOSED
    except (ImportError, SkyinferError) as error:
        if interruptions and _is_of_import(error):
            return _INTERRUPTED
        if isinstance(error, ImportError):
            raise
        return _fail(str(error))
    except MemoryError:
        return _fail("out of memory")
    except RuntimeError as error:
        if not is_exhaustion(error):
            raise
        return _fail(f"out of memory or threads: {str(error).splitlines()[0]}")
    except NotForcedError as error:
        return _fail(f"{_subject(error)}exists already; --force replaces it")
    except OSError as error:
        abandon_stdout()
        return _fail(f"{_subject(error)}{error.strerror or error}")
    return 0


def parser() -> argparse.ArgumentParser:
    """The parser of the whole command line; `run` of what it returns is the subcommand."""
    whole = _Parser(
        prog="skyinfer",
        description="System One decision models on a CPU: state and typed questions in, calibrated probabilities out.",
        allow_abbrev=False,
    )
    whole.add_argument("--version", action="version", version=f"skyinfer {__version__}")
    commands = whole.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, command in _COMMANDS.items():
        sub = commands.add_parser(name, help=command.SUMMARY, description=command.SUMMARY, allow_abbrev=False)
        sub.set_defaults(run=command.run, parser=sub)
        command.add_arguments(sub)
    return whole


class _Parser(argparse.ArgumentParser):
    """argparse's, except that a help text that cannot be written is an error."""

    def _print_message(self, message: str, file: Any = None) -> None:
        stream = sys.stderr if file is None else file
        if message and stream is not None:
            with faults_named("standard output"):
                stream.write(message)


def _is_of_import(error: BaseException | None) -> bool:
    """Whether an import failed, or it is what was said of one that did."""
    while error is not None and not isinstance(error, ImportError):
        error = error.__cause__ or error.__context__
    return error is not None


def _fail(message: str) -> int:
    say(message)
    return 1


def _subject(error: OSError) -> str:
    name = error.filename
    return "" if name is None else f"{os.fsdecode(name) if isinstance(name, (str, bytes)) else name}: "
