"""The command `skyinfer`: arguments in, one line or one JSON document out, an exit code that says whose fault it was.

    0    fine; `serve`, too, when a signal has ended it and everyone was answered
    1    the input or a stream is at fault: one line on stderr, never a traceback
    2    the command line is at fault (argparse's own)
    130  interrupted by Ctrl-C; 128 + n, by signal n, once what `convert` had begun is removed
    141  the reader of stdout went away (`skyinfer ... | head`); nothing is said

The work is done by other rooms, which are imported when a command runs, so that `--help` and mistakes answer at once.
"""

from __future__ import annotations

import argparse
import errno
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from .. import __version__
from ..errors import RequestError, SkyinferError, faults_named
from ..files.outtypes import OUTTYPES
from ..files.paths import byte_order_mark, checked_path
from ..serve.options import add_arguments, from_arguments
from ..terminal import (
    Progress,
    abandon_stdout,
    flush_stdout,
    printable,
    put_json,
    put_line,
    say,
    size,
    warnings_said,
)

MODEL_VARIABLE = "SKYINFER_MODEL"

# seconds of a flight of `play`: by default without a terminal, and at most
_HEADLESS_SECONDS, _LONGEST_FLIGHT = 600, 10_000_000

_INTERRUPTED, _PIPE_CLOSED = 130, 141
_SIGNALLED = 128


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` (default: the process's own) and return its exit code.

    Raises:
        SystemExit: `--help`, `--version`, or a faulty command line.
    """
    try:
        try:
            with warnings_said():
                arguments = _parser().parse_args(argv)
                arguments.run(arguments)
        finally:
            flush_stdout()
    except KeyboardInterrupt:
        return _INTERRUPTED
    except _Terminated as signalled:
        return _SIGNALLED + signalled.number
    except BrokenPipeError:
        abandon_stdout()
        return _PIPE_CLOSED
    except SkyinferError as error:
        return _fail(str(error))
    except MemoryError:
        return _fail("out of memory")
    except OSError as error:
        abandon_stdout()
        return _fail(f"{_subject(error)}{error.strerror or error}")
    return 0


def _subject(error: OSError) -> str:
    name = error.filename
    return "" if name is None else f"{os.fsdecode(name) if isinstance(name, (str, bytes)) else name}: "


class _Terminated(BaseException):
    """A signal that asks the process to end; not an Exception, so that nothing takes it for a fault."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@contextmanager
def _termination_raised() -> Iterator[None]:
    """Turn SIGTERM and SIGHUP into an exception, so that what was begun is cleaned up; the next one is ignored."""

    def end(number: int, _: object) -> None:
        for other in before:
            signal.signal(other, signal.SIG_IGN)
        raise _Terminated(number)

    before: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for name in ("SIGTERM", "SIGHUP"):
            number = getattr(signal, name, None)
            # a shell's nohup has it ignored, and so it stays
            if number is not None and signal.getsignal(number) == signal.SIG_DFL:
                before[number] = signal.signal(number, end)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _fail(message: str) -> int:
    say(message)
    return 1


class _Parser(argparse.ArgumentParser):
    """argparse's, which takes a help text that could not be written for written."""

    def _print_message(self, message: str, file: Any = None) -> None:
        stream = sys.stderr if file is None else file
        if message and stream is not None:
            with faults_named("standard output"):
                stream.write(message)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="skyinfer",
        description="System One decision models on a CPU: state and typed questions in, calibrated probabilities out.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"skyinfer {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    def command(name: str, run: Callable[[argparse.Namespace], None], summary: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=summary, description=summary, allow_abbrev=False)
        sub.set_defaults(run=run, parser=sub)
        return sub

    sub = command("convert", _convert, "Write a Laya checkpoint directory as one GGUF file.")
    sub.add_argument("checkpoint", metavar="CHECKPOINT_DIR", help="directory with rl_agent_config.json and weights")
    sub.add_argument("-o", "--out", metavar="OUT.gguf", required=True, help="the file to write")
    sub.add_argument("--outtype", choices=OUTTYPES, default="f16", help="number type of the matrices (default: f16)")
    sub.add_argument("--pre", metavar="NAME", help="tokenizer.ggml.pre, where the tokenizer should not decide")
    sub.add_argument("--name", metavar="NAME", help="general.name (default: the directory's name)")
    sub.add_argument("--force", action="store_true", help="replace an existing file")

    sub = command("decide", _decide, "Answer the questions of a request and print the answers as JSON.")
    sub.add_argument("request", metavar="REQUEST.json", help="a request in UTF-8, or - to read it from stdin")
    sub.add_argument(
        "-m", "--model", metavar="MODEL",
        help=f"a GGUF file or checkpoint directory (default: the environment variable {MODEL_VARIABLE}, or s1-pico)",
    )  # fmt: skip
    sub.add_argument("--timing", action="store_true", help="add micros, the microseconds that the (first) call took")
    sub.add_argument(
        "--no-temperature-clamp", dest="temperature_clamp", action="store_false",
        help="take the model's raw temperatures, as llama.cpp does",
    )  # fmt: skip

    sub = command("inspect", _inspect, "Say what a GGUF file or checkpoint directory holds.")
    sub.add_argument("model", metavar="MODEL", help="a GGUF file or checkpoint directory")
    sub.add_argument("--json", action="store_true", help="print JSON")
    sub.add_argument("--tensors", action="store_true", help="list every tensor")

    sub = command("train", _train, "Train a model on rows of states, questions and answers.")
    sub.add_argument("rows", metavar="ROWS.jsonl", help="an object a line: state, questions, answers; perhaps weight")
    sub.add_argument("-o", "--out", metavar="DIR", required=True, help="the checkpoint directory to write")
    sub.add_argument("--size", metavar="NAME", default="pico", help="pico, nano or micro (default: pico)")
    sub.add_argument("--init", metavar="DIR", help="start from this checkpoint: its weights, size and tokenizer")
    sub.add_argument("--epochs", metavar="N", type=float, help="passes over the rows (default: by their number)")
    sub.add_argument("--seed", metavar="S", type=int, default=0, help="same seed, same bytes (default: 0)")
    sub.add_argument("--vocab-size", metavar="N", type=int, help="tokens of the tokenizer (default: by the size)")
    sub.add_argument("--max-len", metavar="N", type=int, help="tokens of a sequence (default: by the size)")
    sub.add_argument("--head-max-len", metavar="N", type=int, help="tokens of question and options (default: by size)")
    sub.add_argument("--batch-size", metavar="N", type=int, help="questions in a step (default: 128, or fewer)")
    sub.add_argument("--lr", metavar="RATE", type=float, help="highest learning rate (default: by the size)")
    sub.add_argument(
        "--held-out", metavar="FRACTION", type=float,
        help="of the states, for temperatures and report (default: a tenth, at most 10,000 states)",
    )  # fmt: skip
    sub.add_argument("--threads", metavar="N", type=int, help="default: the CPUs that the process may use")
    sub.add_argument("--resume", action="store_true", help="go on with the unfinished training in DIR")
    sub.add_argument("--force", action="store_true", help="replace the checkpoint, or the unfinished training, in DIR")
    sub.add_argument("--json", action="store_true", help="print the report as JSON")

    sub = command("play", _play, "Watch a model fly a drone through walls, or fly it yourself.")
    sub.add_argument(
        "-m", "--model", metavar="MODEL",
        help="as for decide",
    )  # fmt: skip
    sub.add_argument("--pilot", choices=("model", "teacher", "random"), default="model", help="default: model")
    sub.add_argument("--difficulty", choices=("easy", "normal", "hard"), default="hard", help="default: hard")
    sub.add_argument("--seed", metavar="S", type=int, default=0, help="of the first flight; later ones count up")
    sub.add_argument(
        "--seconds", metavar="N", type=float,
        help=f"that a flight may last (default: {_HEADLESS_SECONDS} headless, else no limit)",
    )  # fmt: skip
    sub.add_argument("--episodes", metavar="N", type=int, help="flights (default: 1 headless, else until you quit)")
    sub.add_argument("--headless", action="store_true", help="fly as fast as it goes, show a table and no picture")
    sub.add_argument("--json", action="store_true", help="with --headless: print JSON")

    sub = command("serve", _serve, "Answer POST /v1/systemone over HTTP (needs the extra skyinfer[serve]).")
    add_arguments(sub)

    sub = command("info", _info, "Show version, CPU and instruction sets, and which one would run.")
    sub.add_argument("--json", action="store_true", help="print JSON")
    return parser


# ------------------------------------------------------------------------------------------ commands


def _convert(arguments: argparse.Namespace) -> None:
    from .. import convert

    with _termination_raised(), Progress(sys.stderr) as progress:
        try:
            path = convert(
                arguments.checkpoint,
                arguments.out,
                outtype=arguments.outtype,
                pre=arguments.pre,
                name=arguments.name,
                force=arguments.force,
                progress=progress.show,
            )
        except FileExistsError:
            raise FileExistsError(errno.EEXIST, "exists already; --force replaces it", arguments.out) from None
    wrote = f"{printable(str(path))}: {size(path.stat().st_size)}, {arguments.outtype}"
    try:
        put_line(f"wrote {wrote}")
        flush_stdout()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OSError(error.errno, f"{error.strerror}; but the file was written: {wrote}", error.filename) from error


def _decide(arguments: argparse.Namespace) -> None:
    # faults of the request are told before a large model is loaded
    name = "standard input" if arguments.request == "-" else arguments.request
    from ..schema import parse_request

    try:
        body = _read_request(arguments.request)
        parse_request(body)
    except RequestError as error:
        raise SkyinferError(f"{name}: {error}") from error

    from .. import load

    model = load(_model_path(arguments), temperature_clamp=arguments.temperature_clamp)
    try:
        response = model.decide(body["state"], body["questions"], timing=arguments.timing)
    except RequestError as error:
        raise SkyinferError(f"{name}: {error}") from error
    put_json(response)


def _model_path(arguments: argparse.Namespace) -> str | None:
    """What -m or the environment names; None for the model that comes with skyinfer."""
    return arguments.model or os.environ.get(MODEL_VARIABLE) or None


def _inspect(arguments: argparse.Namespace) -> None:
    from ..files.inspection import as_text, describe
    from ..model import open_source

    with open_source(arguments.model) as source:
        description = describe(source, tensors=arguments.tensors)
    if arguments.json:
        put_json(description)
    else:
        put_line(as_text(description))


_TRAIN_OPTIONS = ("size", "init", "epochs", "seed", "vocab_size", "max_len", "head_max_len", "batch_size", "lr",
                  "held_out", "threads", "resume", "force")  # fmt: skip


def _train(arguments: argparse.Namespace) -> None:
    from ..train.rows import RowsError

    try:
        from ..train.directory import SnapshotError, snapshot_of
        from ..train.options import OptionError, UnfinishedError
        from ..train.training import train_rows
    except ImportError as error:
        raise SkyinferError(str(error)) from error
    with _termination_raised(), Progress(sys.stderr) as progress:
        try:
            report = train_rows(
                arguments.rows,
                arguments.out,
                progress=progress.show_steps,
                **{name: getattr(arguments, name) for name in _TRAIN_OPTIONS},
            )
        except RowsError as error:
            for line in error.lines():
                say(line)
            raise SkyinferError(error.summary) from error
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
        except (KeyboardInterrupt, _Terminated):
            if snapshot_of(arguments.out).exists():
                say("interrupted; --resume goes on from here")
            raise
    if arguments.json:
        put_json(report.as_dict())
    else:
        put_line(report.as_text())


def _play(arguments: argparse.Namespace) -> None:
    parser: argparse.ArgumentParser = arguments.parser
    episodes, seconds = arguments.episodes, arguments.seconds
    if episodes is not None and episodes < 1:
        parser.error(f"argument --episodes: expected at least 1, got {episodes}")
    if seconds is not None and not 0 < seconds <= _LONGEST_FLIGHT:
        parser.error(f"argument --seconds: expected more than 0 and at most {_LONGEST_FLIGHT}, got {seconds:g}")
    if not 0 <= arguments.seed < 1 << 63:
        parser.error(f"argument --seed: expected at least 0 and below 2**63, got {arguments.seed}")
    if arguments.json and not arguments.headless:
        parser.error("argument --json: needs --headless")

    from ..games import play
    from ..games.flappy import FRAMES_PER_SECOND

    terminal = None if arguments.headless else play.open_terminal()
    model = model_name = None
    if arguments.pilot == "model":
        from .. import load

        model = load(_model_path(arguments))
        model_name = printable(model.name)
    if terminal is None:
        frames = max(1, round((seconds or _HEADLESS_SECONDS) * FRAMES_PER_SECOND))
        seeds = range(arguments.seed, arguments.seed + (episodes or 1))
        flown = []
        if not arguments.json:
            put_line(play.TABLE_HEAD)
        for episode in play.fly_headless(arguments.pilot, model, arguments.difficulty, seeds, frames):
            flown.append(episode)
            if not arguments.json:
                put_line(play.table_row(episode))
                flush_stdout()
    else:
        with _termination_raised():
            flown = play.Show(
                terminal,
                arguments.pilot,
                model,
                model_name=model_name,
                difficulty=arguments.difficulty,
                seed=arguments.seed,
                frames=None if seconds is None else max(1, round(seconds * FRAMES_PER_SECOND)),
                episodes=episodes,
            ).run()
        put_line(play.TABLE_HEAD)
        for episode in flown:
            put_line(play.table_row(episode))
    if arguments.json:
        put_json(play.as_json(flown))
    elif flown:
        put_line(play.table_foot(flown))


def _serve(arguments: argparse.Namespace) -> None:
    parser: argparse.ArgumentParser = arguments.parser
    if not arguments.models and os.environ.get(MODEL_VARIABLE):
        arguments.models = [os.environ[MODEL_VARIABLE]]
    try:
        options = from_arguments(arguments, dict(os.environ))
    except ValueError as error:
        parser.error(str(error))
    from ..serve.running import run

    run(options)


def _info(arguments: argparse.Namespace) -> None:
    from .. import info

    facts = info()
    if arguments.json:
        put_json(facts)
        return
    isa = facts["isa"]
    put_line(f"skyinfer {facts['version']}, Python {facts['python']}, {facts['platform']}")
    put_line(f"  cpu                {facts['cpu']}, {facts['cpus']} usable")
    put_line(f"  instruction sets   {', '.join(isa['built_in'])}")
    put_line(f"  this CPU runs      {', '.join(isa['supported'])}")
    put_line(f"  a model would run  {isa['selected']}")


# ------------------------------------------------------------------------------------------- reading

# A request is read whole, so an endless stream would take all memory there is.
_LONGEST_REQUEST = 1 << 30


def _read_stdin() -> bytes:
    """All of standard input, piece by piece: one read of all would not let Ctrl-C through before its end.

    Raises:
        RequestError: it does not end.
    """
    pieces: list[bytes] = []
    n_bytes = 0
    while piece := sys.stdin.buffer.read(1 << 20):
        pieces.append(piece)
        n_bytes += len(piece)
        if n_bytes > _LONGEST_REQUEST:
            raise RequestError((), f"is longer than {_LONGEST_REQUEST >> 20} MB")
    return b"".join(pieces)


def _read_request(path: str) -> Any:
    """A JSON document, as Python's json module reads it: of a repeated key the last one counts, and NaN is a number.

    Raises:
        RequestError: not JSON in UTF-8.
        FormatError: the path is empty or holds a NUL character.
        OSError: cannot be read.
    """
    if path != "-":
        with faults_named(path):
            data = checked_path(path).read_bytes()
    elif sys.stdin is None:
        raise RequestError((), "is closed")
    else:
        with faults_named("standard input"):
            data = _read_stdin()
    if mark := byte_order_mark(data):
        raise RequestError((), f"begins with {mark}; save it as UTF-8 without one")
    if not data.strip():
        raise RequestError((), "is empty; a request is a JSON object with state and questions")
    try:
        return json.loads(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        at = f"byte 0x{data[error.start]:02x} at offset {error.start}"
        raise RequestError((), f"is not UTF-8 ({at}); save it as UTF-8") from None
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise RequestError((), f"is not JSON: {where}: {error.msg}") from None
    except RecursionError:
        raise RequestError((), "is nested too deeply; flatten it") from None
    except ValueError as error:  # an integer of thousands of digits
        raise RequestError((), f"cannot be read: {error}") from None
