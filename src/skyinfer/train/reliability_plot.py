"""Reliability tables as a picture, by matplotlib: of a report, and one by one for other pictures."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from ..errors import SkyinferError, lacking
from ..files.paths import checked_path
from ..terminal import printable
from .report import PLOT_NAME, Report

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from ..metrics import Bin

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
        ImportError: matplotlib is not installed; the extras `plot` and `train` bring it.
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
    shown = sorted(report.questions.items(), key=lambda item: -item[1].n)[:_MOST_PLOTS]
    n = len(shown)
    columns = min(n, 3)
    rows = -(-n // columns)
    figure = new_figure(3.6 * columns, 3.8 * rows)
    for i, (name, q) in enumerate(shown):
        axes = figure.add_subplot(rows, columns, i + 1)
        draw_reliability(axes, q.reliability)
        put_title(axes, f"{printable(str(name))[:60]}: ECE {q.ece:.3f}, n {q.n:,}")
    save_figure(figure, target)
    return target


def new_figure(width: float, height: float) -> Figure:
    """A figure, in inches, of which nothing stays behind in the process: no pyplot.

    Raises:
        ImportError: matplotlib is not installed.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise lacking("plots need matplotlib: pip install 'skyinfer[plot]'", error) from error
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def draw_reliability(axes: Axes, table: Sequence[Bin]) -> None:
    """What was said against how often it was so; bars say how many answers each bin has."""
    axes.plot([0, 1], [0, 1], color="0.7", linewidth=1)
    largest = max(row.n for row in table)
    axes.bar(
        [row.low for row in table],
        [row.n / largest for row in table],
        [row.high - row.low for row in table],
        align="edge",
        color="0.92",
    )
    axes.plot([row.said for row in table], [row.found for row in table], "o-", markersize=4)
    axes.set(xlim=(0, 1), ylim=(0, 1), aspect="equal", xlabel="said", ylabel="found")


def put_title(axes: Axes, text: str) -> None:
    # a question may be called anything, and a dollar sign begins no formula
    axes.set_title(text, fontsize=10, parse_math=False)


def save_figure(figure: Figure, target: Path | BinaryIO) -> None:
    """As PNG, the same bytes for the same figure."""
    with warnings.catch_warnings():
        # a label may have letters that the font lacks, and is drawn with boxes in their place
        warnings.filterwarnings("ignore", r"Glyph .* missing from", UserWarning)
        figure.savefig(target, format="png", dpi=120, metadata={"Software": None})
