"""Columns of a table as the states of its rows. docs/rows.md says what each Arrow type becomes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as types

from ..errors import RequestError, SkyinferError
from ..values import lone_surrogate

_AS_THEY_ARE = (
    types.is_null, types.is_boolean, types.is_integer, types.is_floating, types.is_string, types.is_large_string,
    types.is_string_view,
)  # fmt: skip
_TEXTS = _AS_THEY_ARE[4:]
_TIMES = (types.is_timestamp, types.is_date, types.is_time)
_LISTS = (types.is_list, types.is_large_list, types.is_fixed_size_list)
_UNITS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


class ColumnError(SkyinferError, ValueError):
    """A table's columns cannot be used as asked. The message names the column and says what to do."""


def check_name(name: Any, what: str) -> None:
    """Refuses what no column can be called, since a name is UTF-8.

    Raises:
        ColumnError: it is not.
        TypeError: it is no text.
    """
    if not isinstance(name, str):
        raise TypeError(f"{what}: expected text, got {type(name).__name__}")
    if (bad := lone_surrogate(name)) is not None:
        raise ColumnError(f"{what}, {name!r}, holds the lone surrogate {bad}, which is not text")


def refuse_repeated_names(names: Sequence[str]) -> None:
    """Refuses names of a state's columns that an object cannot have twice."""
    if len(set(names)) < len(names):
        raise ColumnError(f"state: a column is named twice in {', '.join(names)}")


def refuse_repeated_fields(kind: pa.DataType, name: str) -> None:
    """Refuses structs of which an object of JSON would lose a field, wherever they lie in a column.

    Raises:
        ColumnError: two fields of a struct have one name.
    """
    for i in range(kind.num_fields):
        field = kind.field(i)
        if types.is_struct(kind) and kind.get_field_index(field.name) < 0:
            raise ColumnError(f"column {name!r}: two fields are called {field.name!r}; rename them")
        refuse_repeated_fields(field.type, f"{name}.{field.name}" if types.is_struct(kind) else name)


class StateColumns:
    """Which columns the state of a row is made of.

    Attributes:
        names: in the order named.
    """

    def __init__(
        self, schema: pa.Schema, state: str | Sequence[str] | None = None, *, parse_json: bool = False
    ) -> None:
        """`state`: one column, whose value is the state; or several, which become an object with their names as keys,
        in this order. None: the column "state". `parse_json`: one column's text is JSON, which is read.

        Raises:
            ColumnError: there is no such column, or two of the name, or its type cannot be a state's.
        """
        if not (state is None or isinstance(state, (str, Iterable))) or isinstance(state, bytes):
            raise TypeError(f"state: expected a column's name or a list of names, got {type(state).__name__}")
        self._is_one = state is None or isinstance(state, str)
        self.names = ("state",) if state is None else (state,) if isinstance(state, str) else tuple(state)
        self._parse_json = parse_json
        if not self.names:
            raise ColumnError("state: no column is named; name at least one")
        for name in self.names:
            check_name(name, "the state's column")
            found = schema.get_all_field_indices(name)
            if len(found) > 1:
                raise ColumnError(f"column {name!r}: there are {len(found)} of this name; rename them")
            if not found:
                there = ", ".join(map(repr, schema.names[:20])) + (", ..." if len(schema.names) > 20 else "")
                hint = "; name the state's columns" if state is None else ""
                raise ColumnError(f"column {name!r}: there is none{hint}; the table has {there or 'no columns'}")
            _check(schema.field(found[0]).type, name)
        refuse_repeated_names(self.names)
        if parse_json and not (self._is_one and _is(_decoded(schema.field(self.names[0]).type), _TEXTS)):
            raise ColumnError("state: only one column of text can be read as JSON")

    def states(self, batch: pa.RecordBatch) -> list[Any]:
        """The state of each row; in place of one that is not JSON a RequestError."""
        columns = [json_values(batch.column(name)) for name in self.names]
        if not self._is_one:
            return [dict(zip(self.names, row, strict=True)) for row in zip(*columns, strict=True)]
        return [_parsed(text) for text in columns[0]] if self._parse_json else columns[0]


def _parsed(text: str | None) -> Any:
    if text is None:
        return None
    try:
        return json.loads(text)
    except RecursionError:
        return RequestError(("state",), "is nested too deeply; flatten it")
    except ValueError as error:
        return RequestError(("state",), f"is not JSON: {error}")


def _is(kind: pa.DataType, tests: Sequence[Any]) -> bool:
    return any(test(kind) for test in tests)


def _decoded(kind: pa.DataType) -> pa.DataType:
    """The type of the values behind a dictionary or an extension."""
    while True:
        if types.is_dictionary(kind):
            kind = kind.value_type
        elif isinstance(kind, pa.BaseExtensionType):
            kind = kind.storage_type
        else:
            return kind


def _check(kind: pa.DataType, name: str) -> None:
    """Refuses a type that has no JSON."""
    kind = _decoded(kind)
    if _is(kind, (*_AS_THEY_ARE, *_TIMES, types.is_decimal, types.is_duration)):
        return
    if _is(kind, _LISTS):
        _check(kind.value_type, f"{name}[]")
    elif types.is_struct(kind):
        refuse_repeated_fields(kind, name)
        for i in range(kind.num_fields):
            _check(kind.field(i).type, f"{name}.{kind.field(i).name}")
    elif types.is_map(kind) and _is(kind.key_type, _TEXTS) and _is(kind.item_type, _AS_THEY_ARE):
        return
    else:
        remedy = "decode it to text" if "binary" in str(kind) else "cast it to text, numbers, lists or structs"
        raise ColumnError(f"column {name!r}: a state cannot hold {kind}; {remedy}, or leave it out")


def json_values(array: pa.Array, *, exact: bool = False) -> list[Any]:
    """The values of an array as JSON's. What no state can hold is as Python has it.

    exact: decimals are text, with all their digits, and not the nearest float.
    """
    kind = array.type
    if isinstance(array, pa.ExtensionArray) and not types.is_fixed_size_binary(_decoded(kind)):  # as UUIDs are
        return json_values(array.storage, exact=exact)
    if types.is_dictionary(kind):
        return json_values(array.dictionary_decode(), exact=exact)
    if _is(kind, _TIMES):  # ISO 8601, with the digits of the column's unit; of an instant in UTC
        if types.is_timestamp(kind) and kind.tz is not None:
            array = array.cast(pa.timestamp(kind.unit, "UTC"))
        # a value beyond the years that Arrow writes is a sentence
        return list(pc.replace_substring_regex(array.cast(pa.string()), r"^(-?\d+-\d+-\d+) ", r"\1T").to_pylist())
    if types.is_decimal(kind):
        return list(array.cast(pa.string() if exact else pa.float64(), safe=exact).to_pylist())
    if types.is_duration(kind):
        per_second = _UNITS[kind.unit]
        return [None if n is None else n / per_second for n in array.cast(pa.int64()).to_pylist()]
    if _is(kind, _LISTS):
        items = iter(json_values(array.flatten(), exact=exact))
        return [None if n is None else _taken(items, n) for n in pc.list_value_length(array).to_pylist()]
    if types.is_struct(kind):
        names = [kind.field(i).name for i in range(kind.num_fields)]
        rows = (
            zip(*(json_values(part, exact=exact) for part in array.flatten()), strict=True)
            if names
            else iter([()] * len(array))
        )
        valid = array.is_valid().to_pylist()
        return [dict(zip(names, row, strict=True)) if there else None for row, there in zip(rows, valid, strict=True)]
    if types.is_map(kind) and _is(kind.key_type, _TEXTS):
        return [None if pairs is None else dict(pairs) for pairs in array.to_pylist()]
    return list(array.to_pylist())


def _taken(items: Iterator[Any], n: int) -> list[Any]:
    return list(islice(items, n))
