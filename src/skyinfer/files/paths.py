"""Opens the files that a model is made of: regular ones only, with faults that name the file.

A reader of a pipe may wait for ever and a device has no length to hold a header against, so both are refused before
anything is read.
"""

from __future__ import annotations

import codecs
import os
import stat
from pathlib import Path
from reprlib import repr as short_repr  # values of a hostile file may be long or deeply nested
from typing import BinaryIO

from ..errors import FormatError

# UTF-32 first: its little-endian mark begins with UTF-16's
_BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF8, "UTF-8"),
    (codecs.BOM_UTF32_LE, "UTF-32"),
    (codecs.BOM_UTF32_BE, "UTF-32"),
    (codecs.BOM_UTF16_LE, "UTF-16"),
    (codecs.BOM_UTF16_BE, "UTF-16"),
)
_MAX_TEXT_BYTES = 256 << 20  # of a JSON file in a checkpoint; here, so that `skyinfer --help` loads no compiled part
_KINDS = {stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}


def checked_path(path: str | bytes | os.PathLike[str], wanted: str = "a file") -> Path:
    """`path` as a `Path`, which would take an empty one for the current directory. `wanted`: what it should name.

    Raises:
        FormatError: the path is empty, or holds a NUL character or what no file system can write.
        TypeError: it is neither text nor a path.
    """
    if not isinstance(path, (str, bytes, os.PathLike)):
        raise TypeError(f"expected a path as a str, bytes or os.PathLike object, not {type(path).__name__}")
    text = os.fsdecode(path)
    if not text:
        raise FormatError(f"{text!r}: the path is empty; name {wanted}")
    if "\0" in text:
        raise FormatError(f"{short_repr(text)}: the path holds a NUL character")
    try:
        os.fsencode(text)
    except UnicodeEncodeError as error:
        raise FormatError(f"{short_repr(text)}: the path holds a lone surrogate") from error
    return Path(text)


def name_as_text(name: str) -> str:
    """A file's or directory's name as Unicode text: bytes of it that are none are written as escapes."""
    return name.encode("utf-8", "backslashreplace").decode("utf-8")


def kind_of(mode: int) -> str:
    """What a path that is neither a regular file nor a directory is, from its `st_mode`."""
    return _KINDS.get(stat.S_IFMT(mode), "a special file")


def open_regular(path: Path) -> BinaryIO:
    """Open a file to read it.

    Raises:
        FormatError: neither a regular file nor a directory, so there is nothing to map or no end to it.
        OSError: it cannot be opened; among them FileNotFoundError and IsADirectoryError.
    """
    # before it is opened, which makes some devices do something
    _check_regular(path, os.stat(path))
    # what comes in its place meanwhile is not waited for either
    file = open(path, "rb", opener=lambda name, flags: os.open(name, flags | getattr(os, "O_NONBLOCK", 0)))  # noqa: SIM115
    try:
        _check_regular(path, os.fstat(file.fileno()))
    except BaseException:
        file.close()
        raise
    return file


def _check_regular(path: Path, status: os.stat_result) -> None:
    if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
        raise FormatError(f"{path}: is {kind_of(status.st_mode)}, not a regular file")


def byte_order_mark(data: bytes) -> str | None:
    """What text begins with that is to be UTF-8 without a mark, for messages: "a UTF-16 byte order mark"; else None.

    data: the text's first four bytes, or more.
    """
    return next((f"a {name} byte order mark" for mark, name in _BYTE_ORDER_MARKS if data.startswith(mark)), None)


def read_text(path: Path) -> str:
    """A file of UTF-8 without a byte order mark, whole.

    Raises:
        FormatError: it is missing, unreadable, too large, or not UTF-8.
    """
    try:
        with open_regular(path) as file:
            if os.fstat(file.fileno()).st_size > _MAX_TEXT_BYTES:
                raise FormatError(f"{path}: is larger than {_MAX_TEXT_BYTES} bytes")
            data = file.read()
        if mark := byte_order_mark(data):
            raise FormatError(f"{path}: begins with {mark}; save it as UTF-8 without one")
        return data.decode("utf-8")
    except FileNotFoundError:
        raise FormatError(f"{path}: is missing (not a Laya checkpoint?)") from None
    except OSError as error:
        raise FormatError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise FormatError(f"{path}: is not UTF-8: {error}") from None
