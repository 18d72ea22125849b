"""Trains decision models: rows of states, questions and answers in, a checkpoint directory out.

    from skyinfer.train import train_rows

    report = train_rows("rows.jsonl", "my-model", size="pico")
    print(report)

Needs torch and safetensors (`pip install 'skyinfer[train]'`), which are imported with `train` or `train_rows`; reading
rows and the numbers of a report do without.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .reliability_plot import plot
    from .report import Evaluation, QuestionReport, Report, Trial
    from .rows import RowsError
    from .sizes import SIZES, Size
    from .training import train, train_rows

__all__ = [
    "SIZES", "Evaluation", "QuestionReport", "Report", "RowsError", "Size", "Trial", "plot", "train", "train_rows",
]  # fmt: skip

_ROOMS = {
    "Evaluation": "report", "QuestionReport": "report", "Report": "report", "RowsError": "rows", "SIZES": "sizes",
    "Size": "sizes", "Trial": "report", "plot": "reliability_plot", "train": "training", "train_rows": "training",
}  # fmt: skip


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name not in _ROOMS:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f".{_ROOMS[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
