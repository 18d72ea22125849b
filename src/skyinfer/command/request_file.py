"""A request as a JSON document in a file or on standard input."""

from __future__ import annotations

import json
import sys
from typing import Any

from ..errors import RequestError, faults_named
from ..files.paths import byte_order_mark, checked_path

# A request is read whole, so an endless stream would take all memory there is.
_LONGEST_REQUEST = 1 << 30


def read_request(path: str) -> Any:
    """A JSON document, as Python's json module reads it: of a repeated key the last one counts, and NaN is a number.

    Args:
        path: of a file, or "-" for standard input.

    Raises:
        RequestError: not JSON in UTF-8, or longer than 1 GB.
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
