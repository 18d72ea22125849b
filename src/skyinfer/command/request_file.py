"""A request, or questions alone, as a JSON document in a file or on standard input."""

from __future__ import annotations

import json
import sys
from typing import Any

from ..errors import RequestError, SkyinferError, faults_named
from ..files.paths import byte_order_mark, checked_path
from ..files.streams import read_all


def read_request(path: str, expected: str = "a request is a JSON object with state and questions") -> Any:
    """A JSON document, as Python's json module reads it: of a repeated key the last one counts, and NaN is a number.

    Args:
        path: of a file, or "-" for standard input.
        expected: what is said to belong there where it is empty.

    Raises:
        RequestError: not JSON in UTF-8.
        FormatError: longer than 1 GB; or the path is empty or holds a NUL character.
        OSError: cannot be read.
    """
    if path != "-":
        with faults_named(path), open(checked_path(path), "rb", buffering=0) as file:
            data = read_all(file, path)
    elif sys.stdin is None:
        raise RequestError((), "is closed")
    else:
        with faults_named("standard input"):
            data = read_all(sys.stdin.buffer, "standard input")
    if mark := byte_order_mark(data):
        raise RequestError((), f"begins with {mark}; save it as UTF-8 without one")
    if not data.strip():
        raise RequestError((), f"is empty; {expected}")
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


def read_questions(path: str) -> dict[Any, Any]:
    """The questions of a file: an object by id, or a request that holds one.

    Raises:
        SkyinferError: they are faulty; the message names the file.
        FormatError, OSError: as `read_request`.
    """
    from ..schema import parse_questions

    try:
        content = read_request(path, "questions are a JSON object of id -> question")
        is_request = isinstance(content, dict) and isinstance(content.get("questions"), dict)
        questions: dict[Any, Any] = content["questions"] if is_request else content
        parse_questions(questions)
    except RequestError as error:
        raise SkyinferError(f"{'standard input' if path == '-' else path}: {error}") from error
    return questions
