"""The core for browsers: the committed modules are what the sources give, and tests/c's program runs on their rows.

Needs the pinned compiler and a runtime: pip install '.[wasm]'. SKYINFER_EXPECT_WASM makes a missing one a failure.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from skyinfer.core import border

ROOT = Path(__file__).parents[1]
SHIPPED = ROOT / "src" / "skyinfer" / "web"
MOST_BYTES = 130_000  # of a module, as it is

for _package in ("ziglang", "wasmtime"):
    if importlib.util.find_spec(_package) is None:
        if os.environ.get("SKYINFER_EXPECT_WASM"):
            pytest.fail(f"SKYINFER_EXPECT_WASM is set, and {_package} is not installed", pytrace=False)
        pytest.skip(f"needs {_package}: pip install '.[wasm]'", allow_module_level=True)

import wasmtime  # noqa: E402

sys.path.insert(0, str(ROOT / "csrc" / "wasm"))
import build  # noqa: E402


def engine() -> wasmtime.Engine:
    config = wasmtime.Config()
    config.wasm_relaxed_simd = True
    return wasmtime.Engine(config)


def test_the_committed_modules_are_what_the_sources_give(tmp_path: Path) -> None:
    for path in build.build(tmp_path):
        shipped = SHIPPED / path.name
        assert path.read_bytes() == shipped.read_bytes(), f"{path.name}: build it again with csrc/wasm/build.py"
        assert path.stat().st_size <= MOST_BYTES


@pytest.mark.parametrize("module", build.MODULES, ids=lambda module: module.file)
def test_core_in_c(module: build.Module, tmp_path: Path) -> None:
    """Every kernel against double precision, in NaN and canaries, and what sky_run promises; and the games."""
    flags = [*module.flags, "-USKY_WITHOUT_PORTABLE", "-Usnprintf", "-Uvsnprintf", "-O1", "-DTHREAD_ROUNDS=2"]
    wrapped = [f"-Wl,--wrap={name}" for name in ("malloc", "calloc", "realloc")]
    program = tmp_path / "core_test.wasm"
    sources = [*build.CORE, "kernels/portable.c", "kernels/wasm128.c", "../tests/c/core_test.c"]
    build.compile_module(program, sources, flags + wrapped, model="command")
    printed = run(program, tmp_path)
    isa = "wasm128_relaxed" if "relaxed" in module.file else "wasm128"
    for check in ("gemm", "layer_norm", "attention", "widen_f16", "model"):
        assert f"ok      {isa:9} {check}" in printed, printed
    games = tmp_path / "flappy_test.wasm"
    build.compile_module(games, ["games/flappy.c", "../tests/c/flappy_test.c"], [*flags], model="command")
    assert "trace" in run(games, tmp_path)


def run(program: Path, scratch: Path) -> str:
    """What a program prints; it has to end with 0."""
    out = scratch / "printed"
    store = wasmtime.Store(engine())
    wasi = wasmtime.WasiConfig()
    wasi.stdout_file = str(out)
    store.set_wasi(wasi)
    linker = wasmtime.Linker(store.engine)
    linker.define_wasi()
    instance = linker.instantiate(store, wasmtime.Module.from_file(store.engine, str(program)))
    code = 0
    try:
        instance.exports(store)["_start"](store)
    except wasmtime.ExitTrap as error:
        code = error.code
    assert code == 0, out.read_text()
    return out.read_text()


class Instance:
    """A shipped module, called as the host calls it."""

    def __init__(self, file: str) -> None:
        self.store = wasmtime.Store(engine())
        module = wasmtime.Module.from_file(self.store.engine, str(SHIPPED / file))
        assert module.imports == []
        self.exports = wasmtime.Instance(self.store, module, []).exports(self.store)
        self.call("_initialize")

    def call(self, name: str, *arguments: float) -> Any:
        return self.exports[name](self.store, *arguments)

    def put(self, data: bytes) -> int:
        address: int = self.call("sky_web_alloc", max(1, len(data)))
        self.exports["memory"].write(self.store, bytearray(data), address)
        return address

    def text(self, address: int, most: int = 300) -> str:
        return bytes(self.exports["memory"].read(self.store, address, address + most)).split(b"\0")[0].decode()


SOUND = {
    "d_model": 4, "d_ff": 3, "n_vocab": 5, "n_layers": 1, "n_heads": 2, "n_decision_blocks": 0, "n_decision_heads": 1,
    "window": 8, "max_positions": 9,
}  # fmt: skip


def made(instance: Instance, **changes: int) -> tuple[int, str]:
    """A model of these sizes in the module, and its message."""
    import struct

    sizes = instance.put(struct.pack("<12i", 0, *(SOUND | changes).values(), 0, 0))
    constants = instance.put(struct.pack("<3f", 1e-5, 1e4, 1e4))
    model = instance.call("sky_web_model", sizes, constants, instance.put(b"\1"), 0)
    return model, message(instance, model)


def message(instance: Instance, model: int) -> str:
    text = instance.put(bytes(256))
    instance.call("sky_web_model_error", model, text, 256)
    return instance.text(text)


def test_messages_are_those_of_every_other_build() -> None:
    """format.c writes every kind of value that the core's messages hold."""
    instance = Instance("skyinfer.wasm")
    wrong = [{"d_model": 0}, {"d_model": -7}, {"d_model": 1 << 16}, {"n_heads": 3}, {"n_decision_heads": 3}]
    for changes in [*wrong, {"n_vocab": 2**31 - 1}]:
        with pytest.raises(ValueError, match=r".") as caught:
            border.CoreModel(
                **(SOUND | changes), norm_eps=1e-5, rope_base_global=1e4, rope_base_local=1e4, activation="gelu",
                layer_is_global=[True], qkv_table_bytes=0, isa=None,
            )  # fmt: skip
        assert made(instance, **changes)[1] == str(caught.value), changes
    model, nothing = made(instance)
    assert nothing == ""
    data = instance.put(bytes(4 * 64))

    def set_tensor(name: bytes, rows: int, cols: int) -> str:
        assert instance.call("sky_web_model_set", model, instance.put(name + b"\0"), 0, 0, rows, cols, data, 0) != 0
        return message(instance, model)

    assert set_tensor(b"blk.0.attn_qkv.weight", 3, -4) == "blk.0.attn_qkv.weight: expected [12, 4], got [3, -4]"
    assert set_tensor(b"blk.00.attn_qkv.weight", 12, 4) == "blk.00.attn_qkv.weight: no such tensor"
    assert set_tensor(b"x" * 200, 1, 1) == "x" * 100 + ": no such tensor"
    assert instance.call("sky_web_model_freeze", model) != 0
    assert "missing" in message(instance, model)
    offsets = instance.put(bytes(4 * 2))  # of no questions
    questions = instance.call("sky_web_questions", model, 0, 0, offsets)
    assert instance.text(instance.call("sky_web_questions_error", questions)) == "the model is not frozen"


def test_no_more_memory_is_an_answer_and_no_trap() -> None:
    instance = Instance("skyinfer-relaxed.wasm")
    assert instance.call("sky_web_alloc", 2**31 - 1) == 0
    model, text = made(instance, d_model=1 << 14, d_ff=1 << 20, n_heads=32, n_decision_heads=32)
    assert text.startswith("out of memory: the packed weights take ")
    instance.call("sky_web_model_free", model)
    assert made(instance)[1] == ""
