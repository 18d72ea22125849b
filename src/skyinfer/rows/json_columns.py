"""Objects of JSON as columns of one type each. What pyarrow would change in silence, as 1.5 in a column of integers, or
a field that a struct has not, is a fault here; faults name the row and the field."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.types as types

from ..errors import FormatError
from ..values import short

Row = Mapping[str, Any]
_REMEDY = "write JSON Lines"


def schema_of(rows: Sequence[Row | None], first: int) -> pa.Schema:
    """The columns that rows have, in the order in which they come, and the types of their values.

    rows: None for one that is faulty. first: the number of the first in errors.

    Raises:
        FormatError: the values of a field have no common type.
    """
    names = dict.fromkeys(key for row in rows if row is not None for key in row)
    return pa.schema([pa.field(name, _column(rows, name, first, None).type) for name in names])


def batch_of(rows: Sequence[Row | None], schema: pa.Schema, first: int) -> pa.RecordBatch:
    """Rows as columns of these types; in place of None one of nulls.

    Raises:
        FormatError: a row has another field, or a value of another type.
    """
    known = set(schema.names)
    for number, row in enumerate(rows, first):
        new = None if row is None else next((key for key in row if key not in known), None)
        if new is not None:
            raise FormatError(f"row {number}: field {new!r} is new; {_REMEDY}")
    return pa.record_batch([_column(rows, field.name, first, field.type) for field in schema], schema=schema)


def _column(rows: Sequence[Row | None], name: str, first: int, kind: pa.DataType | None) -> pa.Array:
    values = [None if row is None else row.get(name) for row in rows]

    def made(values: list[Any]) -> pa.Array:
        found = None
        try:
            found = pa.array(values)
        except (pa.ArrowException, OverflowError):
            if kind is None:
                raise
        if found is None or not (kind is None or found.type == kind):
            for value in values:
                _check(value, kind)
            return pa.array(values, kind)
        return found

    try:
        return made(values)
    except (pa.ArrowException, OverflowError) as error:
        n = _n_sound(values, made)
        why = f"expected {kind} as in the rows before" if kind is not None else "is of another type than before"
        message = f"row {first + n}: field {name!r}: {why}, got {short(values[n])} ({error}); {_REMEDY}"
        raise FormatError(message) from error


def _n_sound(values: list[Any], made: Callable[[list[Any]], Any]) -> int:
    """How many values from the first on are of one type."""
    least, most = 0, len(values) - 1
    while least < most:
        n = (least + most + 1) // 2
        try:
            made(values[:n])
        except (pa.ArrowException, OverflowError):
            most = n - 1
        else:
            least = n
    return least


def _check(value: Any, kind: pa.DataType) -> None:
    """Refuses what pyarrow would change.

    Raises:
        ArrowInvalid: a part of the value is of another type.
    """
    if value is None:
        return
    if types.is_struct(kind):
        if not isinstance(value, dict):
            raise pa.ArrowInvalid("is no object")
        for key, part in value.items():
            number = kind.get_field_index(key)
            if number < 0:
                raise pa.ArrowInvalid(f"the field {key!r} is new")
            _check(part, kind.field(number).type)
    elif types.is_list(kind):
        if not isinstance(value, list):
            raise pa.ArrowInvalid("is no list")
        for part in value:
            _check(part, kind.value_type)
    elif types.is_null(kind):
        raise pa.ArrowInvalid("all were null")
    elif types.is_integer(kind) and isinstance(value, float) and not value.is_integer():
        raise pa.ArrowInvalid(f"{value} is no integer")
    elif isinstance(value, bool) != types.is_boolean(kind):
        raise pa.ArrowInvalid("a boolean is no number" if isinstance(value, bool) else "is no boolean")
