"""Failures of the ``tokenizers`` package as errors of skyinfer's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ..errors import FormatError


def is_panic(error: BaseException) -> bool:
    """Whether it is a panic of the package's Rust code."""
    # pyo3's PanicException derives from BaseException and cannot be imported.
    return type(error).__name__ == "PanicException"


@contextmanager
def faults_named(source: str) -> Iterator[None]:
    """Turn every failure of the package, panics included, into a FormatError that begins with `source`."""
    try:
        yield
    except (FormatError, MemoryError):
        raise
    except BaseException as error:
        if isinstance(error, Exception) or is_panic(error):
            raise FormatError(f"{source}: not a usable tokenizer ({error})") from error
        raise
