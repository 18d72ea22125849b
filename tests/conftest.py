"""Says which instruction sets the run covered, and fails a run in CI that skipped one that the machine has."""

from __future__ import annotations

import os

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


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.write_line(f"instruction sets that ran: {', '.join(sorted(_ran)) or 'none asked for'}")


def pytest_sessionfinish(session: pytest.Session) -> None:
    expected = os.environ.get("SKYINFER_EXPECT_ISAS", "").split()
    missing = [name for name in expected if name not in _ran]
    if missing:
        print(f"\nexpected instruction sets that did not run: {', '.join(missing)}")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
