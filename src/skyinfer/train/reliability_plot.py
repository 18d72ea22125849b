"""The reliability tables of a report as a picture."""

from __future__ import annotations

import os
from pathlib import Path

from ..errors import SkyinferError
from ..files.paths import checked_path
from ..terminal import printable
from .report import PLOT_NAME, Report

# Questions with most answers that are drawn; each takes a tenth of a second.
_MOST_PLOTS = 30


def plot(report: Report | str | os.PathLike[str], path: str | os.PathLike[str] | None = None) -> Path:
    """Draw what a model said and how often it was so, for the questions with most held-out answers, as a PNG file.

    Args:
        report: one, or where a training has written one: its file, or the checkpoint directory.
        path: the file to write. Default: reliability.png beside the report.

    Returns:
        The file that was written.

    Raises:
        ImportError: matplotlib is not installed; the extra `train` brings it.
        SkyinferError: nothing was held out, so there is nothing to draw; or it is no report (FormatError).
        OSError: a file cannot be read or written.
    """
    if not isinstance(report, Report):
        where = checked_path(report)
        report = Report.read(where)
        path = (where if where.is_dir() else where.parent) / PLOT_NAME if path is None else path
    target = Path(report.path) / PLOT_NAME if path is None else checked_path(path)
    if not report.questions:
        raise SkyinferError(f"{report.path}: nothing was held out, so there is nothing to draw")
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("plots need matplotlib: pip install matplotlib", name=error.name) from error
    shown = sorted(report.questions.items(), key=lambda item: -item[1].n)[:_MOST_PLOTS]
    n = len(shown)
    columns = min(n, 3)
    rows = -(-n // columns)
    # no pyplot: nothing of it stays behind in the process of whoever trains
    figure = Figure(figsize=(3.6 * columns, 3.8 * rows), layout="constrained")
    FigureCanvasAgg(figure)
    for i, (name, q) in enumerate(shown):
        axes = figure.add_subplot(rows, columns, i + 1)
        axes.plot([0, 1], [0, 1], color="0.7", linewidth=1)
        largest = max(row.n for row in q.reliability)
        axes.bar(
            [row.low for row in q.reliability],
            [row.n / largest for row in q.reliability],
            [row.high - row.low for row in q.reliability],
            align="edge",
            color="0.92",
        )
        axes.plot([row.said for row in q.reliability], [row.found for row in q.reliability], "o-", markersize=4)
        axes.set(xlim=(0, 1), ylim=(0, 1), aspect="equal", xlabel="said", ylabel="found")
        # a question may be called anything, and a dollar sign begins no formula
        axes.set_title(f"{printable(str(name))[:60]}: ECE {q.ece:.3f}, n {q.n:,}", fontsize=10, parse_math=False)
    figure.savefig(target, format="png", dpi=120, metadata={"Software": None})
    return target
