"""A GGUF file in pieces that can be made wrong one by one."""

from __future__ import annotations

import copy
import math
import struct
from collections.abc import Sequence
from itertools import cycle
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType
from quantized_files import F64, quantized

FORMATS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "B", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9
_ALIGNMENT = 32


class GGUF:
    """A GGUF file in pieces that can be made wrong one by one.

    entries: [key, value type, value], a string as bytes, an array as (element type, list); tensors: [name, dims, type,
    offset]; counts: what the header says instead of the true number of tensors and keys.
    """

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 4
        self.version, n_tensors, n_entries = self._take("I"), self._take("Q"), self._take("Q")
        self.entries: list[list[Any]] = []
        for _ in range(n_entries):
            key, kind = self._string(), self._take("I")
            self.entries.append([key, kind, self._value(kind)])
        self.tensors: list[list[Any]] = []
        for _ in range(n_tensors):
            name, n_dims = self._string(), self._take("I")
            dims = [self._take("Q") for _ in range(n_dims)]
            self.tensors.append([name, dims, self._take("I"), self._take("Q")])
        self.weights = data[-(-self._at // _ALIGNMENT) * _ALIGNMENT :]
        self.header_bytes = self._at
        self.counts: dict[str, int] = {}

    def _take(self, form: str) -> Any:
        (value,) = struct.unpack_from("<" + form, self._data, self._at)
        self._at += struct.calcsize(form)
        return value

    def _string(self) -> bytes:
        size = self._take("Q")
        self._at += size
        return self._data[self._at - size : self._at]

    def _value(self, kind: int) -> Any:
        if kind == STRING:
            return self._string()
        if kind == ARRAY:
            kind, count = self._take("I"), self._take("Q")
            return kind, [self._value(kind) for _ in range(count)]
        return self._take(FORMATS[kind])

    def copy(self) -> GGUF:
        """A copy whose entries and tensors can be changed; values are to be replaced, not changed."""
        twin = copy.copy(self)
        twin.entries = [list(entry) for entry in self.entries]
        twin.tensors = [list(tensor) for tensor in self.tensors]
        twin.counts = {}
        return twin

    def retyped(self, kinds: Sequence[str]) -> GGUF:
        """A copy of a file of F32 whose tensors have these types in turn, or F64 where a row is no whole blocks."""
        twin, weights = self.copy(), bytearray()
        for tensor, kind in zip(twin.tensors, cycle(GGMLQuantizationType[name] for name in kinds), strict=False):
            _, dims, _, offset = tensor
            values = np.frombuffer(self.weights, "<f4", math.prod(dims), offset).reshape(-1, dims[0])
            block, _ = gguf.GGML_QUANT_SIZES[kind]
            tensor[2] = int(F64 if dims[0] % block else kind)
            tensor[3] = len(weights)
            weights += quantized(values, GGMLQuantizationType(tensor[2])).tobytes()
            weights += bytes(-len(weights) % _ALIGNMENT)
        twin.weights = bytes(weights)
        return twin

    def encoded(self) -> bytes:
        out = bytearray(b"GGUF")
        counts = (self.counts.get("tensors", len(self.tensors)), self.counts.get("entries", len(self.entries)))
        out += struct.pack("<IQQ", self.version & 0xFFFFFFFF, *counts)
        for key, kind, value in self.entries:
            out += struct.pack("<Q", len(key)) + key + struct.pack("<I", kind) + _encoded(kind, value)
        for name, dims, kind, offset in self.tensors:
            out += struct.pack("<Q", len(name)) + name + struct.pack("<I", len(dims))
            out += b"".join(_encoded(10, n) for n in dims) + _encoded(4, kind) + _encoded(10, offset)
        self.header_bytes = len(out)
        out += bytes(-len(out) % _ALIGNMENT) + self.weights
        return bytes(out)


def _encoded(kind: int, value: Any) -> bytes:
    """The bytes of `value` as `kind`, bent to fit where it does not."""
    if kind == STRING:
        text = value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogatepass")
        return struct.pack("<Q", len(text)) + text
    if kind == ARRAY:
        kind, items = value if isinstance(value, tuple) else (4, [value])
        return struct.pack("<IQ", kind, len(items)) + b"".join(_encoded(kind, item) for item in items)
    form = FORMATS.get(kind, "Q")
    if isinstance(value, (bytes, str, tuple, list, dict)) or value is None:
        value = len(value or "")
    if form in "fd":
        try:
            return struct.pack("<" + form, value)
        except (OverflowError, struct.error):
            return struct.pack("<" + form, math.inf)
    size = struct.calcsize(form)
    whole = int(value) if math.isfinite(value) else 0
    return (whole & ((1 << 8 * size) - 1)).to_bytes(size, "little")
