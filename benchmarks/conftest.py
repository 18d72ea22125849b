"""Times only when asked: `pytest --benchmark-only` in the root runs this folder, plain `pytest` leaves it out.

What a benchmark notes in `rates` is printed as a table at the end: a rate, its share of the peak that was measured
between its own runs, and the error against float64, because a fast wrong kernel is no kernel.
"""

from __future__ import annotations

import warnings
from pathlib import Path

import checkpoints
import pytest
from kernel_runs import Rate

import skyinfer
from skyinfer.core import border

_rates: list[Rate] = []


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("benchmark_only", default=False):  # there is no such option without the plugin
        return
    here = Path(__file__).parent
    mine = [item for item in items if here in item.path.parents]
    items[:] = [item for item in items if here not in item.path.parents]
    config.hook.pytest_deselected(items=mine)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _rates:
        terminalreporter.write_line(f"{'':<44} {'GFLOP/s':>8} {'of peak':>8} {'error':>9}")
    for rate in _rates:
        terminalreporter.write_line(f"{rate.what:<44} {rate.gflops:>8.1f} {rate.share:>8.1%} {rate.error:>9.1e}")


@pytest.fixture
def rates() -> list[Rate]:
    return _rates


@pytest.fixture(params=[name for name in border.isa_names() if border.isa_supported(name)])
def isa(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="session", params=["pico", "nano"])
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A painted checkpoint of each small size."""
    directory = tmp_path_factory.mktemp(request.param)
    return checkpoints.paint(directory, **checkpoints.SIZES[request.param])


@pytest.fixture
def model(checkpoint: Path, isa: str) -> skyinfer.Model:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of temperatures that are clamped
        return skyinfer.load(checkpoint, isa=isa)
