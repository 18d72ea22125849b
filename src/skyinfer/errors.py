"""The errors that skyinfer raises on bad input, one class for each party that can correct it, and its warnings.

Programming errors (a wrong argument type, say) stay plain TypeError and ValueError.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager


class SkyinferError(Exception):
    """Base of every error that skyinfer raises on its own account."""


class FormatError(SkyinferError, ValueError):
    """A model file or checkpoint is faulty. The message names the key, tensor or file."""


class HubError(SkyinferError, OSError):
    """A model of the Hugging Face hub cannot be had. The message says what was looked for and what to do."""


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
        if error.errno is not None and error.filename == os.fspath(name):
            raise
        raise OSError(error.errno or errno.EIO, error.strerror or str(error), os.fspath(name)) from error


@contextmanager
def of_model(path: str | os.PathLike[str]) -> Iterator[None]:
    """Begin every FormatError of the block, about a part of a model, with the model's path."""
    try:
        yield
    except FormatError as error:
        raise FormatError(f"{os.fspath(path)}: {error}") from error


def is_exhaustion(error: RuntimeError) -> bool:
    """Whether the system gives no more threads (what Python raises then) or no more memory (what torch does)."""
    return any(words in str(error) for words in ("can't start new thread", "can't allocate memory"))


def lacking(needs: str, error: ImportError) -> ImportError:
    """The error of a part that `needs` packages: they are not installed, or why one that is does not load."""
    why = needs if isinstance(error, ModuleNotFoundError) else f"{needs} (what is installed does not load: {error})"
    return ImportError(why, name=error.name)


_PACKAGE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "")


def warn(message: str) -> None:
    """Give a RuntimeWarning that points at the line outside skyinfer that called into it, however deep this is."""
    frame = sys._getframe(1)
    while frame.f_back is not None and _is_passed_over(frame.f_code.co_filename):
        frame = frame.f_back
    warnings.warn_explicit(
        message,
        RuntimeWarning,
        frame.f_code.co_filename,
        frame.f_lineno,
        module=frame.f_globals.get("__name__"),
        registry=frame.f_globals.setdefault("__warningregistry__", {}),
    )


def _is_passed_over(filename: str) -> bool:
    # a context manager of ours is entered by contextlib
    return filename.startswith(_PACKAGE) or filename == contextlib.__file__


def shown(text: str) -> str:
    """A name or value out of an untrusted file, fit for one line on a terminal."""
    return text if text.isprintable() and len(text) <= 100 else repr(text[:100])
