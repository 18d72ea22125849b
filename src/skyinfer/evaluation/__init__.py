"""How good models are on labelled rows, and temperatures that suit those rows better.

    from skyinfer.evaluation import evaluate

    evaluation = evaluate("labelled.jsonl", skyinfer.load("model.gguf"))
    print(evaluation.report["all"]["accuracy"])

Rows are those of training (docs/training.md). Needs nothing beside what skyinfer itself needs.
"""

from __future__ import annotations

from .calibrating import Calibration, calibrate
from .evaluating import Evaluation, evaluate

__all__ = ["Calibration", "Evaluation", "calibrate", "evaluate"]
