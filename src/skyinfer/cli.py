"""The command `skyinfer`: arguments in, one line or one JSON document out, an exit code that says whose fault it was.

    0    fine
    1    the input is at fault: one line on stderr, never a traceback
    2    the command line is at fault (argparse's own)
    130  interrupted by Ctrl-C
    141  the reader of stdout went away (`skyinfer ... | head`); nothing is said

The work is done by other rooms, which are imported when a command runs, so that `--help` and mistakes answer at once.
"""

from __future__ import annotations

import argparse
import codecs
import json
import os
import shutil
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from . import __version__
from .errors import RequestError, SkyinferError

MODEL_VARIABLE = "SKYINFER_MODEL"
OUTTYPES = ("f32", "f16", "bf16", "q8_0")

_INTERRUPTED, _PIPE_CLOSED = 130, 141


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` (default: the process's own) and return its exit code.

    Raises:
        SystemExit: `--help`, `--version`, or a faulty command line.
    """
    try:
        try:
            with _warnings_as_lines():
                arguments = _parser().parse_args(argv)
                arguments.run(arguments)
        finally:
            # here, where a failure can still be told, and not in the interpreter's last breath
            if sys.stdout is not None:
                sys.stdout.flush()
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:
        _abandon_stdout()
        return _PIPE_CLOSED
    except SkyinferError as error:
        return _fail(str(error))
    except MemoryError:
        return _fail("out of memory")
    except OSError as error:
        _abandon_stdout()
        known = error.strerror and error.filename is not None
        return _fail(f"{os.fsdecode(error.filename)}: {error.strerror}" if known else str(error))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="skyinfer",
        description="System One decision models on a CPU: a state and typed questions in, calibrated probabilities out.",
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
        help=f"a GGUF file or checkpoint directory (default: the environment variable {MODEL_VARIABLE})",
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

    sub = command("info", _info, "Show version, CPU and instruction sets, and which one would run.")
    sub.add_argument("--json", action="store_true", help="print JSON")
    return parser


# ------------------------------------------------------------------------------------------ commands


def _convert(arguments: argparse.Namespace) -> None:
    from . import convert
    from .inspection import printable, size

    with _Progress(sys.stderr) as progress:
        try:
            path = convert(
                arguments.checkpoint,
                arguments.out,
                outtype=arguments.outtype,
                pre=arguments.pre,
                name=arguments.name,
                force=arguments.force,
                progress=progress.show if progress.visible else None,
            )
        except FileExistsError:
            raise FileExistsError(f"{arguments.out}: exists already; --force replaces it") from None
    _print(f"wrote {printable(str(path))}: {size(path.stat().st_size)}, {arguments.outtype}")


def _decide(arguments: argparse.Namespace) -> None:
    model_path = arguments.model or os.environ.get(MODEL_VARIABLE)
    if not model_path:
        arguments.parser.error(
            f"no model: give one with -m or in the environment variable {MODEL_VARIABLE}. A Laya checkpoint directory "
            f"will do, and so will a GGUF file that `skyinfer convert CHECKPOINT_DIR -o OUT.gguf` writes"
        )
    # faults of the request are told before a large model is loaded
    name = "standard input" if arguments.request == "-" else arguments.request
    try:
        body = _read_request(arguments.request)
        from .schema import parse_request

        parse_request(body)
    except RequestError as error:
        raise SkyinferError(f"{name}: {error}") from error

    from . import load

    model = load(model_path, temperature_clamp=arguments.temperature_clamp)
    try:
        response = model.decide(body["state"], body["questions"], timing=arguments.timing)
    except RequestError as error:
        raise SkyinferError(f"{name}: {error}") from error
    _print_json(response)


def _inspect(arguments: argparse.Namespace) -> None:
    from .inspection import as_text, describe
    from .model import _open_source

    with _open_source(Path(arguments.model)) as source:
        description = describe(source, tensors=arguments.tensors)
    if arguments.json:
        _print_json(description)
    else:
        _print(as_text(description))


def _info(arguments: argparse.Namespace) -> None:
    from . import info

    facts = info()
    if arguments.json:
        _print_json(facts)
        return
    isa = facts["isa"]
    _print(f"skyinfer {facts['version']}, Python {facts['python']}, {facts['platform']}")
    _print(f"  cpu                {facts['cpu']}, {facts['cpus']} usable")
    _print(f"  instruction sets   {', '.join(isa['built_in'])}")
    _print(f"  this CPU runs      {', '.join(isa['supported'])}")
    _print(f"  a model would run  {isa['selected']}")


# ------------------------------------------------------------------------------------------- reading

_FOREIGN_MARKS = (
    (codecs.BOM_UTF8, "a UTF-8 byte order mark"),
    (codecs.BOM_UTF32_LE, "a UTF-32 byte order mark"),
    (codecs.BOM_UTF32_BE, "a UTF-32 byte order mark"),
    (codecs.BOM_UTF16_LE, "a UTF-16 byte order mark"),
    (codecs.BOM_UTF16_BE, "a UTF-16 byte order mark"),
)


def _read_request(path: str) -> Any:
    """A JSON document, as Python's json module reads it: of a repeated key the last one counts, and NaN is a number.

    Raises:
        RequestError: not JSON in UTF-8.
        OSError: cannot be read.
    """
    if path != "-":
        data = Path(path).read_bytes()
    elif sys.stdin is None:
        raise RequestError((), "is closed")
    else:
        data = sys.stdin.buffer.read()
    for mark, name in _FOREIGN_MARKS:
        if data.startswith(mark):
            raise RequestError((), f"begins with {name}; save it as UTF-8 without one")
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


# ------------------------------------------------------------------------------------------- writing


def _print(text: str) -> None:
    """A line on stdout. What its encoding lacks is written as an escape."""
    if sys.stdout is not None:
        encoding = sys.stdout.encoding or "utf-8"
        sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding) + "\n")


def _print_json(value: Any) -> None:
    """JSON on stdout: indented on a terminal, else one line; escaped where stdout cannot carry it as it is."""
    if sys.stdout is None:
        return
    terminal = sys.stdout.isatty()
    encoding = sys.stdout.encoding or "utf-8"
    text = json.dumps(value, indent=2 if terminal else None, ensure_ascii=False)
    try:
        text.encode(encoding)
        # JSON between programs is UTF-8 (RFC 8259), whatever the locale's encoding is
        faithful = terminal or codecs.lookup(encoding).name == "utf-8"
    except UnicodeEncodeError:
        faithful = False
    if not faithful:
        text = json.dumps(value, indent=2 if terminal else None)
    sys.stdout.write(text + "\n")


def _say(text: str) -> None:
    """One line on stderr; what came from a file or a request cannot make it two, nor move the cursor."""
    from .inspection import printable

    # a print to None would go to stdout
    if sys.stderr is not None:
        print(f"skyinfer: {printable(text)}", file=sys.stderr)


def _fail(message: str) -> int:
    _say(message)
    return 1


def _abandon_stdout() -> None:
    """Send what is left in stdout's buffer nowhere, so that the interpreter does not trip over it at exit."""
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
    except (AttributeError, OSError, ValueError):
        pass  # no stdout, or not one of the operating system


@contextmanager
def _warnings_as_lines() -> Iterator[None]:
    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        if issubclass(category, RuntimeWarning):
            _say(f"warning: {message}")
        else:
            plain(message, category, filename, lineno, file, line)

    with warnings.catch_warnings():
        plain = warnings.showwarning
        warnings.simplefilter("always", RuntimeWarning)
        warnings.showwarning = show
        yield


class _Progress:
    """A bar on a terminal, which is gone when the work is done; invisible elsewhere."""

    _EVERY = 0.1  # seconds

    def __init__(self, stream: TextIO | None) -> None:
        self.visible = stream is not None and stream.isatty()
        self._stream = stream
        self._drawn = 0
        self._last = 0.0

    def show(self, name: str, done: int, total: int) -> None:
        """`done` of `total` bytes are written."""
        now = time.monotonic()
        if self._stream is None or (now - self._last < self._EVERY and done < total):
            return
        self._last = now
        room = max(10, min(60, shutil.get_terminal_size().columns - 30))
        filled = room * done // max(1, total)
        line = f"[{'#' * filled}{'.' * (room - filled)}] {100 * done // max(1, total):3d} %  {total / 1e6:,.1f} MB"
        self._stream.write("\r" + line)
        self._stream.flush()
        self._drawn = len(line)

    def __enter__(self) -> _Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._stream is not None and self._drawn:
            self._stream.write("\r" + " " * self._drawn + "\r")
            self._stream.flush()
