"""Fixtures for more than one file of tests.

Says which instruction sets the run covered, and fails a run in CI that skipped one that the machine has.
"""

from __future__ import annotations

import io
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from checkpoints import SIZES, paint
from commands import Result, Run

import skyinfer
from skyinfer.command.main import main
from skyinfer.command.model_option import MODEL_VARIABLE
from skyinfer.core import border

SUPPORTED_ISAS = [name for name in border.isa_names() if border.isa_supported(name)]
_ran: set[str] = set()


def pytest_configure() -> None:
    # A shell has what it starts in the background ignore Ctrl-C, which processes inherit from each other.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(params=border.isa_names())
def isa(request: pytest.FixtureRequest) -> str:
    """Each instruction set of this build in turn; those that this CPU lacks are skipped."""
    name: str = request.param
    if name not in SUPPORTED_ISAS:
        pytest.skip(f"this CPU has no {name}")
    _ran.add(name)
    return name


@pytest.fixture
def without_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plot takes longer than the trainings of tests."""
    from skyinfer.train import training

    monkeypatch.setattr(training, "plot", lambda *_: None)


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A trained checkpoint directory and its report. It must not be changed."""
    from trainings import QUICK, ROWS

    from skyinfer.train import train_rows, training

    out = tmp_path_factory.mktemp("trained") / "model"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "plot", lambda *_: None)
        return out, train_rows(ROWS, out, **QUICK, held_out=0.4, threads=2)


@pytest.fixture
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the variables that change what the command does."""
    for name in (MODEL_VARIABLE, "SKYINFER_ISA", "PYTHONIOENCODING", "PYTHONUTF8"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def run(plain_environment: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """The command inside this process; `stdin` are the bytes it finds there."""

    def run(*arguments: str | Path, stdin: bytes = b"") -> Result:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        try:
            code = main(list(map(str, arguments)))
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else 0
        captured = capsys.readouterr()
        return Result(code, captured.out, captured.err)

    return run


@pytest.fixture(scope="session")
def sky_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A painted model, whose temperatures are within the clamp, so that nothing is warned of."""
    return paint(
        tmp_path_factory.mktemp("checkpoint") / "sky",
        **SIZES["pico"],
        temperature=[1.5, 1.25, 2.0],
        temperature_by_options={"choice:2": 1.25},
    )


@pytest.fixture(scope="session")
def sky_file(sky_checkpoint: Path) -> Path:
    """The same as a GGUF file."""
    return skyinfer.convert(sky_checkpoint, sky_checkpoint.parent / "sky.gguf", outtype="f32")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.write_line(f"instruction sets that ran: {', '.join(sorted(_ran)) or 'none asked for'}")


def pytest_sessionfinish(session: pytest.Session) -> None:
    expected = os.environ.get("SKYINFER_EXPECT_ISAS", "").split()
    missing = [name for name in expected if name not in _ran]
    if missing:
        print(f"\nexpected instruction sets that did not run: {', '.join(missing)}")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
