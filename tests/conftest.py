"""Says which instruction sets the run covered, and fails a run in CI that skipped one that the machine has; and holds
the fixtures of more than one file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from skyinfer.core import border

SUPPORTED_ISAS = [name for name in border.isa_names() if border.isa_supported(name)]
_ran: set[str] = set()


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

    monkeypatch.setattr(training, "plot_reliability", lambda *_: False)


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A trained checkpoint directory and its report. It must not be changed."""
    from trainings import QUICK, ROWS

    from skyinfer.train import train_rows, training

    out = tmp_path_factory.mktemp("trained") / "model"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "plot_reliability", lambda *_: False)
        return out, train_rows(ROWS, out, **QUICK, held_out=0.4, threads=2)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.write_line(f"instruction sets that ran: {', '.join(sorted(_ran)) or 'none asked for'}")


def pytest_sessionfinish(session: pytest.Session) -> None:
    expected = os.environ.get("SKYINFER_EXPECT_ISAS", "").split()
    missing = [name for name in expected if name not in _ran]
    if missing:
        print(f"\nexpected instruction sets that did not run: {', '.join(missing)}")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
