"""An evaluation as one PNG file: of each question reliability, accuracy by coverage, confusion. Needs matplotlib."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..metrics import Bin
from ..terminal import printable
from ..train.reliability_plot import draw_reliability, new_figure, put_title, save_figure
from .said import runs_as

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Questions of all models that are drawn, in the report's order; the page and the JSON have all.
_MOST_QUESTIONS = 30
# Options of a confusion matrix that are drawn, and up to how many their counts are written into it.
_MOST_LABELS, _MOST_COUNTS = 40, 8
_LONGEST_LABEL = 24


def picture(report: Mapping[str, Any]) -> bytes:
    """A PNG file of `Evaluation.report`, a line of diagrams for each question of each model.

    Raises:
        ImportError: matplotlib is not installed.
    """
    asked = [(model, *question) for model in report["models"] for question in model["questions"].items()]
    shown = asked[:_MOST_QUESTIONS]
    figure = new_figure(11.4, 3.8 * len(shown))
    for i, (model, name, numbers) in enumerate(shown):
        reliability, coverage, confusion = (figure.add_subplot(len(shown), 3, 3 * i + k) for k in (1, 2, 3))
        draw_reliability(reliability, [Bin(**row) for row in numbers["reliability"]])
        put_title(
            reliability,
            f"{_label(model['model'])}: {_label(name)}\nECE {numbers['ece']['value']:.3f}, n {numbers['n']:,}",
        )
        curve = numbers["coverage"]
        coverage.plot([one["coverage"] for one in curve], [one["accuracy"] for one in curve])
        coverage.set(xlim=(0, 1), ylim=(0, 1.02), aspect="equal", xlabel="coverage", ylabel="accuracy")
        put_title(coverage, f"{runs_as(model)}\naccuracy {numbers['accuracy']['value']:.3f}")
        _draw_confusion(confusion, numbers)
    content = io.BytesIO()
    save_figure(figure, content)
    return content.getvalue()


def _draw_confusion(axes: Axes, numbers: Mapping[str, Any]) -> None:
    labels = [_label(name) for name in numbers["options"][:_MOST_LABELS]]
    n, counts = len(labels), numbers["confusion"]
    shares = [[count / (sum(row) or 1.0) for count in row[:n]] for row in counts[:n]]
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    axes.set_xticks(range(n), labels, rotation=90, fontsize=7, parse_math=False)
    axes.set_yticks(range(n), labels, fontsize=7, parse_math=False)
    axes.set(xlabel="answered", ylabel="right")
    if n <= _MOST_COUNTS:
        for i in range(n):
            for k in range(n):
                ink = "white" if shares[i][k] > 0.5 else "black"
                axes.text(k, i, f"{counts[i][k]:g}", ha="center", va="center", fontsize=7, color=ink)
    rest = len(numbers["options"]) - n
    put_title(axes, f"confusion, without {rest} more options" if rest else "confusion")


def _label(name: str) -> str:
    text = printable(str(name))
    return text if len(text) <= _LONGEST_LABEL else f"{text[: _LONGEST_LABEL - 3]}..."
