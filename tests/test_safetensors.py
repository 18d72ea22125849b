"""The safetensors reader: what the package reads it reads alike, and what the package refuses is a FormatError."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from checkpoints import SIZES, paint, read_safetensors, write_safetensors

import skyinfer
from skyinfer.errors import FormatError
from skyinfer.files.safetensors import map_tensors


def stored(header: Any, data: bytes = b"") -> bytes:
    """A file with this header, given as text or as what JSON makes the text of."""
    text = header.encode("utf-8", "surrogatepass") if isinstance(header, str) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def entry(begin: int, end: int, shape: list[Any] | None = None, dtype: Any = "U8") -> dict[str, Any]:
    return {"dtype": dtype, "shape": [end - begin] if shape is None else shape, "data_offsets": [begin, end]}


FAULTY: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "it is empty"),
    "short": (b"\1\0\0", "header of 1 bytes in a file of 3"),
    "huge header": ((1 << 63).to_bytes(8, "little") + b"{}", "header of 9223372036854775808 bytes"),
    "cut header": (stored({"a": entry(0, 1)})[:-3], "header of"),
    "no JSON": (stored("{'a': 1}"), "its header: Expecting"),
    "no UTF-8": (stored("{}")[:-1] + b"\xff", "its header: 'utf-8'"),
    "deep": (stored("[" * 100_000), "its header: "),
    "a list": (stored([]), "its header is no JSON object"),
    "no entry": (stored({"a": 1}), "the entry 'a': 1"),
    "no type": (stored({"a": {"shape": [1], "data_offsets": [0, 1]}}, b"x"), "the entry 'a'"),
    "type of type": (stored({"a": entry(0, 1, dtype=["U8"])}, b"x"), "the entry 'a'"),
    "bool": (stored({"a": entry(0, 1, [True])}, b"x"), "the entry 'a'"),
    "negative": (stored({"a": entry(0, 1, [-1, -1])}, b"x"), "the entry 'a'"),
    "float": (stored({"a": entry(0, 1, [1.0])}, b"x"), "the entry 'a'"),
    "dimensions": (stored({"a": entry(0, 1, [1] * 65)}, b"x"), "the entry 'a'"),
    "three offsets": (stored({"a": entry(0, 1) | {"data_offsets": [0, 1, 1]}}, b"x"), "the entry 'a'"),
    "name": (stored('{"\\ud800": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}}', b"x"), "the entry"),
    "unknown type": (stored({"a": entry(0, 1, dtype="F128\x1b[2J")}, b"x"), r"type 'F128\\x1b\[2J' is not supported"),
    "wrong size": (stored({"a": entry(0, 3, [2])}, b"xyz"), "tensor a: 2 bytes from 0 to 3"),
    "overflow": (stored({"a": entry(0, 0, [1 << 32, 1 << 32])}), "tensor a: 18446744073709551616 bytes"),
    "gap": (stored({"a": entry(0, 1), "b": entry(2, 3)}, b"xyz"), "tensor b: 1 bytes from 2 to 3, after 1"),
    "overlap": (stored({"a": entry(0, 2), "b": entry(1, 3)}, b"xyz"), "tensor b: 2 bytes from 1 to 3, after 2"),
    "backwards": (stored({"a": entry(0, 1) | {"data_offsets": [1, 0]}}, b"x"), "tensor a: 1 bytes from 1 to 0"),
    "cut": (stored({"a": entry(0, 3)}, b"xy"), "tensor a runs past the end"),
    "rest": (stored({"a": entry(0, 1)}, b"xyz"), "2 bytes belong to no tensor"),
}


@pytest.mark.parametrize("case", FAULTY)
def test_faulty_file(case: str, tmp_path: Path) -> None:
    content, message = FAULTY[case]
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(FormatError, match=message) as caught:
        list(map_tensors(path))
    assert str(caught.value).startswith(f"{path}: ")
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 500


def test_what_is_odd_but_sound(tmp_path: Path) -> None:
    """Metadata, entries out of order, tensors without elements or dimensions, and a padded header."""
    header = {"b": entry(4, 8, [], "F32"), "__metadata__": {"a": "b"}, "none": entry(4, 4, [0, 7], "F64"),
    "a": entry(0, 4, [1, 2], "BF16") | {"more": 1}}  # fmt: skip
    text = json.dumps(header) + "   "
    path = tmp_path / "model.safetensors"
    path.write_bytes(stored(text, b"abcdefgh"))
    found = dict(map_tensors(path))
    assert {name: (one.dtype, one.shape, one.data.tobytes()) for name, one in found.items()} == {
        "a": ("BF16", (1, 2), b"abcd"), "none": ("F64", (0, 7), b""), "b": ("F32", (), b"efgh"),
    }  # fmt: skip
    assert list(found) == ["a", "none", "b"]
    assert found["b"].offset == 8 + len(text) + 4
    assert not found["a"].data.flags.writeable


def read_by_package(path: Path) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    package = pytest.importorskip("safetensors")
    tensors = package.deserialize(path.read_bytes())
    return {name: (one["dtype"], tuple(one["shape"]), bytes(one["data"])) for name, one in tensors}


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_reads_what_the_package_reads(dtype: Any, tmp_path: Path) -> None:
    path = paint(tmp_path / "painted", **SIZES["pico"], dtype=dtype) / "model.safetensors"
    found = {name: (one.dtype, one.shape, one.data.tobytes()) for name, one in map_tensors(path)}
    assert found == read_by_package(path)


@pytest.mark.parametrize("architecture", ["s1", "s2"])
def test_weights_of_64_bits_are_those_of_32(architecture: str, tmp_path: Path) -> None:
    """In a directory and in a GGUF file; what torch would make an infinity of is refused."""
    directory = paint(tmp_path / "painted", **SIZES["pico"], architecture=architecture, temperature_by_options={})
    asked = {"q": {"type": "choice", "instructions": "Which?", "criteria": ["a", "b"]}}
    file = skyinfer.convert(directory, tmp_path / "f32.gguf", outtype="f32")
    expected = skyinfer.load(file).logits("vy 0", asked)["q"]

    weights = directory / "model.safetensors"
    tensors = {name: values.astype(np.float64) for name, values in read_safetensors(weights).items()}
    between = {name: values * (1 + 2.0**-30) for name, values in tensors.items()}  # rounds to the same float32
    write_safetensors(weights, between)
    assert np.array_equal(skyinfer.load(directory).logits("vy 0", asked)["q"], expected)
    again = skyinfer.convert(directory, tmp_path / "again.gguf", outtype="f32")
    assert again.read_bytes() == file.read_bytes()

    reader, writer = gguf.GGUFReader(file), gguf.GGUFWriter(tmp_path / "f64.gguf", "unused")
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data.astype(np.float64))
    writer.kv_data[0].clear()
    for key, field in reader.fields.items():
        if not key.startswith("GGUF."):
            sub = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(key, field.contents(), field.types[0], sub)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert np.array_equal(skyinfer.load(tmp_path / "f64.gguf").logits("vy 0", asked)["q"], expected)

    write_safetensors(weights, tensors | {"scorer.1.bias": tensors["scorer.1.bias"] + 1e300})
    with pytest.raises(FormatError, match=r"tensor scorer\.1\.bias: holds a NaN or infinite value"):
        skyinfer.load(directory)


def test_takes_nothing_that_the_package_refuses(tmp_path: Path) -> None:
    """Small files with a few bytes changed, cut or put in: what is read is what the package reads."""
    path = tmp_path / "model.safetensors"
    write_safetensors(path, {"a": np.ones((2, 3), np.float32), "b": np.ones(2, np.float16), "c": np.ones(0, np.int64)})
    sound, rng, read = path.read_bytes(), random.Random(0), 0
    for _ in range(4000):
        data = bytearray(sound)
        for _ in range(rng.choice((1, 1, 2))):
            at = rng.randrange(len(data))
            piece = rng.choice([b"", b"0", b"1", b",", b'"', b" ", b"\0", b"[", b"F", b"-", b"\xc3", b"9" * 20])
            data[at : at + rng.randrange(2)] = piece
        path.write_bytes(data)
        try:
            found = {name: (one.dtype, one.shape, one.data.tobytes()) for name, one in map_tensors(path)}
        except FormatError:
            continue
        read += 1
        assert found == read_by_package(path)
    assert read > 100
