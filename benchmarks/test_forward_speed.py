"""Level 2: one forward pass on the drone request's tokens, without text."""

from __future__ import annotations

from typing import Any

from requests_of import DRONE

import skyinfer
from skyinfer import _core
from skyinfer.schema import QUESTION_TYPES


def test_forward(benchmark: Any, model: skyinfer.Model) -> None:
    questions = DRONE["questions"]
    sequences = model.encode(DRONE["state"], questions)
    batch = [
        (sequence.ids, sequence.markers, QUESTION_TYPES.index(questions[qid]["type"]))
        for qid, sequence in sequences.items()
    ]
    plan = _core.CorePlan(
        model._engine.core,
        n_tokens=sum(len(sequence.ids) for sequence in sequences.values()),
        n_sequences=len(batch),
        n_markers=sum(len(sequence.markers) for sequence in sequences.values()),
        sequence_tokens=max(len(sequence.ids) for sequence in sequences.values()),
    )
    benchmark(plan.run, batch)
