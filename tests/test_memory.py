"""What a model takes in memory: what `skyinfer inspect` says of it, bytes for a parameter, and the peak of loading."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import SIZES, paint
from commands import Run
from cores import CONSTANTS
from gguf import GGMLQuantizationType
from quantized_files import write

import skyinfer
from skyinfer.core import border
from skyinfer.files.gguf import GGUFFile
from skyinfer.runtime import engine

TYPES = ("f32", "f16", "bf16", "q8_0")
# matrices of 2 MB in float32 and less, 26 million parameters in all: a second copy is much more than any of them
MANY_LAYERS: dict[str, Any] = {
    "d_model": 256, "n_layers": 24, "n_heads": 4, "d_ff": 1024, "head_layers": 1,
    "vocab": 1024, "max_len": 256, "head_max_len": 96,
}  # fmt: skip


def load(path: Path, **options: Any) -> skyinfer.Model:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of painted temperatures
        return skyinfer.load(path, **options)


# ---------------------------------------------------------------------------------------- what inspect says


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Models small and large enough for every choice of type: by name, size and outtype."""
    place = tmp_path_factory.mktemp("files")
    found = {}
    for name, architecture in (("pico", "s1"), ("nano", "s1"), ("nano", "s2")):
        key = f"{architecture}-{name}"
        found[key] = paint(place / key, **SIZES[name], architecture=architecture, dtype="F16")
        for outtype in TYPES:
            found[f"{key}.{outtype}"] = skyinfer.convert(found[key], place / f"{key}.{outtype}.gguf", outtype=outtype)
    mixed = {"blk.1.attn_qkv.weight": GGMLQuantizationType.Q8_0, "blk.2.ffn_up.weight": GGMLQuantizationType.Q4_0}
    with GGUFFile.open(found["s1-nano.f16"]) as file:
        write(file, place / "mixed.gguf", mixed)
    return found | {"mixed": place / "mixed.gguf"}


def test_inspect_says_what_a_load_takes(
    files: dict[str, Path], isa: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SKYINFER_ISA", isa)
    is_strongest = [name for name in border.isa_names() if border.isa_supported(name)][-1] == isa
    for name in files if is_strongest else ("s1-pico.f16", "s1-nano.f16", "s1-nano.q8_0", "s2-nano.bf16"):
        path = files[name]
        said = json.loads(run("inspect", "--json", path).out)["memory"]
        assert list(said) == list(border.PRECISIONS)
        for precision, memory in said.items():
            core = load(path, precision=precision).engine.core
            assert memory == {"bytes": core.n_bytes, "parameters": core.parameters}, (name, precision)


def test_what_inspect_prints_of_memory(tmp_path: Path, run: Run) -> None:
    """Of 7 million parameters, 2 of them in the embedding and none in a table, by what each type takes."""
    directory = paint(tmp_path / "model", **SIZES["nano"] | {"vocab": 8192}, dtype="F16")
    n = json.loads(run("inspect", "--json", directory).out)["parameters"]
    embedding, others = n["embedding"], n["total"] - n["embedding"]
    assert embedding == 8192 * 256
    expected = {
        "f32": (4 * others + 4 * embedding, "f32", others + 4 * embedding, "f32, int8"),
        "f16": (2 * others + 2 * embedding, "f16", others + 2 * embedding, "f16, int8"),
        "bf16": (2 * others + 2 * embedding, "bf16", others + 2 * embedding, "bf16, int8"),
        "q8_0": (4 * others + 34 / 32 * embedding, "f32, int8", 34 / 32 * (others + embedding), "f32, int8"),
    }
    for outtype, (exact, exact_types, int8, int8_types) in expected.items():
        out = skyinfer.convert(directory, tmp_path / f"{outtype}.gguf", outtype=outtype)
        lines = run("inspect", out).out.splitlines()
        (at,) = [i for i, line in enumerate(lines) if line.startswith("  in memory ")]
        for line, precision, n_bytes, types in (
            (lines[at].removeprefix("  in memory"), "exact", exact, exact_types),
            (lines[at + 1], "int8", int8, int8_types),
        ):
            name, number, unit, said = line.split(maxsplit=3)
            assert (name, unit, said) == (precision, "MB,", f"weights in {types}")
            assert n_bytes <= 1e6 * float(number) + 5e4, (outtype, line)
            assert 1e6 * float(number) <= 1.08 * n_bytes, (outtype, line)  # positions, scorer, scales, vectors


def test_a_model_that_is_measured_only_refuses_the_rest() -> None:
    sizes = {"d_model": 8, "d_ff": 6, "n_vocab": 5, "n_layers": 1, "n_decision_blocks": 1}
    core = border.CoreModel(**sizes, **CONSTANTS, measured=True)
    assert core.n_bytes == border.CoreModel(**sizes, **CONSTANTS).n_bytes
    assert core.isa in border.isa_names()
    for call in (
        lambda: core.set("cls.bias", np.ones(8, np.float32)),
        lambda: core.set("token_embd.weight", np.ones((1, 8), np.float32), first_row=0),
        core.freeze,
        lambda: border.CorePlan(core, n_tokens=1, n_sequences=1, n_markers=1, sequence_tokens=1, n_threads=1),
    ):
        with pytest.raises(ValueError, match=r"no room for weights|not frozen"):
            call()
    with pytest.raises(ValueError, match="d_model: expected 2 to"):
        border.CoreModel(**sizes | {"d_model": 0}, **CONSTANTS, measured=True)


# ------------------------------------------------------------------------------- bytes for each parameter, in 8 bits


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("vocab", [8192, 50_368])
def test_a_large_model_in_8_bits_takes_a_byte_and_a_little(dtype: str, vocab: int, isa: str) -> None:
    """At most 1.15 bytes a parameter, tables and all: the large shape, and the same with ModernBERT's vocabulary.

    The smaller embedding keeps its type, of which its share of the bytes is counted: 8 of 378 million.
    """
    large = SIZES["large"]
    sizes = {
        "d_model": large["d_model"], "d_ff": large["d_ff"], "n_vocab": vocab, "n_layers": large["n_layers"],
        "n_decision_blocks": large["head_layers"],
    }  # fmt: skip
    shapes = border.tensor_shapes(**sizes)
    dtypes = {name: dtype if len(shape) == 2 and shape[0] > 3 else "f32" for name, shape in shapes.items()}
    core = border.CoreModel(
        **sizes, n_heads=16, n_decision_heads=16, window=64, max_positions=large["max_len"], norm_eps=1e-5,
        rope_base_global=160000.0, rope_base_local=10000.0, activation="gelu",
        layer_is_global=[i % 3 == 0 for i in range(large["n_layers"])], isa=isa, dtypes=dtypes,
        widened_bytes=2 << 20, qkv_table_bytes=1 << 19, precision="int8", measured=True,
    )  # fmt: skip
    n = sum(map(math.prod, shapes.values()))
    assert n > 377e6
    assert core.n_bytes <= 1.15 * n


def test_weights_of_the_large_shape_take_a_byte_and_a_little(tmp_path: Path) -> None:
    """A few layers as large ones, loaded: the bound as above, in which the scorer has ten times its share."""
    sizes = SIZES["large"] | {"n_layers": 3, "head_layers": 1, "vocab": 1024}
    directory = paint(tmp_path / "model", **sizes, dtype="F16", weights="initial")
    for outtype in TYPES:
        path = skyinfer.convert(directory, tmp_path / f"{outtype}.gguf", outtype=outtype)
        with GGUFFile.open(path) as file:
            shapes = {name: info.shape for name, info in file.tensors.items()}
        core = load(path, precision="int8").engine.core
        in_layers = sum(
            math.prod(shape) for name, shape in shapes.items() if name.startswith("blk.") and len(shape) == 2
        )
        embedding = math.prod(shapes["token_embd.weight"])
        assert core.parameters["int8"] == in_layers + (embedding if outtype == "q8_0" else 0)
        assert core.n_bytes <= 1.15 * sum(map(math.prod, shapes.values())), outtype
        path.unlink()


# --------------------------------------------------------------------------------------------- the peak of loading

# After a load of a small model of the same type, which imports everything: bytes that the process grows by at most, and
# packed weights.
_LOADED = """
import re, sys, warnings
from pathlib import Path
import skyinfer

def resident(key):
    return int(re.search(key + r":\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) * 1024

warnings.simplefilter("ignore")
skyinfer.load(sys.argv[1], precision=sys.argv[3])
before = resident("VmRSS")
assert resident("VmHWM") < before + 4_000_000  # else what follows could hide below it
model = skyinfer.load(sys.argv[2], precision=sys.argv[3], threads=int(sys.argv[4]), token_table_bytes=0)
print(resident("VmHWM") - before, model.engine.core.n_bytes)
"""


@pytest.fixture(scope="module")
def many_layers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("many")
    found = {}
    for name, sizes in (("", MANY_LAYERS), ("small ", SIZES["pico"])):
        directory = paint(place / f"{name}model", **sizes, dtype="F16", weights="initial")
        for kind in ("f16", "q8_0"):
            found[f"{name}{kind}"] = skyinfer.convert(directory, place / f"{name}{kind}.gguf", outtype=kind)
        found[f"{name}q4_0"] = place / f"{name}q4_0.gguf"
        with GGUFFile.open(found[f"{name}f16"]) as file:
            matrices = [tensor for tensor, info in file.tensors.items() if len(info.shape) == 2]
            write(file, found[f"{name}q4_0"], dict.fromkeys(matrices, GGMLQuantizationType.Q4_0))
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/status")
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("kind", ["f16", "q4_0", "q8_0"])
def test_no_second_copy_is_in_memory_while_8_bits_are_made(
    many_layers: dict[str, Path], kind: str, threads: int
) -> None:
    """A thread has one tensor's floats beside what is kept, and of types that the gguf package dequantizes also what it
    makes on the way. A second copy would be 26 to 105 MB."""
    with GGUFFile.open(many_layers[kind]) as file:
        largest = 4 * max(math.prod(info.shape) for info in file.tensors.values())
    command = [sys.executable, "-c", _LOADED, many_layers[f"small {kind}"], many_layers[kind], "int8", str(threads)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    grown, packed = map(int, done.stdout.split())
    beside = threads * largest * (3 if kind == "q4_0" else 1) + 6_000_000  # and metadata, tokenizer, pages half full
    assert 0.9 * packed < grown <= packed + beside, (grown, packed)
    assert packed > beside  # so that another copy would be seen


# ------------------------------------------------------------------------------------------------ threads of loading


def threads_that_pack(path: Path, monkeypatch: pytest.MonkeyPatch, wait: int, **options: Any) -> set[int]:
    """Those that read tensors for a load in 8 bits, each of which waits for so many to be there."""
    seen: set[int] = set()
    meeting, read = threading.Barrier(wait), GGUFFile.stored

    def stored(self: GGUFFile, *arguments: Any) -> Any:
        if threading.get_ident() not in seen:
            seen.add(threading.get_ident())
            meeting.wait(30)  # else the first could be done before another begins
        return read(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(GGUFFile, "stored", stored)
        load(path, precision="int8", **options)
    return seen


def test_a_large_model_is_loaded_by_as_many_threads_as_there_are_cpus(
    many_layers: dict[str, Path], files: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    for cpus in (1, 3):
        monkeypatch.setattr(engine, "available_cpus", lambda cpus=cpus: cpus)
        for kind in ("f16", "q8_0"):
            assert len(threads_that_pack(many_layers[kind], monkeypatch, cpus)) == cpus
            assert len(threads_that_pack(many_layers[kind], monkeypatch, 2, threads=2)) == 2
        own = threads_that_pack(files["s1-pico.f16"], monkeypatch, 1)  # a small one by the thread that asks for it
        assert own == {threading.get_ident()}
