"""A value of a request as the text that a model reads, and what is not such a value named by its place.

A string is its own text; anything else is JSON as Python's ``json.dumps(value, ensure_ascii=False)`` writes it, as in
the Laya runtime. A NumPy scalar is written as the Python value of its `item()`, so ``numpy.float32(0.1)`` is
0.10000000149011612. Plain values cost nothing for that: only what the encoder does not know is looked at.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import numbers
import sys
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any

from .errors import RequestError

Place = tuple[Any, ...]

_KINDS = {
    type(None): "null", dict: "an object", list: "a list", str: "a string", bool: "a boolean",
    int: "a number", float: "a number", tuple: "a tuple", set: "a set",
}  # fmt: skip

_PLAIN_REMEDY = "use text, a number, a list or an object"

# kinds of NumPy's number and text types that Python has, too: boolean, signed, unsigned, float, text
_SCALAR_KINDS = frozenset("biufU")


def kind(value: Any) -> str:
    """What a value is, in the words of JSON, or else its Python type."""
    return _KINDS.get(type(value), type(value).__name__)


def short(value: Any) -> str:
    """At most 60 characters of `repr`, for a message."""
    try:
        text = repr(value)
    except Exception:
        return kind(value)
    return text if len(text) <= 60 else text[:57] + "..."


def lone_surrogate(text: str) -> str | None:
    """The first lone surrogate of a text, as "U+D800", which no UTF-8 can hold; None where there is none."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return f"U+{ord(error.object[error.start]):04X}"
    return None


def encodable(text: str) -> str:
    """A text for a message, with an escape in place of each lone surrogate."""
    return text.encode("utf-8", "backslashreplace").decode()


def whole_number(value: Any, what: str, least: int, most: int | None = None) -> int:
    """An argument that is a whole number, Python's or NumPy's, from `least` to `most`.

    Raises:
        ValueError: it is not.
    """
    number = python_scalar(value)
    is_whole = isinstance(number, int) and not isinstance(number, bool)
    if is_whole and least <= number and (most is None or number <= most):
        return int(number)
    wanted = f"a whole number, {least} or more" if most is None else f"{least} to {most}"
    raise ValueError(f"{what}: expected {wanted}, got {short(value)}")


def python_scalar(value: Any) -> Any:
    """The Python value that a NumPy scalar, or an array of no dimensions, stands for; anything else as it is."""
    numpy = sys.modules.get("numpy")  # without it there are none
    generic = getattr(numpy, "generic", None)
    # by exact type, since a masked constant is an array, too, and stands for no value
    if generic is None or not (isinstance(value, generic) or type(value) is numpy.ndarray):  # type: ignore[union-attr]
        return value
    # a long double has no Python value, and item() gives itself
    if value.ndim or value.dtype.kind not in _SCALAR_KINDS or value.dtype.char == "g":
        return value
    return value.item()


def name(label: Any, loc: Place) -> str:
    """`str` of a label or id.

    Raises:
        RequestError: it has none.
    """
    try:
        return str(label)
    except (ValueError, RecursionError) as error:  # an integer of thousands of digits, a tuple of tuples of tuples
        raise RequestError(loc, f"cannot be written as text ({error})") from error


def render(value: Any, loc: Place, *, spell_others: bool = False) -> str:
    """The text of a value at `loc`. `spell_others`: what JSON cannot hold is written as a string, its `str`.

    Raises:
        RequestError: it cannot be written as JSON; the path leads to the part that is at fault.
    """
    if isinstance(value, str):
        return value
    try:
        return (_SPELLING if spell_others else _STRICT).encode(value)
    except TypeError:  # NumPy's scalars as keys, or something that is not JSON
        pass
    except (ValueError, RecursionError) as error:
        raise _refused(error, loc) from error
    try:
        return _STRICT.encode(_plain(value, loc, spell_others))
    except RequestError:
        raise
    except (TypeError, ValueError, RecursionError) as error:
        raise _refused(error, loc) from error


def _refused(error: Exception, loc: Place) -> RequestError:
    if isinstance(error, RecursionError):
        return RequestError(loc, "is nested too deeply; flatten it")
    return RequestError(loc, f"cannot be written as JSON ({error})")


def _scalar(value: Any) -> Any:
    plain = python_scalar(value)
    if plain is value:
        raise TypeError(f"{type(value).__name__} is not JSON")
    return plain


def _spelled(value: Any) -> Any:
    plain = python_scalar(value)
    return str(value) if plain is value else plain


_STRICT = json.JSONEncoder(ensure_ascii=False, default=_scalar)
_SPELLING = json.JSONEncoder(ensure_ascii=False, default=_spelled)


def _plain(value: Any, loc: Place, spell_others: bool) -> Any:
    """`value` with Python's values in place of NumPy's, also among the keys, which `json.dumps` has no hook for.

    Raises:
        RequestError: a part of it is not JSON.
    """
    value = python_scalar(value)
    if isinstance(value, dict):
        return {
            _key(key, loc): _plain(item, (*loc, key if isinstance(key, (str, int)) else name(key, loc)), spell_others)
            for key, item in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [_plain(item, (*loc, i), spell_others) for i, item in enumerate(value)]
    if value is None or isinstance(value, (str, int, float)):
        return value
    if spell_others:
        return str(value)
    raise RequestError(loc, f"is of the type {type(value).__name__}, which is not JSON; {_remedy(value)}")


def _key(key: Any, loc: Place) -> Any:
    key = python_scalar(key)
    if key is None or isinstance(key, (str, int, float)):
        return key
    raise RequestError(loc, f"has the key {short(key)} of the type {type(key).__name__}; use text or a number")


def _remedy(value: Any) -> str:
    """What to do with a value that is not JSON."""
    kind_name = type(value).__name__
    if kind_name in ("NaTType", "NAType"):  # pandas'
        return "use None"
    if isinstance(value, (datetime.date, datetime.time)):
        return "use its .isoformat()"
    if isinstance(value, datetime.timedelta):
        return "use its .total_seconds()"
    if isinstance(value, (bytes, bytearray, memoryview)):
        return "decode it to text"
    if isinstance(value, (set, frozenset)):
        return "use sorted(...) of it, a list"
    if isinstance(value, Enum):
        return "use its .value"
    if isinstance(value, numbers.Complex) or kind_name == "Decimal":  # Decimal is registered as a Number only
        return "use float(...) or str(...) of it"
    if hasattr(value, "to_dict"):  # a table or row of pandas
        return "use its .to_dict()"
    if hasattr(value, "ndim"):  # an array; one of no dimensions is here because its value is none of JSON's
        return "use its .tolist()" if value.ndim else _PLAIN_REMEDY
    if dataclasses.is_dataclass(value):
        return "use dataclasses.asdict(...) of it"
    if isinstance(value, Mapping):
        return "use dict(...) of it"
    if isinstance(value, Iterable):
        return "use list(...) of it"
    return _PLAIN_REMEDY
