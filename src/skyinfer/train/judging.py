"""What scores on held-out answers say of a model: the temperatures that suit it, and the numbers of the report.

Arrays of one question: logits float64 [n, n_options], targets float64 [n, n_options], weights float64 [n].
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

from ..files.temperatures import bucket
from ..metrics import fit_temperature, measure
from ..schema import QUESTION_TYPES
from .encoding import Encoded
from .report import QuestionReport
from .writing import bucket_name

# A temperature is fitted to no fewer held-out answers; the type's own, or 1, serves otherwise.
_LEAST_TO_FIT = 30


class Scored(NamedTuple):
    """Answers to one question beside the model's scores. See the file's head for the shapes."""

    logits: np.ndarray
    targets: np.ndarray
    weights: np.ndarray


def by_question(encoded: Encoded, found: Mapping[int, np.ndarray]) -> dict[int, Scored]:
    """`found`, the logits [n_options] of each example, by the number of the question."""
    examples_of: dict[int, list[int]] = {}
    for example in sorted(found):
        examples_of.setdefault(int(encoded.question[example]), []).append(example)
    return {
        number: Scored(
            np.stack([found[example] for example in examples]).astype(np.float64),
            np.array([encoded.targets[example] for example in examples]),
            encoded.weights[examples],
        )
        for number, examples in examples_of.items()
    }


def temperatures_of(encoded: Encoded, scored: Mapping[int, Scored]) -> dict[str, float]:
    """Temperatures by their names in the agent's configuration: for each type ("choice"), and for each bucket of option
    counts that has answers enough ("choice:3-5")."""
    out: dict[str, float] = {}
    for kind in QUESTION_TYPES:
        mine = [one for number, one in scored.items() if encoded.prefixes[number].question.type == kind]
        out[kind] = _fitted(mine, 1.0)
        buckets = [bucket(one.logits.shape[1]) for one in mine]
        for name in dict.fromkeys(buckets):
            some = [one for one, own in zip(mine, buckets, strict=True) if own == name]
            if _n_answers(some) >= _LEAST_TO_FIT:
                out[bucket_name(kind, name)] = _fitted(some, out[kind])
    return out


def reports_of(
    encoded: Encoded, scored: Mapping[int, Scored], temperatures: Mapping[str, float]
) -> dict[str, QuestionReport]:
    """Every question's numbers by its id; a number is added where several questions have the same id."""
    reports: dict[str, QuestionReport] = {}
    for number, one in scored.items():
        question = encoded.prefixes[number].question
        n_options = len(question.options)
        own = bucket_name(question.type, bucket(n_options))
        temperature = temperatures.get(own, temperatures[question.type])
        numbers = measure(question.type, *one, temperature)
        name = str(question.id)
        if name in reports:
            name = f"{name} ({number})"
        reports[name] = QuestionReport(question.type, n_options, len(one.logits), temperature, **numbers)
    return reports


def _n_answers(scored: Iterable[Scored]) -> int:
    return sum(len(one.logits) for one in scored)


def _fitted(scored: list[Scored], default: float) -> float:
    """One temperature for several questions, which may differ in their number of options."""
    if _n_answers(scored) < _LEAST_TO_FIT:
        return default
    widest = max(one.logits.shape[1] for one in scored)

    def padded(values: np.ndarray, fill: float) -> np.ndarray:
        return np.pad(values, ((0, 0), (0, widest - values.shape[1])), constant_values=fill)

    fitted = fit_temperature(
        np.concatenate([padded(one.logits, -np.inf) for one in scored]),
        np.concatenate([padded(one.targets, 0.0) for one in scored]),
        np.concatenate([one.weights for one in scored]),
    )
    # a GGUF file stores float32, and has to hold the very same number
    return round(fitted * 1024) / 1024
