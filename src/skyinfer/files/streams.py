"""Reads requests and rows of users whole or line by line, from files, pipes and devices, and never without a bound."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from typing import BinaryIO

from ..errors import FormatError

# What is read at once is held in memory, so an endless stream would take all there is.
MAX_REQUEST_BYTES = 1 << 30

_PIECE = 1 << 20


def read_all(stream: BinaryIO, name: str | os.PathLike[str]) -> bytes:
    """All of a stream, piece by piece: one read of everything would not let Ctrl-C through before its end.

    Raises:
        FormatError: it is longer than 1 GB.
        OSError: it cannot be read.
    """
    if _size(stream) > MAX_REQUEST_BYTES:
        raise _too_long(name)
    pieces: list[bytes] = []
    n_bytes = 0
    while piece := stream.read(_PIECE):
        pieces.append(piece)
        n_bytes += len(piece)
        if n_bytes > MAX_REQUEST_BYTES:
            raise _too_long(name)
    return b"".join(pieces)


def read_lines(stream: BinaryIO, name: str | os.PathLike[str]) -> Iterator[bytes]:
    """The lines of a stream with their ends, as iterating it gives them.

    Raises:
        FormatError: one is longer than 1 GB.
        OSError: it cannot be read.
    """
    number = 0
    while line := stream.readline(MAX_REQUEST_BYTES + 1):
        number += 1
        if len(line) > MAX_REQUEST_BYTES:
            raise _too_long(f"{os.fspath(name)}: line {number}")
        yield line


def _size(stream: BinaryIO) -> int:
    """Bytes of a regular file; 0 for what has no size of its own."""
    try:
        status = os.fstat(stream.fileno())
    except (OSError, AttributeError):  # a stream of Python's own
        return 0
    return status.st_size if stat.S_ISREG(status.st_mode) else 0


def _too_long(name: str | os.PathLike[str]) -> FormatError:
    return FormatError(f"{os.fspath(name)}: is longer than {MAX_REQUEST_BYTES >> 20} MB")
