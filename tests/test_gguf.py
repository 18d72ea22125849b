"""The GGUF reader: equal to the gguf package's own, fast, and never anything but a FormatError on bad bytes."""

from __future__ import annotations

import math
import os
import random
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from checkpoints import SIZES, paint
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter

from skyinfer.errors import FormatError
from skyinfer.files.config import ModelConfig
from skyinfer.files.conversion import OUTTYPES, convert
from skyinfer.files.gguf import GGUFFile

TINY = SIZES["pico"] | {"vocab": 600}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return paint(tmp_path_factory.mktemp("painted") / "tiny", **TINY)


@pytest.fixture(scope="module")
def model(checkpoint: Path) -> Path:
    return convert(checkpoint, checkpoint.parent / "tiny.gguf", outtype="q8_0")


def write(path: Path, fill: Callable[[GGUFWriter], None]) -> Path:
    writer = GGUFWriter(path, "test")
    fill(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


# ------------------------------------------------------------------------ like the package's reader


@pytest.mark.parametrize("outtype", OUTTYPES)
def test_reads_what_the_package_reads(outtype: str, checkpoint: Path, tmp_path: Path) -> None:
    path = convert(checkpoint, tmp_path / "out.gguf", outtype=outtype)
    reader = GGUFReader(path)
    with GGUFFile.open(path) as file:
        assert file.version == 3
        theirs = {key: field.contents() for key, field in reader.fields.items()}
        assert file.metadata == {k: v for k, v in theirs.items() if not k.startswith("GGUF.")}
        assert list(file.tensors) == [tensor.name for tensor in reader.tensors]
        for tensor in reader.tensors:
            info = file.tensors[tensor.name]
            assert info.name == tensor.name
            assert info.shape == tuple(tensor.shape.tolist()[::-1])
            assert info.type == tensor.tensor_type
            assert info.offset == tensor.data_offset
            assert info.n_bytes == tensor.n_bytes == file.raw(tensor.name).nbytes
            values = file.tensor(tensor.name)
            assert values.dtype == np.float32
            assert values.flags.c_contiguous
            np.testing.assert_array_equal(
                values, gguf.quants.dequantize(tensor.data, tensor.tensor_type).reshape(info.shape)
            )


def test_every_kind_of_value(tmp_path: Path) -> None:
    values: dict[GGUFValueType, Any] = {
        GGUFValueType.UINT8: 255,
        GGUFValueType.INT8: -128,
        GGUFValueType.UINT16: 65535,
        GGUFValueType.INT16: -32768,
        GGUFValueType.UINT32: 2**32 - 1,
        GGUFValueType.INT32: -(2**31),
        GGUFValueType.FLOAT32: 1.5,
        GGUFValueType.BOOL: True,
        GGUFValueType.STRING: "Ω\0é",
        GGUFValueType.UINT64: 2**64 - 1,
        GGUFValueType.INT64: -(2**63),
        GGUFValueType.FLOAT64: 1e300,
    }

    def fill(writer: GGUFWriter) -> None:
        for kind, value in values.items():
            writer.add_key_value(kind.name, value, kind)
            array = [value, value, value]
            writer.add_key_value(f"array.{kind.name}", array, GGUFValueType.ARRAY, sub_type=kind)

    with GGUFFile.open(write(tmp_path / "kinds.gguf", fill)) as file:
        for kind, value in values.items():
            assert file.metadata[kind.name] == value
            assert type(file.metadata[kind.name]) is type(value)
            assert file.metadata[f"array.{kind.name}"] == [value, value, value]


def _has_dequantizer(kind: GGMLQuantizationType) -> bool:
    _, size = gguf.GGML_QUANT_SIZES[kind]
    try:
        gguf.quants.dequantize(np.zeros((1, size), np.uint8), kind)
    except NotImplementedError:
        return False
    return True


def floats(values: np.ndarray, dtype: str) -> np.ndarray:
    """What `GGUFFile.stored` gives, as float32."""
    if dtype == "bf16":
        return (values.astype(np.uint32) << 16).view(np.float32)
    if dtype == "q8_0":
        return gguf.quants.dequantize(values, GGMLQuantizationType.Q8_0)
    return values.view({"f32": np.float32, "f16": np.float16}[dtype]).astype(np.float32)


@pytest.mark.parametrize("kind", list(GGMLQuantizationType), ids=lambda kind: kind.name)
def test_every_type_of_tensor(kind: GGMLQuantizationType, tmp_path: Path) -> None:
    """What the package can dequantize is read; the rest is a FormatError that names the type."""
    block, size = gguf.GGML_QUANT_SIZES[kind]
    rng = np.random.default_rng(int(kind))
    # few bits set in every byte, so that no scale is NaN
    data = rng.integers(0, 4, (3, 2 * size), np.uint8) * 16

    def fill(writer: GGUFWriter) -> None:
        writer.add_tensor("t", data, raw_dtype=kind)
        writer.add_tensor("v", data[0], raw_dtype=kind)

    with GGUFFile.open(write(tmp_path / "t.gguf", fill)) as file:
        assert file.tensors["t"].shape == (3, 2 * block)
        np.testing.assert_array_equal(file.raw("t"), data.ravel())
        assert file.tensors["v"].shape == (2 * block,)
        is_double = kind == gguf.GGMLQuantizationType.F64
        if is_double or _has_dequantizer(kind):
            expected = data.view("<f8").astype("<f4") if is_double else gguf.quants.dequantize(data, kind)
            np.testing.assert_array_equal(file.tensor("t"), expected)
            np.testing.assert_array_equal(file.tensor("v"), expected[0])
            for rows in (slice(None), slice(1, 3), slice(2, 9)):
                np.testing.assert_array_equal(floats(*file.stored("t", rows)), expected[rows])
            np.testing.assert_array_equal(floats(*file.stored("v")), expected[0])
        else:
            for name in ("t", "v"):
                for read in (file.tensor, file.stored):
                    with pytest.raises(FormatError, match=f"tensor {name}: type {kind.name} cannot be dequantized"):
                        read(name)


def test_dimensions_come_rows_first(tmp_path: Path) -> None:
    cube = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    path = write(tmp_path / "t.gguf", lambda writer: writer.add_tensor("t", cube))
    with GGUFFile.open(path) as file:
        np.testing.assert_array_equal(file.tensor("t"), cube)


def test_arrays_outlive_the_file(model: Path) -> None:
    file = GGUFFile.open(model)
    norm = file.tensor("output_norm.weight")
    assert not norm.flags.owndata
    assert not norm.flags.writeable
    file.close()
    file.close()
    assert np.isfinite(norm).all()
    with pytest.raises(ValueError, match="the file is closed"):
        file.raw("output_norm.weight")


def test_importing_is_light() -> None:
    code = (
        "import sys, skyinfer.files.gguf, skyinfer.files.config, skyinfer.files.checkpoint, skyinfer.files.conversion;"
        "heavy = {'gguf', 'tokenizers', 'jinja2', 'safetensors'} & set(sys.modules);"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env=os.environ)


def test_a_large_vocabulary_opens_fast(tmp_path: Path) -> None:
    """The package's reader needs 26 s for this header; it may take a fraction of a second here."""

    def fill(writer: GGUFWriter) -> None:
        writer.add_array("tokens", [f"token{i}\u00e9" for i in range(256_000)])
        writer.add_array("merges", [f"left{i} right" for i in range(500_000)])

    path = write(tmp_path / "large.gguf", fill)
    start = time.perf_counter()
    with GGUFFile.open(path) as file:
        assert time.perf_counter() - start < 2.0
        assert file.metadata["tokens"][-1] == "token255999\u00e9"
        assert len(file.metadata["merges"]) == 500_000


# --------------------------------------------------------------------------------- faulty by design


def u32(value: int) -> bytes:
    return struct.pack("<I", value)


def u64(value: int) -> bytes:
    return struct.pack("<Q", value)


def text(value: str | bytes) -> bytes:
    raw = value if isinstance(value, bytes) else value.encode()
    return u64(len(raw)) + raw


def key(name: str | bytes, kind: int, value: bytes) -> bytes:
    return text(name) + u32(kind) + value


def tensor(name: str = "t", dims: tuple[int, ...] = (4,), kind: int = 0, offset: int = 0) -> bytes:
    return text(name) + u32(len(dims)) + b"".join(map(u64, dims)) + u32(kind) + u64(offset)


def file_bytes(keys: list[bytes], tensors: list[bytes], data: bytes = b"", *, version: int = 3) -> bytes:
    head = b"GGUF" + u32(version) + u64(len(tensors)) + u64(len(keys)) + b"".join(keys + tensors)
    return head + bytes(-len(head) % 32) + data


NESTED = u32(9) + u64(1)
HOSTILE: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "the file is empty"),
    "text": (b"hello world", "not a GGUF file"),
    "lfs": (b"version https://git-lfs.github.com/spec/v1\noid", "Git LFS pointer"),
    "safetensors": (u64(100) + b'{"a":', "this is a safetensors file"),
    "zip": (b"PK\x03\x04aaaaaaaaaa", "zip archive"),
    "ggml": (b"lmgg" + bytes(20), "before GGUF"),
    "magic only": (b"GGUF", "truncated: the version"),
    "big endian": (b"GGUF" + struct.pack(">I", 3) + bytes(16), "big-endian"),
    "version 1": (file_bytes([], [], version=1), "version 1 is not supported"),
    "version 4": (file_bytes([], [], version=4), "version 4 is not supported"),
    "no counts": (b"GGUF" + u32(3), "truncated: the tensor count"),
    "many keys": (b"GGUF" + u32(3) + u64(0) + u64(2**62), "4611686018427387904 keys cannot fit"),
    "many tensors": (b"GGUF" + u32(3) + u64(2**63) + u64(0), "9223372036854775808 tensors"),
    "long name": (b"GGUF" + u32(3) + u64(0) + u64(1) + u64(2**60) + bytes(9), "the name of key 0"),
    "no name": (file_bytes([key("", 0, b"\1")], []), "key 0 has no name"),
    "bad name": (file_bytes([key(b"\xff", 0, b"\1")], []), "key 0: invalid UTF-8"),
    "twice": (file_bytes([key("a", 0, b"\1")] * 2, []), "key a occurs twice"),
    "type": (file_bytes([key("a", 13, b"\1")], []), "key a: unknown value type 13"),
    "array type": (
        file_bytes([key("a", 9, u32(13) + u64(1))], [], bytes(9)),
        "unknown value type 13",
    ),
    "bool": (file_bytes([key("a", 7, b"\2")], []), "key a: 2 is not a bool"),
    "bools": (file_bytes([key("a", 9, u32(7) + u64(3) + b"\0\1\xff")], []), "255 is not a bool"),
    "string": (file_bytes([key("a", 8, text(b"\xc3("))], []), "key a: invalid UTF-8"),
    "surrogate": (file_bytes([key("a", 8, text(b"\xed\xa0\x80"))], []), "key a: invalid UTF-8"),
    "strings": (
        file_bytes([key("a", 9, u32(8) + u64(2) + text("b") + text(b"\xff"))], []),
        "key a: element 1: invalid UTF-8",
    ),
    "string count": (file_bytes([key("a", 9, u32(8) + u64(2**60))], []), "strings cannot fit"),
    "string length": (
        file_bytes([key("a", 9, u32(8) + u64(2) + text("b") + u64(2**64 - 1))], [], bytes(64)),
        "key a: element 1 runs past the end",
    ),
    "array count": (file_bytes([key("a", 9, u32(12) + u64(2**61))], []), "elements cannot fit"),
    "nested count": (file_bytes([key("a", 9, u32(9) + u64(2**61))], []), "arrays cannot fit"),
    "nesting": (file_bytes([key("a", 9, NESTED * 50 + u32(0) + u64(0))], []), "nested more than 4"),
    "deep nesting": (file_bytes([key("a", 9, NESTED * 10**5)], []), "nested more than 4"),
    "alignment": (file_bytes([key("general.alignment", 4, u32(24))], []), "power of two"),
    "no alignment": (file_bytes([key("general.alignment", 4, u32(0))], []), "power of two"),
    "alignment type": (file_bytes([key("general.alignment", 7, b"\1")], []), "power of two"),
    "tensor name": (file_bytes([], [tensor("")], bytes(16)), "tensor 0 has no name"),
    "tensor twice": (file_bytes([], [tensor()] * 2, bytes(16)), "tensor t occurs twice"),
    "no dimensions": (file_bytes([], [tensor(dims=())], bytes(99)), "tensor t: 0 dimensions"),
    "dimensions": (file_bytes([], [tensor(dims=(1,) * 5)], bytes(16)), "tensor t: 5 dimensions"),
    "many dimensions": (
        file_bytes([], [text("t") + u32(2**32 - 1)], bytes(64)),
        "4294967295 dimensions",
    ),
    "zero": (file_bytes([], [tensor(dims=(4, 0))], bytes(16)), r"shape \[0, 4\] holds a zero"),
    "overflow": (file_bytes([], [tensor(dims=(2**63, 2**63, 4, 4))], bytes(16)), "end past"),
    "wraps to 16": (file_bytes([], [tensor(dims=(2**62 + 4,))], bytes(16)), "end past"),
    "tensor type": (file_bytes([], [tensor(kind=99)], bytes(16)), "unknown tensor type 99"),
    "retired type": (file_bytes([], [tensor(kind=4)], bytes(16)), "unknown tensor type 4"),
    "block": (file_bytes([], [tensor(dims=(48,), kind=8)], bytes(99)), "48 values do not divide"),
    "unaligned": (file_bytes([], [tensor(offset=8)], bytes(99)), "offset 8 is not a multiple"),
    "past the end": (file_bytes([], [tensor(offset=32)], bytes(47)), "truncated: tensor t"),
    "far away": (file_bytes([], [tensor(offset=2**64 - 32)], bytes(16)), "truncated: tensor t"),
    "no data": (file_bytes([], [tensor()], b""), "truncated: tensor t"),
    "overlap": (
        file_bytes([], [tensor("a", (9,)), tensor("b", (4,), offset=32)], bytes(99)),
        "tensor b overlaps tensor a",
    ),
    "same place": (file_bytes([], [tensor("a"), tensor("b")], bytes(99)), "overlaps"),
    "control characters": (
        file_bytes([key("\x1b[2J\n", 13, b"")], [], bytes(14)),
        r"key '\\x1b\[2J\\n': unknown",
    ),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_file(case: str, tmp_path: Path) -> None:
    content, message = HOSTILE[case]
    path = tmp_path / "hostile.gguf"
    path.write_bytes(content)
    with pytest.raises(FormatError, match=message) as caught:
        GGUFFile.open(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


def test_what_is_odd_but_sound(tmp_path: Path) -> None:
    nested = u32(9) + u64(2) + u32(4) + u64(2) + u32(1) + u32(2) + u32(8) + u64(1) + text("x")
    keys = [key("a", 9, nested), key("e", 9, u32(8) + u64(0)), key("general.alignment", 4, u32(1))]
    head = file_bytes(keys, [tensor("é", (2, 1)), tensor("u", (1,), offset=9)], version=2)
    head = head.rstrip(b"\0")  # offsets count from the last byte of the header here
    size = len(b"".join(keys)) + 24 + len(tensor("é", (2, 1))) + len(tensor("u", (1,)))
    data = np.array([1.5, -2.0], "<f4").tobytes() + b"!" + np.array([3.25], "<f4").tobytes()
    path = tmp_path / "odd.gguf"
    path.write_bytes(head.ljust(size, b"\0") + data)
    with GGUFFile.open(path) as file:
        assert file.version == 2
        assert file.metadata == {"a": [[1, 2], ["x"]], "e": [], "general.alignment": 1}
        np.testing.assert_array_equal(file.tensor("é"), [[1.5, -2.0]])
        unaligned = file.tensor("u")
        assert unaligned.flags.aligned
        assert unaligned == [3.25]


def test_directory_and_missing_file(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="is a directory"):
        GGUFFile.open(tmp_path)
    with pytest.raises(FileNotFoundError):
        GGUFFile.open(tmp_path / "missing.gguf")


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("kind", [GGMLQuantizationType.F32, GGMLQuantizationType.F16])
def test_weight_that_is_no_number(value: float, kind: GGMLQuantizationType, tmp_path: Path) -> None:
    data = np.ones((4, 8), np.float32 if kind == GGMLQuantizationType.F32 else np.float16)
    data[2, 3] = value
    path = write(tmp_path / "t.gguf", lambda writer: writer.add_tensor("t", data))
    with GGUFFile.open(path) as file, pytest.raises(FormatError, match="tensor t: holds a NaN"):
        file.tensor("t")


def mutations(content: bytes, header: int, seed: int, count: int) -> Any:
    """Files with a few bytes changed, cut, dropped or put in, most of them in the header."""
    rng = random.Random(seed)
    edges = [0, 1, 2**31 - 1, 2**32 - 1, 2**63 - 1, 2**64 - 1]
    for _ in range(count):
        out = bytearray(content)
        for _ in range(rng.choice((1, 1, 1, 2, 4))):
            where = rng.choice((64, 3000, header, header, len(out)))
            at = rng.randrange(max(1, min(where, len(out))))
            kind = rng.randrange(6)
            if kind == 0:
                out[at : at + 1] = bytes([rng.randrange(256)])
            elif kind == 1:
                out[at : at + 8] = u64(rng.choice([*edges, rng.randrange(2**64)]))
            elif kind == 2:
                out[at : at + 4] = u32(rng.choice((0, 7, 8, 9, 0x7FC00000, 2**32 - 1)))
            elif kind == 3 and rng.random() < 0.2:
                del out[at:]
            elif kind == 4:
                del out[at : at + rng.randrange(1, 40)]
            else:
                out[at:at] = rng.randbytes(rng.randrange(1, 40))
        yield bytes(out)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("seed", range(2))
def test_mutated_file(seed: int, model: Path, tmp_path: Path) -> None:
    """Opening, checking and reading a damaged file works or is a FormatError of one line."""
    with GGUFFile.open(model) as file:
        header = min(info.offset for info in file.tensors.values())
    path, messages = tmp_path / "mutated.gguf", []
    for content in mutations(model.read_bytes(), header, seed, 1000):
        path.write_bytes(content)
        try:
            with GGUFFile.open(path) as file:
                ModelConfig.from_source(file)
                for name in file.tensors:
                    file.tensor(name)
        except FormatError as error:
            messages.append(str(error))
    assert [message for message in messages if len(message) > 500 or "\n" in message] == []


def test_a_released_tensor_can_be_read_again(tmp_path: Path) -> None:
    checkpoint = paint(tmp_path / "checkpoint", **SIZES["nano"])
    with GGUFFile.open(convert(checkpoint, tmp_path / "model.gguf", outtype="f16")) as file:
        before = {name: file.tensor(name).copy() for name in file.tensors}
        for name in file.tensors:
            file.release(name)
        for name, values in before.items():
            np.testing.assert_array_equal(file.tensor(name), values)
