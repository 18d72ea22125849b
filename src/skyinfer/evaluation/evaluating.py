"""The numbers of one model, or of two side by side, on labelled rows, as a plain dict and as the lines of a table."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..metrics import (
    SUMMARY,
    Judged,
    area_under_curve,
    bootstrap,
    coverage_curve,
    interval,
    joined,
    judged,
    reliability,
    summary,
    threshold_for,
)
from ..model import Model
from ..schema import Question
from ..terminal import printable
from .labelled import LabelledRows, read_labelled
from .said import identity, said_as, told_apart
from .scoring import Scored, scores_of

# Points of the curve of coverage against accuracy that a report keeps.
_CURVE_POINTS = 50
_SAMPLES = 1000
# what `bootstrap` gives of one model or of a difference: float64 [n_samples, 4]
_Samples = np.ndarray


@dataclass(frozen=True)
class Evaluation:
    """What models came to on labelled rows.

    Attributes:
        report: what `skyinfer evaluate` writes as JSON; docs/evaluation.md has its fields.
    """

    report: dict[str, Any]

    def value(self, name: str) -> float | None:
        """A number of the first model: "accuracy", of all answers, or "QUESTION.accuracy"; None where there is none.

        Raises:
            KeyError: there is no such question or number.
        """
        question, _, metric = name.rpartition(".")
        model = self.report["models"][0]
        numbers = model["questions"][question] if question else model["all"]
        value = numbers[metric]
        if isinstance(value, dict):
            value = value["value"]
        if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float))):
            raise KeyError(name)
        return value

    def as_text(self) -> str:
        """The tables that the command prints."""
        return "\n".join(_lines(self.report))

    def __str__(self) -> str:
        return self.as_text()


def evaluate(
    rows: str | os.PathLike[str] | LabelledRows,
    model: Model,
    other: Model | None = None,
    *,
    by: str | None = None,
    wanted_accuracy: float = 0.95,
    samples: int = _SAMPLES,
    seed: int = 0,
    progress: Callable[[str, int, int], None] | None = None,
) -> Evaluation:
    """Measure a model on labelled rows, or two on the same.

    Args:
        rows: a file of JSON Lines, or what `labelled.read_labelled` gave.
        model, other: as `skyinfer.load` gives them; `other` is compared with `model`.
        by: divide the rows by a field of theirs ("x_lang") or a key of their states ("state.lang").
        wanted_accuracy: find the least threshold on the probability at which the answers above it have this accuracy.
        samples: of the bootstrap, which draws rows; the intervals hold the middle 95 % of them. 0: no intervals.
        seed: of the bootstrap; the same seed gives the same numbers.
        progress: called with a model's name, the states done and the states in all.

    Raises:
        RowsError: rows are faulty.
        SkyinferError: there are no rows, or a model cannot take what they ask.
        ValueError: `wanted_accuracy` is not in (0, 1], or `samples` is negative.
        OSError: the file cannot be read.
    """
    if not 0 < wanted_accuracy <= 1:
        raise ValueError(f"wanted_accuracy: expected a number above 0, up to 1, got {wanted_accuracy!r}")
    if samples < 0:
        raise ValueError(f"samples: expected 0 or more, got {samples!r}")
    read = rows if isinstance(rows, LabelledRows) else read_labelled(rows, by)
    models = [model] if other is None else [model, other]
    scored = [scores_of(one, read, progress) for one in models]
    names = _names(read.questions)
    asked = [number for number, one in enumerate(scored[0]) if len(one.weights)]
    results = [_judged(read, one) for one in scored]

    def measured(answers: Sequence[Judged], groups: np.ndarray) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        drawn = bootstrap(answers, groups, samples, seed) if samples else None
        own = [_numbers(summary(one), None if drawn is None else drawn[i]) for i, one in enumerate(answers)]
        for numbers, one in zip(own, answers, strict=True):
            numbers.update(n=len(one.weights), confidence=float(np.average(one.confidence, weights=one.weights)))
        if len(answers) == 1:
            return own, {}
        first, second = map(summary, answers)
        return own, _numbers(
            {name: second[name] - first[name] for name in SUMMARY}, None if drawn is None else drawn[1] - drawn[0]
        )

    reports: list[dict[str, Any]] = [
        {**identity(one), "path": os.fspath(one.path), "all": {}, "questions": {}} for one in models
    ]
    differences: dict[str, Any] = {"all": {}, "questions": {}}
    groups = np.concatenate([scored[0][number].rows for number in asked])
    own, difference = measured([joined([one[number] for number in asked]) for one in results], groups)
    for report, numbers in zip(reports, own, strict=True):
        report["all"] = numbers
    differences["all"] = difference
    for number in asked:
        own, difference = measured([one[number] for one in results], scored[0][number].rows)
        for i, numbers in enumerate(own):
            details = _details(read.questions[number], scored[i][number], results[i][number], wanted_accuracy)
            reports[i]["questions"][names[number]] = numbers | details
        differences["questions"][names[number]] = difference
    if by is not None:
        for i, report in enumerate(reports):
            report["slices"] = _slices(
                [scored[i][number].slices for number in asked], [results[i][number] for number in asked],
                [scored[i][number].rows for number in asked], samples, seed,
            )  # fmt: skip
    result: dict[str, Any] = {
        "rows": read.source, "n_rows": read.n_rows, "n_states": len(read.states), "n_answers": len(read.answers),
        "by": by, "wanted_accuracy": wanted_accuracy, "samples": samples, "seed": seed, "models": reports,
    }  # fmt: skip
    if other is not None:
        result["difference"] = differences
    return Evaluation(result)


def _judged(read: LabelledRows, scored: Sequence[Scored]) -> list[Judged]:
    return [
        judged(question.type, one.p, one.targets, one.weights)
        for question, one in zip(read.questions, scored, strict=True)
    ]


def _names(questions: Sequence[Question]) -> list[str]:
    """Every question's id; a number is added where several questions have the same."""
    names: list[str] = []
    for number, question in enumerate(questions):
        name = str(question.id)
        names.append(f"{name} ({number})" if name in names else name)
    return names


def _numbers(values: Mapping[str, float], samples: _Samples | None) -> dict[str, Any]:
    """By name ``{"value", "low", "high"}``; without samples, bounds are None."""
    found: dict[str, Any] = {}
    for i, name in enumerate(SUMMARY):
        low, high = (None, None) if samples is None else interval(samples[:, i])
        found[name] = {"value": values[name], "low": low, "high": high}
    return found


def _details(question: Question, scored: Scored, answers: Judged, wanted: float) -> dict[str, Any]:
    """What a report says of one question beside its numbers."""
    p = scored.p
    curve = coverage_curve(answers)
    threshold = threshold_for(curve, wanted)
    chosen = np.unique(np.linspace(0, len(curve) - 1, min(_CURVE_POINTS, len(curve))).round().astype(int))
    n_options = len(question.options)
    confusion = np.zeros((n_options, n_options))
    np.add.at(confusion, (scored.targets.argmax(-1), p.argmax(-1)), scored.weights)
    details: dict[str, Any] = {
        "type": question.type,
        "options": [option.name for option in question.options],
        "temperature": scored.temperature,
        "n_truncated_states": scored.n_cut,
        "reliability": [row.__dict__ for row in reliability(answers.said, answers.found, answers.weights)],
        "confusion": confusion.tolist(),
        "coverage": [curve[i]._asdict() for i in chosen],
        "threshold": None if threshold is None else threshold._asdict(),
    }
    if question.type == "noul":
        details["auc"] = area_under_curve(p[:, 1], scored.targets[:, 1], scored.weights)
    if question.type == "score":
        levels = np.arange(n_options)
        errors = np.abs(p @ levels - scored.targets @ levels)
        details["mean_error"] = float(np.average(errors, weights=scored.weights))
    return details


def _slices(
    slices: Sequence[Sequence[str]], results: Sequence[Judged], rows: Sequence[np.ndarray], samples: int, seed: int
) -> dict[str, Any]:
    """The numbers of all answers by the slice of their row, largest first."""
    names = np.array([name for some in slices for name in some], object)
    answers, groups = joined(results), np.concatenate(rows)
    found = {}
    for name in dict.fromkeys(names.tolist()):
        there = names == name
        own = Judged(*(column[there] for column in answers))
        drawn = bootstrap([own], groups[there], samples, seed)[0] if samples else None
        found[name] = {**_numbers(summary(own), drawn), "n": int(there.sum())}
    return dict(sorted(found.items(), key=lambda item: -item[1]["n"]))


# ------------------------------------------------------------------------------------------------ text


def _lines(report: Mapping[str, Any]) -> list[str]:
    lines = [
        f"{printable(report['rows'])}: {report['n_rows']:,} rows, {report['n_states']:,} states, "
        f"{report['n_answers']:,} answers; 95 % intervals"
    ]
    for model in report["models"]:
        lines += ["", printable(said_as(model)), *_table({"all": model["all"], **model["questions"]})]
        for name, numbers in model["questions"].items():
            found = numbers["threshold"]
            wanted = f"accuracy {report['wanted_accuracy']:g}"
            said = (
                f"no threshold reaches {wanted}"
                if found is None
                else f"min_confidence {found['min_confidence']!r} answers {100 * found['coverage']:.1f} % "
                f"({found['n']:,}) with accuracy {found['accuracy']:.4f}, for {wanted}"
            )
            lines.append(f"  {printable(name)}: {said}")
            if numbers["n_truncated_states"]:
                lines.append(f"  {printable(name)}: {numbers['n_truncated_states']:,} states were not read whole")
        if "slices" in model:
            lines += ["", f"  by {printable(report['by'])}", *_table(model["slices"])]
    if "difference" in report:
        first, second = map(printable, told_apart(report["models"]))
        found = report["difference"]
        lines += ["", f"{second} less {first}, on the same draws", *_table({"all": found["all"], **found["questions"]})]
    return lines


def _table(rows: Mapping[str, Mapping[str, Any]]) -> list[str]:
    names = {printable(name): numbers for name, numbers in rows.items()}
    width = max(8, *map(len, names))
    titles = {"accuracy": "accuracy", "log_loss": "log loss", "brier": "Brier", "ece": "ECE"}
    lines = [f"  {'':<{width}}  {'n':>8}  " + "  ".join(f"{titles[name]:<24}" for name in SUMMARY).rstrip()]
    for name, numbers in names.items():
        cells = "  ".join(f"{_shown(numbers[metric]):<24}" for metric in SUMMARY).rstrip()
        n = f"{numbers['n']:,}" if "n" in numbers else ""
        lines.append(f"  {name:<{width}}  {n:>8}  {cells}")
    return lines


def _shown(number: Mapping[str, float | None]) -> str:
    bounds = "" if number["low"] is None else f" ({number['low']:.4f}, {number['high']:.4f})"
    return f"{number['value']:.4f}{bounds}"
