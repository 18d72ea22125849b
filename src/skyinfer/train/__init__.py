"""Trains decision models: rows of states, questions and answers in, a Laya checkpoint directory out.

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
    from .report import QuestionReport, Report
    from .rows import RowsError
    from .sizes import SIZES, Size
    from .training import train, train_rows

__all__ = ["SIZES", "QuestionReport", "Report", "RowsError", "Size", "train", "train_rows"]

_ROOMS = {
    "QuestionReport": "report", "Report": "report", "RowsError": "rows", "SIZES": "sizes", "Size": "sizes",
    "train": "training", "train_rows": "training",
}  # fmt: skip


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name not in _ROOMS:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f".{_ROOMS[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
