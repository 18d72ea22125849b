"""Files as llama.cpp's llama-quantize writes them: every type, several in one file, no trailing dimensions of 1.

golden/llama_quantize.py recorded types and dimensions from the program itself. The numbers are those that the gguf
package's own dequantizers give: a file of them in F32 is the same model.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping
from pathlib import Path

import gguf
import numpy as np
import pytest
from checkpoints import paint
from gguf import GGMLQuantizationType, quants
from quantized_files import F32, F64, is_made_up, write

import skyinfer
from skyinfer.files.conversion import convert
from skyinfer.files.gguf import GGUFFile

sys.path.append(str(Path(__file__).parent / "golden"))
import llama_quantize

RECORD = json.loads(llama_quantize.RECORD.read_text(encoding="utf-8"))
CASES = [(model, case) for model in RECORD for case in RECORD[model]["types"]]
STATE, QUESTIONS = "vy -2 dx 31 up 12", {"a": {"type": "choice", "instructions": "Which?", "criteria": ["x", "y", "z"]}}


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """An F32 file of each painted model."""
    place = tmp_path_factory.mktemp("painted")
    return {
        name: convert(paint(place / name, **sizes), place / f"{name}.gguf", outtype="f32")
        for name, sizes in llama_quantize.MODELS.items()
    }


def in_f32(source: Path, numbers: Mapping[str, np.ndarray], path: Path) -> Path:
    """`source` with other numbers in its tensors."""
    data = bytearray(source.read_bytes())
    with GGUFFile.open(source) as file:
        for name, info in file.tensors.items():
            assert numbers[name].size == math.prod(info.shape)
            data[info.offset : info.offset + info.n_bytes] = np.ascontiguousarray(numbers[name], "<f4").tobytes()
    path.write_bytes(data)
    return path


def check(source: Path, kinds: Mapping[str, GGMLQuantizationType], dims: Mapping[str, list[int]], place: Path) -> None:
    with GGUFFile.open(source) as file:
        numbers = write(file, place / "quantized.gguf", kinds, dims)
    with GGUFFile.open(place / "quantized.gguf") as file:
        for name in file.tensors:
            assert list(file.tensors[name].shape[::-1]) == dims[name]
            np.testing.assert_array_equal(file.tensor(name), numbers[name])
    in_floats = in_f32(source, numbers, place / "f32.gguf")
    expected = skyinfer.load(in_floats).logits(STATE, QUESTIONS)["a"]
    found = skyinfer.load(place / "quantized.gguf").logits(STATE, QUESTIONS)["a"]
    assert np.isfinite(expected).all()
    np.testing.assert_array_equal(found, expected)
    check_int8(place / "quantized.gguf", in_floats, expected, set(kinds.values()))


def check_int8(path: Path, in_floats: Path, exact: np.ndarray, kinds: set[GGMLQuantizationType]) -> None:
    """In 8 bits the same file is near its exact logits, and all but blocks of Q8_0 is quantized as its numbers are."""
    found = skyinfer.load(path, precision="int8").logits(STATE, QUESTIONS)["a"]
    assert np.isfinite(found).all()
    if not any(map(is_made_up, kinds)):  # of numbers as a model has them
        assert np.abs(found - exact).max() <= 0.25
    gathered = skyinfer.load(path, precision="int8", token_table_bytes=0).logits(STATE, QUESTIONS)["a"]
    np.testing.assert_array_equal(gathered, found)
    if GGMLQuantizationType.Q8_0 not in kinds:
        expected = skyinfer.load(in_floats, precision="int8").logits(STATE, QUESTIONS)["a"]
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(("model", "case"), CASES, ids=[f"{model}-{case}" for model, case in CASES])
def test_what_llama_quantize_writes(model: str, case: str, sources: dict[str, Path], tmp_path: Path) -> None:
    kinds = {
        name: GGMLQuantizationType(int(number))
        for number, names in RECORD[model]["types"][case].items()
        for name in names
    }
    assert RECORD[model]["dims"]["cls.output.weight"] == [int(model[1:])]
    check(sources[model], kinds, RECORD[model]["dims"], tmp_path)


def dequantizable(kind: GGMLQuantizationType) -> bool:
    if kind == F64:
        return True
    try:
        quants.dequantize(np.zeros((1, gguf.GGML_QUANT_SIZES[kind][1]), np.uint8), kind)
    except NotImplementedError:
        return False
    return kind != F32


@pytest.mark.parametrize("kind", list(filter(dequantizable, GGMLQuantizationType)), ids=lambda kind: kind.name)
def test_matrices_of_every_type_that_the_package_reads(
    kind: GGMLQuantizationType, sources: dict[str, Path], tmp_path: Path
) -> None:
    dims = RECORD["d256"]["dims"]
    check(sources["d256"], {name: kind for name, one in dims.items() if len(one) == 2}, dims, tmp_path)


def test_the_recorded_layouts_hold_every_type_that_is_asked_for() -> None:
    """Of all that the program writes, only types that the package cannot read are left out."""
    numbers = {int(number) for model in RECORD.values() for case in model["types"].values() for number in case}
    names = {GGMLQuantizationType(number).name for number in numbers}
    assert names >= {
        "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "BF16", "MXFP4",
    }  # fmt: skip


def test_dimensions_of_1_in_front_and_behind(sources: dict[str, Path], tmp_path: Path) -> None:
    """llama.cpp takes [64, 64, 1, 1]; rows of the embedding are read in parts."""
    dims = {name: [*one, 1, 1][: max(2, len(one)) + (len(one) > 1) * 2] for name, one in RECORD["d64"]["dims"].items()}
    assert dims["cls.weight"] == [64, 64, 1, 1]
    assert dims["output_norm.weight"] == [64, 1]
    check(sources["d64"], {}, dims, tmp_path)
    embedding = {"token_embd.weight": GGMLQuantizationType.Q8_0, "cls.weight": GGMLQuantizationType.Q4_0}
    check(sources["d64"], embedding, dims, tmp_path)
