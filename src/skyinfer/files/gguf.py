"""Reads GGUF files: the metadata and where each tensor lies, checked byte by byte, over a memory map.

The header is parsed here and not by the `gguf` package because that reader makes several numpy objects
for each string (31 us each) and trusts the counts it finds. Type sizes and dequantization stay with the
package, which is imported when a file first needs it. What the keys mean is defined in config.py.

Format: docs/gguf.md of ggml-org/ggml, versions 2 and 3, little endian. tests/test_gguf.py compares with
the package's own reader.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import mmap
import os
import struct
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, NoReturn, TypeAlias

import numpy as np

from ..core import scanners
from ..errors import FormatError, faults_named, shown
from .paths import checked_path, open_regular
from .tensors import (
    ALL_ROWS,
    F64,
    STORED_DTYPES,
    STORED_SIZES,
    TensorInfo,
    as_float32,
    finite,
    release_rows,
    stored_values,
    without_ones,
)

Scalar: TypeAlias = bool | int | float | str
Value: TypeAlias = Scalar | list[Any]

_DEFAULT_ALIGNMENT = 32
_MAX_DIMS = 4
_MAX_ARRAY_DEPTH = 4

_FLOAT32, _BOOL, _STRING, _ARRAY = 6, 7, 8, 9
_COPIED_AT_ONCE = 1 << 24  # bytes
# value type -> numpy dtype of the fixed-size ones (GGUFValueType of the gguf package)
_FIXED = {
    0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4",
    _BOOL: "<u1", 10: "<u8", 11: "<i8", 12: "<f8",
}  # fmt: skip
_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")


class GGUFFile:
    """An open GGUF file. Arrays that `raw` and `tensor` return stay valid after `close`.

    Attributes:
        path: the file.
        version: 2 or 3.
        metadata: every key with its value as Python's own bool, int, float, str or list.
        tensors: by name, in file order.
    """

    def __init__(
        self,
        path: Path,
        version: int,
        metadata: dict[str, Value],
        tensors: dict[str, TensorInfo],
        data: mmap.mmap,
    ) -> None:
        self.path = path
        self.version = version
        self.metadata = metadata
        self.tensors = tensors
        self._map: mmap.mmap | None = data
        self._bytes: np.ndarray | None = np.frombuffer(data, np.uint8)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> GGUFFile:
        """Map a file and check its whole header.

        Raises:
            FormatError: not a GGUF file, or a faulty one; the message names the key or tensor.
            OSError: the file cannot be read.
        """
        path = checked_path(path)
        if path.is_dir():
            raise FormatError(f"{path}: is a directory, not a GGUF file")
        with faults_named(path), open_regular(path) as file:
            # files of /proc claim to be empty, too, and reading one may wait
            head = file.read(64) if os.fstat(file.fileno()).st_size else b""
            _check_magic(path, head)
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        try:
            version, metadata, tensors = _Header(path, data).parse()
        except BaseException:
            data.close()
            raise
        return cls(path, version, metadata, tensors, data)

    def raw(self, name: str) -> np.ndarray:
        """The stored bytes of a tensor: uint8 [n_bytes], a read-only view of the file."""
        if self._bytes is None:
            raise ValueError(f"{self.path}: the file is closed")
        info = self.tensors[name]
        return self._bytes[info.offset : info.offset + info.n_bytes]

    def tensor(self, name: str) -> np.ndarray:
        """A tensor's values: float32 in the shape of its `TensorInfo`.

        F32 tensors are a read-only view of the file, F16 and BF16 are widened, all others are dequantized by the gguf
        package.

        Raises:
            FormatError: the package cannot dequantize this type, or a value is NaN or infinite.
        """
        values = as_float32(*self.stored(name))
        if not finite(values):
            raise FormatError(f"{self.path}: tensor {name}: holds a NaN or infinite value")
        return values

    def stored(self, name: str, rows: slice = ALL_ROWS) -> tuple[np.ndarray, str]:
        """A tensor, or some rows of it without its dimensions of 1, as the core takes it: (values, its type's name).

        Of type "f32", "f16", "bf16" and "q8_0" they are read-only views of the file, halves as uint16 and blocks as
        their bytes; every other type is dequantized to float32. The numbers are not checked to be finite.

        Raises:
            FormatError: the gguf package cannot dequantize this type.
        """
        info = self.tensors[name]
        if info.type in STORED_DTYPES or info.type == F64:
            return stored_values(info, self.raw(name), rows)
        return self._dequantized(info, rows), "f32"

    def _dequantized(self, info: TensorInfo, rows: slice) -> np.ndarray:
        from gguf import GGMLQuantizationType, quants

        kind = GGMLQuantizationType(info.type)
        shape = info.shape if rows == ALL_ROWS else without_ones(info.shape)
        row_bytes = info.n_bytes * shape[-1] // math.prod(shape)
        data = self.raw(info.name).reshape(*shape[:-1], row_bytes)[rows]
        try:
            # scales of a damaged file overflow; the callers refuse the infinities that result
            with np.errstate(all="ignore"):
                values = quants.dequantize(data.reshape(-1, row_bytes), kind)
        except NotImplementedError:
            raise FormatError(f"{self.path}: tensor {info.name}: type {kind.name} cannot be dequantized") from None
        return values.reshape(*data.shape[:-1], shape[-1])

    def label(self, name: str) -> str:
        """What the file itself calls a tensor: `name`."""
        return name

    def forget(self, prefix: str) -> None:
        """Drop the metadata whose keys begin so: a large vocabulary takes 100 MB."""
        self.metadata = {key: value for key, value in self.metadata.items() if not key.startswith(prefix)}

    def release(self, name: str, rows: slice = ALL_ROWS) -> None:
        """Release the memory of the pages of a tensor, or of some of its rows. They can be read again."""
        info = self.tensors[name]
        if self._map is not None:
            release_rows(self._map, info, rows)

    def close(self) -> None:
        """Close the file. Memory is unmapped once no array refers to it."""
        self._bytes = None
        if self._map is not None:
            # arrays handed out still refer to the map, and keep it
            with contextlib.suppress(BufferError):
                self._map.close()
            self._map = None

    def __enter__(self) -> GGUFFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _check_magic(path: Path, head: bytes) -> None:
    """Tell, from the first bytes, what a file is that is not GGUF."""
    if head[:4] == b"GGUF":
        return
    if not head:
        what = "the file is empty"
    elif head.startswith(b"version https://git-lfs"):
        what = "this is a Git LFS pointer; fetch the file itself with `git lfs pull`"
    elif head[8:9] == b"{":
        what = "this is a safetensors file; give its checkpoint directory instead"
    elif head[:4] == b"PK\x03\x04":
        what = "this is a zip archive (a PyTorch checkpoint?), not a GGUF file"
    elif head[:4] in (b"lmgg", b"tjgg", b"fmgg"):
        what = "this is a GGML file from before GGUF"
    else:
        what = f"not a GGUF file (it begins with {head[:4]!r})"
    raise FormatError(f"{path}: {what}")


class _Header:
    """One pass over the header. `pos` never passes `end`, and nothing is allocated by a count that
    the rest of the file could not hold."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path = path
        self.data = data
        self.end = len(data)
        self.pos = 4

    def fail(self, message: str) -> NoReturn:
        raise FormatError(f"{self.path}: {message}")

    def parse(self) -> tuple[int, dict[str, Value], dict[str, TensorInfo]]:
        version = self.u32("the version")
        if version not in (2, 3):
            if version & 0xFFFF == 0:
                self.fail("a big-endian GGUF file; only little-endian ones are supported")
            self.fail(f"GGUF version {version} is not supported (2 and 3 are)")
        n_tensors, n_keys = self.u64("the tensor count"), self.u64("the key count")
        # the least a key takes is length + 1 byte + type + value; a tensor has one dimension at least
        self.need(n_keys * 14, f"{n_keys} keys")
        metadata = self.metadata(n_keys)
        self.need(n_tensors * 33, f"{n_tensors} tensors")
        return version, metadata, self.tensors(n_tensors, _alignment(self, metadata))

    def need(self, n_bytes: int, what: str) -> None:
        left = self.end - self.pos
        if n_bytes > left:
            self.fail(f"truncated: {what} cannot fit into the {left} bytes left")

    def u32(self, what: str) -> int:
        self.need(4, what)
        (value,) = _U32.unpack_from(self.data, self.pos)
        self.pos += 4
        return int(value)

    def u64(self, what: str) -> int:
        self.need(8, what)
        (value,) = _U64.unpack_from(self.data, self.pos)
        self.pos += 8
        return int(value)

    def string(self, what: str) -> str:
        size = self.u64(what)
        self.need(size, what)
        raw = self.data[self.pos : self.pos + size]
        self.pos += size
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            self.fail(f"{what}: invalid UTF-8: {raw[:40]!r}")

    def strings(self, count: int, what: str) -> list[str]:
        out, self.pos = scanners.read_strings(self.data, self.pos, count)
        if len(out) < count:
            # reading it alone raises the error that describes the fault
            what = f"{what}: element {len(out)}"
            if self.end - self.pos < 8 or self.u64(what) > self.end - self.pos:
                self.fail(f"truncated: {what} runs past the end of the file")
            self.pos -= 8
            self.string(what)
        return out

    def value(self, kind: int, what: str) -> Value:
        if kind == _STRING:
            return self.string(what)
        if kind == _ARRAY:
            return self.array(what, 1)
        result: Scalar = self.fixed(kind, 1, what)[0]
        return result

    def fixed(self, kind: int, count: int, what: str) -> list[Any]:
        dtype = _FIXED.get(kind)
        if dtype is None:
            self.fail(f"{what}: unknown value type {kind}")
        size = int(dtype[2])
        self.need(count * size, what)
        values = np.frombuffer(self.data[self.pos : self.pos + count * size], dtype)
        self.pos += count * size
        if kind == _BOOL:
            if count and values.max() > 1:
                self.fail(f"{what}: {values.max()} is not a bool")
            values = values.astype(bool)
        listed: list[Any] = values.tolist()
        return listed

    def array(self, what: str, depth: int) -> list[Any]:
        kind, count = self.u32(what), self.u64(what)
        if kind == _STRING:
            self.need(count * 8, f"{what}: {count} strings")
            return self.strings(count, what)
        if kind == _ARRAY:
            if depth >= _MAX_ARRAY_DEPTH:
                self.fail(f"{what}: arrays nested more than {_MAX_ARRAY_DEPTH} deep")
            self.need(count * 12, f"{what}: {count} arrays")
            return [self.array(what, depth + 1) for _ in range(count)]
        return self.fixed(kind, count, f"{what}: {count} elements")

    def metadata(self, count: int) -> dict[str, Value]:
        out: dict[str, Value] = {}
        for index in range(count):
            key = self.string(f"the name of key {index}")
            what = f"key {shown(key)}"
            if not key:
                self.fail(f"key {index} has no name")
            if key in out:
                self.fail(f"{what} occurs twice")
            out[key] = self.value(self.u32(what), what)
        return out

    def tensors(self, count: int, alignment: int) -> dict[str, TensorInfo]:
        stated: dict[str, tuple[tuple[int, ...], int, int]] = {}
        for index in range(count):
            name = self.string(f"the name of tensor {index}")
            what = f"tensor {shown(name)}"
            if not name:
                self.fail(f"tensor {index} has no name")
            if name in stated:
                self.fail(f"{what} occurs twice")
            n_dims = self.u32(what)
            if not 1 <= n_dims <= _MAX_DIMS:
                self.fail(f"{what}: {n_dims} dimensions (1 to {_MAX_DIMS} are possible)")
            shape = tuple(self.u64(what) for _ in range(n_dims))[::-1]
            if 0 in shape:
                self.fail(f"{what}: shape {list(shape)} holds a zero")
            stated[name] = shape, self.u32(what), self.u64(what)

        start = -(-self.pos // alignment) * alignment
        out = {}
        for name, (shape, kind, offset) in stated.items():
            what = f"tensor {shown(name)}"
            n_bytes = self.size_of(what, shape, kind)
            if offset % alignment:
                self.fail(f"{what}: offset {offset} is not a multiple of the alignment {alignment}")
            if start + offset + n_bytes > self.end:
                self.fail(
                    f"truncated: {what}: its {n_bytes} bytes at {start + offset} end past the "
                    f"{self.end} bytes of the file"
                )
            out[name] = TensorInfo(name, shape, kind, start + offset, n_bytes)
        by_place = sorted(out.values(), key=lambda info: info.offset)
        for one, other in itertools.pairwise(by_place):
            if one.offset + one.n_bytes > other.offset:
                self.fail(f"tensor {shown(other.name)} overlaps tensor {shown(one.name)}")
        return out

    def size_of(self, what: str, shape: tuple[int, ...], kind: int) -> int:
        if kind in STORED_DTYPES:  # for which the gguf package is not imported
            block, block_bytes = STORED_SIZES[kind]
        else:
            from gguf import GGML_QUANT_SIZES

            # an IntEnum member equals its value, so the plain number finds it
            sizes = GGML_QUANT_SIZES.get(kind)  # type: ignore[call-overload]
            if sizes is None:
                self.fail(f"{what}: unknown tensor type {kind}")
            block, block_bytes = sizes
        if shape[-1] % block:
            self.fail(f"{what}: rows of {shape[-1]} values do not divide into blocks of {block}")
        return math.prod(shape) // block * block_bytes


def _alignment(header: _Header, metadata: dict[str, Value]) -> int:
    alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or isinstance(alignment, bool) or alignment < 1 or alignment & (alignment - 1):
        header.fail("key general.alignment: is not a power of two")
    return alignment


def write_with_floats(source: GGUFFile, file: BinaryIO, values: Mapping[str, float]) -> None:
    """Write a copy of a GGUF file in which some keys have these float32 values. All other bytes stay as they are.

    Keys that the file has are changed where they stand, whatever their type was; new ones come after the last key.

    Raises:
        OSError: `file` cannot be written.
    """
    with faults_named(source.path), open_regular(source.path) as opened:
        data = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
    with data:
        header = _Header(source.path, data)
        version = header.u32("the version")
        n_tensors, n_keys = header.u64("the tensor count"), header.u64("the key count")
        parts, left = [], dict(values)
        for index in range(n_keys):
            begin = header.pos
            key = header.string(f"the name of key {index}")
            header.value(header.u32(key), f"key {shown(key)}")
            parts.append(_float_entry(key, left.pop(key)) if key in left else data[begin : header.pos])
        parts += [_float_entry(key, value) for key, value in left.items()]
        begin, alignment = header.pos, _alignment(header, source.metadata)
        header.tensors(n_tensors, alignment)
        head = [b"GGUF", _U32.pack(version), _U64.pack(n_tensors), _U64.pack(n_keys + len(left)), *parts]
        written = b"".join([*head, data[begin : header.pos]])
        file.write(written)
        if n_tensors:
            file.write(bytes(-len(written) % alignment))
            for at in range(-(-header.pos // alignment) * alignment, len(data), _COPIED_AT_ONCE):
                file.write(data[at : at + _COPIED_AT_ONCE])


def _float_entry(key: str, value: float) -> bytes:
    name = key.encode()
    return _U64.pack(len(name)) + name + _U32.pack(_FLOAT32) + struct.pack("<f", value)
