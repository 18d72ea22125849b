"""What skyinfer warns of points at the line that called into it, whichever way that went."""

from __future__ import annotations

import inspect
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from checkpoints import SIZES, paint

import skyinfer
from skyinfer.files.checkpoint import Checkpoint
from skyinfer.files.gguf import GGUFFile
from skyinfer.model import open_source
from skyinfer.runtime.engine import Engine

PICO = SIZES["pico"]


@pytest.fixture(scope="module")
def painted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return paint(tmp_path_factory.mktemp("painted") / "tiny", **PICO)


@pytest.fixture(scope="module")
def file(painted: Path) -> Path:
    return skyinfer.convert(painted, painted.with_suffix(".gguf"), outtype="f32")


def engine_of(source: Any) -> Engine:
    return Engine(
        source, isa=skyinfer.info()["isa"]["selected"], threads=1, temperature_clamp=True, token_table_bytes=0
    )


def load(path: Path) -> None:
    skyinfer.load(path)


def load_in_a_block(path: Path) -> None:
    with open_source(path) as source:
        engine_of(source)


def load_in_a_loop(path: Path) -> None:
    [skyinfer.load(one) for one in (path,)]


def make_an_engine(path: Path) -> None:
    engine_of(Checkpoint.open(path) if path.is_dir() else GGUFFile.open(path))


def serve(path: Path) -> None:
    from skyinfer.serve.catalog import Catalog

    Catalog.load([str(path)], threads=1, temperature_clamp=True)


@pytest.mark.parametrize("call", [load, load_in_a_block, load_in_a_loop, make_an_engine, serve])
@pytest.mark.parametrize("kind", ["directory", "file"])
def test_clamped_temperatures(call: Callable[[Path], None], kind: str, painted: Path, file: Path) -> None:
    with pytest.warns(RuntimeWarning, match="are clamped, as Laya does: choice.11 0.1006 -> 0.5") as caught:
        call(painted if kind == "directory" else file)
    assert len(caught) == 1
    # two go by way of a function of this file's
    lines, first = inspect.getsourcelines(engine_of if call in (load_in_a_block, make_an_engine) else call)
    assert caught[0].filename == __file__
    assert first < caught[0].lineno < first + len(lines)


def test_each_caller_is_told_once(painted: Path) -> None:
    """As by the filter that is in force where nobody asks for another."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.resetwarnings()
        warnings.simplefilter("default")
        for _ in range(3):
            skyinfer.load(painted)
        skyinfer.load(painted)
    assert [warning.filename for warning in caught] == [__file__] * 2
    assert len({warning.lineno for warning in caught}) == 2


def test_odd_entries_of_a_configuration(tmp_path: Path) -> None:
    options = {
        "temperature_by_options": {"choice:7": 2.0, "noul:2": "warm"},
        "eps_keys": ("layer_norm_eps",),
        "eps": 0.1,
    }
    directory = paint(tmp_path / "odd", **(PICO | options))
    with pytest.warns(RuntimeWarning) as caught:
        Checkpoint.open(directory)
    assert len(caught) == 3
    assert {warning.filename for warning in caught} == {__file__}
    with pytest.warns(RuntimeWarning) as caught:
        skyinfer.convert(directory, tmp_path / "odd.gguf")
    assert {warning.filename for warning in caught} == {__file__}


def test_a_program_sees_its_own_line(painted: Path, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(f"import skyinfer\n\n\ndef main():\n    skyinfer.load({str(painted)!r})\n\n\nmain()\n")
    said = subprocess.run([sys.executable, program], capture_output=True, text=True, check=True).stderr
    assert said.startswith(f"{program}:5: RuntimeWarning: {painted}: temperatures outside")
    assert said.splitlines()[1].strip().startswith("skyinfer.load(")


def test_the_command_says_it_in_its_own_words(painted: Path) -> None:
    request = Path(__file__).parents[1] / "examples" / "request.json"
    said = subprocess.run(
        [sys.executable, "-m", "skyinfer", "decide", "-m", painted, request], capture_output=True, text=True, check=True
    ).stderr
    assert said.startswith(f"skyinfer: warning: {painted}: temperatures outside [0.5, 5] are clamped")
    assert said.count("\n") == 1
