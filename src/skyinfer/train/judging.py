"""What scores on held-out answers say of a model: the temperatures that suit it, and the numbers of the report.

Arrays of one question: logits float64 [n, n_options], targets float64 [n, n_options], weights float64 [n].
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

from ..files.temperatures import bucket
from ..metrics import fit_temperature, measure
from ..schema import QUESTION_TYPES, Question
from .encoding import Encoded
from .report import QuestionReport
from .writing import bucket_name

# A temperature is fitted to no fewer held-out answers; the type's own, or 1, serves otherwise.
LEAST_TO_FIT = 30


class Scored(NamedTuple):
    """Answers to one question beside the model's scores. examples: int64 [n]; see the file's head for the others."""

    examples: np.ndarray
    logits: np.ndarray
    targets: np.ndarray
    weights: np.ndarray

    def some(self, chosen: np.ndarray) -> Scored:
        """Those that `chosen`, bool [n], says."""
        return Scored(*(values[chosen] for values in self))


def by_question(encoded: Encoded, found: Mapping[int, np.ndarray]) -> dict[int, Scored]:
    """`found`, the logits [n_options] of each example, by the number of the question."""
    examples_of: dict[int, list[int]] = {}
    for example in sorted(found):
        examples_of.setdefault(int(encoded.question[example]), []).append(example)
    return {
        number: Scored(
            np.array(examples),
            np.stack([found[example] for example in examples]).astype(np.float64),
            np.array([encoded.targets[example] for example in examples]),
            encoded.weights[examples],
        )
        for number, examples in examples_of.items()
    }


def temperatures_of(encoded: Encoded, scored: Mapping[int, Scored], least: int = LEAST_TO_FIT) -> dict[str, float]:
    """Temperatures by their names in the agent's configuration: for each type ("choice"), and for each bucket of option
    counts that has at least `least` answers ("choice:3-5")."""
    out: dict[str, float] = {}
    for kind in QUESTION_TYPES:
        mine = [one for number, one in scored.items() if encoded.prefixes[number].question.type == kind]
        out[kind] = _fitted(mine, 1.0, least)
        buckets = [bucket(one.logits.shape[1]) for one in mine]
        for name in dict.fromkeys(buckets):
            some = [one for one, own in zip(mine, buckets, strict=True) if own == name]
            if _n_answers(some) >= least:
                out[bucket_name(kind, name)] = _fitted(some, out[kind], least)
    return out


def temperature_of(question: Question, temperatures: Mapping[str, float]) -> float:
    """The one that a question's scores are divided by."""
    own = bucket_name(question.type, bucket(len(question.options)))
    return temperatures.get(own, temperatures[question.type])


def judge(
    encoded: Encoded, scored: Mapping[int, Scored], half: np.ndarray
) -> tuple[dict[str, float], dict[str, QuestionReport]]:
    """The temperatures that suit all answers, and what is reported of each question.

    What is reported of one half of the states is judged with temperatures that were fitted to the other half.

    Args:
        half: bool [n_states], two parts of them.
    """
    temperatures = temperatures_of(encoded, scored)
    is_second = {number: half[encoded.state[one.examples]] for number, one in scored.items()}
    by_half = [
        temperatures_of(
            encoded, {n: one.some(is_second[n] == (part == 0)) for n, one in scored.items()}, LEAST_TO_FIT // 2
        )
        for part in range(2)
    ]
    applied = {}
    for number in scored:
        question = encoded.prefixes[number].question
        first, second = (temperature_of(question, own) for own in by_half)
        applied[number] = np.where(is_second[number], second, first)[:, None]
    return temperatures, reports_of(encoded, scored, temperatures, applied)


def reports_of(
    encoded: Encoded,
    scored: Mapping[int, Scored],
    temperatures: Mapping[str, float],
    applied: Mapping[int, np.ndarray] | None = None,
) -> dict[str, QuestionReport]:
    """Every question's numbers by its id; a number is added where several questions have the same id.

    Args:
        temperatures: of the model.
        applied: by question, the temperature [n, 1] that each answer is judged with; default the model's.
    """
    names = names_of(encoded)
    reports: dict[str, QuestionReport] = {}
    for number, one in scored.items():
        question = encoded.prefixes[number].question
        temperature = temperature_of(question, temperatures)
        numbers = measure(
            question.type, one.logits, one.targets, one.weights, temperature if applied is None else applied[number]
        )
        reports[names[number]] = QuestionReport(
            question.type, len(question.options), len(one.logits), temperature, **numbers
        )
    return reports


def names_of(encoded: Encoded) -> list[str]:
    """What a report calls each question: its id, and a number where another one has the same."""
    names: list[str] = []
    for number, prefix in enumerate(encoded.prefixes):
        name = str(prefix.question.id)
        names.append(f"{name} ({number})" if name in names else name)
    return names


def _n_answers(scored: Iterable[Scored]) -> int:
    return sum(len(one.logits) for one in scored)


def _fitted(scored: list[Scored], default: float, least: int) -> float:
    """One temperature for several questions, which may differ in their number of options."""
    if _n_answers(scored) < least:
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
