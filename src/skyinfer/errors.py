"""The errors that skyinfer raises on bad input, one class for each party that can mend it.

Programming errors (a wrong argument type, say) stay plain TypeError and ValueError.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager


class SkyinferError(Exception):
    """Base of every error that skyinfer raises on its own account."""


class FormatError(SkyinferError, ValueError):
    """A model file or checkpoint is faulty. The message names the key, tensor or file."""


class RequestError(SkyinferError, ValueError):
    """A state or question cannot be answered as it was given.

    Attributes:
        loc: path to the faulty part, e.g. ``("questions", "action", "criteria", 2)``.
        message: what is wrong there and what to change, without the path.
    """

    def __init__(self, loc: tuple[str | int, ...], message: str) -> None:
        super().__init__(loc, message)
        self.loc = loc
        self.message = message

    def __str__(self) -> str:
        path = ".".join(str(part) for part in self.loc)
        return f"{path}: {self.message}" if path else self.message


class IsaError(SkyinferError, ValueError):
    """The instruction set that was asked for is unknown, or this CPU cannot run it."""


@contextmanager
def faults_named(name: str | os.PathLike[str]) -> Iterator[None]:
    """Give every OSError of the block the name of the file or stream that it is about, and its own cause."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno or errno.EIO, error.strerror or str(error), os.fspath(name)) from error
