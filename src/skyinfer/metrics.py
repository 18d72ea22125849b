"""How good probabilities are, and the temperature that makes them best: plain float64 mathematics on numpy arrays.

Logits of one bucket come as [n, n_options], targets as distributions of the same shape, weights as [n].
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from .files.temperatures import CLAMP

N_BINS = 15


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Over the last axis; -inf stays what it is."""
    z: np.ndarray = np.asarray(logits, np.float64)
    z = z - z.max(-1, keepdims=True)
    z -= np.log(np.exp(z).sum(-1, keepdims=True))
    return z


def log_loss(
    logits: np.ndarray, targets: np.ndarray, weights: np.ndarray, temperature: float | np.ndarray = 1.0
) -> float:
    """Mean cross entropy in nats against the targets. `temperature`: one, or one for each answer as [n, 1]."""
    p = log_softmax(np.asarray(logits, np.float64) / temperature)
    # 0 log 0 = 0, and an option that a row does not have is -inf
    terms = np.where(targets > 0, targets * np.where(targets > 0, p, 0.0), 0.0)
    return float(-(weights * terms.sum(-1)).sum() / weights.sum())


def fit_temperature(
    logits: np.ndarray, targets: np.ndarray, weights: np.ndarray, bounds: tuple[float, float] = CLAMP
) -> float:
    """The temperature within `bounds` at which the mean cross entropy is least.

    The loss is convex in 1 / T, so a golden-section search over it finds the one minimum.
    """
    low, high = 1.0 / bounds[1], 1.0 / bounds[0]
    golden = (math.sqrt(5.0) - 1.0) / 2.0

    def loss(inverse: float) -> float:
        return log_loss(logits, targets, weights, 1.0 / inverse)

    a, b = low, high
    c, d = b - golden * (b - a), a + golden * (b - a)
    at_c, at_d = loss(c), loss(d)
    while b - a > 1e-5:
        if at_c <= at_d:
            b, d, at_d = d, c, at_c
            c = b - golden * (b - a)
            at_c = loss(c)
        else:
            a, c, at_c = c, d, at_d
            d = a + golden * (b - a)
            at_d = loss(d)
    best = min((low, high, (a + b) / 2.0), key=loss)
    return min(bounds[1], max(bounds[0], 1.0 / best))


@dataclass(frozen=True)
class Bin:
    """One row of a reliability table: what was said, and what was the case.

    Attributes:
        low, high: the bin's bounds.
        n: answers in it (the sum of their weights).
        said: their mean probability.
        found: how often they were right.
    """

    low: float
    high: float
    n: float
    said: float
    found: float


def reliability(said: np.ndarray, found: np.ndarray, weights: np.ndarray, n_bins: int = N_BINS) -> list[Bin]:
    """A table of bins of equal width; empty ones are left out.

    Args:
        said: [n] probabilities; found: [n] what was the case, 0 or 1 or a probability; weights: [n].
    """
    index = np.minimum((np.asarray(said) * n_bins).astype(int), n_bins - 1)
    table = []
    for i in range(n_bins):
        there = index == i
        total = float(weights[there].sum())
        if total > 0:
            table.append(
                Bin(
                    i / n_bins,
                    (i + 1) / n_bins,
                    total,
                    float((weights * said)[there].sum()) / total,
                    float((weights * found)[there].sum()) / total,
                )
            )
    return table


def expected_calibration_error(table: list[Bin]) -> float:
    """Mean distance between what was said and what was the case."""
    total = sum(row.n for row in table)
    return sum(row.n * abs(row.said - row.found) for row in table) / total if total else math.nan


def area_under_curve(said: np.ndarray, true: np.ndarray, weights: np.ndarray) -> float | None:
    """The probability that a true case was given a higher probability than a false one; ties count half.

    `true` may hold probabilities: a case is then partly of both. None where all are of one kind.
    """
    order = np.argsort(said, kind="stable")
    p, true_weight = said[order], (weights * true)[order]
    false_weight = (weights * (1.0 - true))[order]
    n_true, n_false = float(true_weight.sum()), float(false_weight.sum())
    if n_true <= 0 or n_false <= 0:
        return None
    starts = np.flatnonzero(np.r_[True, p[1:] != p[:-1]])
    group_true, group_false = np.add.reduceat(true_weight, starts), np.add.reduceat(false_weight, starts)
    below = np.cumsum(group_false) - group_false
    return float((group_true * (below + 0.5 * group_false)).sum() / (n_true * n_false))


def effective_number(weights: np.ndarray) -> float:
    """How many answers of equal weight [n] weighted ones are worth (Kish 1965)."""
    if not len(weights):
        return 0.0
    shares = weights / weights.max()  # squares of numbers of any size would be 0 or infinite
    return float(shares.sum() ** 2 / (shares**2).sum())


def wilson_interval(share: float, n: float) -> tuple[float, float]:
    """Where a share that was found in `n` cases lies with 95 % confidence (Wilson 1927)."""
    if n <= 0:
        return 0.0, 1.0
    z = 1.959963984540054
    middle = share + z * z / (2 * n)
    width = z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    scale = 1 + z * z / n
    return max(0.0, (middle - width) / scale), min(1.0, (middle + width) / scale)


def is_accurate(logits: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """bool [n]: whether the target gives no option more than the most probable one."""
    answered = np.asarray(logits).argmax(-1)
    found: np.ndarray = targets[np.arange(len(targets)), answered] >= targets.max(-1)
    return found


def measure(
    kind: str, logits: np.ndarray, targets: np.ndarray, weights: np.ndarray, temperature: float | np.ndarray
) -> dict[str, Any]:
    """What a report says of one question: accuracy, log loss, ECE, its table, and what belongs to the type alone.

    `temperature`: one, or one for each answer as [n, 1].

    An answer is accurate where the target gives no other option more. Reliability is that of the probability of true
    for a noul, else of the option that was answered.
    """
    p = np.exp(log_softmax(logits / temperature))
    answered = p.argmax(-1)
    rows = np.arange(len(p))
    total = weights.sum()
    accuracy = float((weights * is_accurate(logits, targets)).sum() / total)
    low, high = wilson_interval(accuracy, effective_number(weights))
    said, found = (p[:, 1], targets[:, 1]) if kind == "noul" else (p[rows, answered], targets[rows, answered])
    table = reliability(said, found, weights)
    mean = (weights[:, None] * targets).sum(0) / total
    result: dict[str, Any] = {
        "accuracy": accuracy,
        "accuracy_low": low,
        "accuracy_high": high,
        "base_accuracy": float((weights * (targets[:, mean.argmax()] >= targets.max(-1))).sum() / total),
        "confidence": float((weights * p[rows, answered]).sum() / total),
        "log_loss": log_loss(logits, targets, weights, temperature),
        "base_log_loss": float(-(mean[mean > 0] * np.log(mean[mean > 0])).sum()),
        "ece": expected_calibration_error(table),
        "reliability": table,
        "auc": None,
        "mean_error": None,
    }
    if kind == "noul":
        result["auc"] = area_under_curve(p[:, 1], targets[:, 1], weights)
    if kind == "score":
        levels = np.arange(p.shape[1])
        result["mean_error"] = float((weights * np.abs(p @ levels - targets @ levels)).sum() / total)
    return result


# --------------------------------------------------------------------------------- of each answer, and of all


class Judged(NamedTuple):
    """What n answers came to, each for itself: float64 [n] all.

    accurate: 1 where the target gives no option more than the answered one, else 0.
    loss: cross entropy in nats. brier: see `judged`. confidence: the probability of the answered option.
    said, found: what calibration compares: the probability of true of a noul, else of the answered option; and whether
    it was so. weights: what each answer counts.
    """

    accurate: np.ndarray
    loss: np.ndarray
    brier: np.ndarray
    confidence: np.ndarray
    said: np.ndarray
    found: np.ndarray
    weights: np.ndarray


def judged(kind: str, p: np.ndarray, targets: np.ndarray, weights: np.ndarray) -> Judged:
    """Every answer of one question beside what was right.

    The Brier score is the squared distance from the target, of two options half of it: what scikit-learn's
    `brier_score_loss` says.

    Args:
        p: [n, n_options] probabilities; targets: of the same shape; weights: [n].
    """
    p, targets = np.asarray(p, np.float64), np.asarray(targets, np.float64)
    rows, answered = np.arange(len(p)), p.argmax(-1)
    # a probability of 0 for what was right would be an infinite loss: as little as a float can hold
    logs = np.log(np.maximum(p, np.finfo(np.float64).tiny))
    confidence, hit = p[rows, answered], targets[rows, answered]
    said, found = confidence, hit
    if kind == "noul":
        # as an answer gives it, from which a threshold is met to the last bit
        said, found, confidence = p[:, 1], targets[:, 1], np.maximum(p[:, 1], 1.0 - p[:, 1])
    return Judged(
        (hit >= targets.max(-1)).astype(np.float64),
        -(targets * logs).sum(-1),
        np.square(p - targets).sum(-1) * (0.5 if p.shape[-1] == 2 else 1.0),
        confidence,
        said,
        found,
        np.asarray(weights, np.float64),
    )


def joined(parts: Sequence[Judged]) -> Judged:
    """The answers to several questions together."""
    return Judged(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


# that `summary` and `bootstrap` give
SUMMARY = ("accuracy", "log_loss", "brier", "ece")


def summary(answers: Judged) -> dict[str, float]:
    """Accuracy, mean log loss, mean Brier score and expected calibration error of answers."""
    found = _summaries(answers, answers.weights[None, :])[0]
    return dict(zip(SUMMARY, found.tolist(), strict=True))


def bootstrap(answers: Sequence[Judged], groups: np.ndarray, n_samples: int, seed: int) -> np.ndarray:
    """float64 [n_models, n_samples, 4]: the numbers of `summary` on rows drawn with replacement.

    Every model is measured on the same draws, so that the difference of two can be told more exactly than each.

    Args:
        answers: of each model, to the same questions.
        groups: int64 [n], the row that an answer belongs to: rows are drawn, with all of their answers.
    """
    draw = np.random.Generator(np.random.PCG64(seed))
    _, group = np.unique(groups, return_inverse=True)
    n_groups, n = int(group.max()) + 1, len(group)
    out = np.zeros((len(answers), n_samples, len(SUMMARY)))
    at_once = max(1, (1 << 22) // n)
    for begin in range(0, n_samples, at_once):
        size = min(at_once, n_samples - begin)
        counts = np.stack(
            [np.bincount(draw.integers(0, n_groups, n_groups), minlength=n_groups) for _ in range(size)]
        )[:, group].astype(np.float64)  # fmt: skip
        for number, one in enumerate(answers):
            out[number, begin : begin + size] = _summaries(one, counts * one.weights)
    return out


def _summaries(answers: Judged, weights: np.ndarray) -> np.ndarray:
    """float64 [n_samples, 4] of weights [n_samples, n]."""
    total = weights.sum(-1, keepdims=True)
    columns = np.stack([answers.accurate, answers.loss, answers.brier], -1)
    index = np.minimum((answers.said * N_BINS).astype(int), N_BINS - 1)
    errors = np.zeros((len(index), N_BINS))
    errors[np.arange(len(index)), index] = answers.said - answers.found
    calibration = np.abs(weights @ errors).sum(-1, keepdims=True)
    found: np.ndarray = np.concatenate([weights @ columns, calibration], -1) / total
    return found


def interval(samples: np.ndarray) -> tuple[float, float]:
    """The middle 95 % of bootstrap samples [n]."""
    low, high = np.quantile(samples, [0.025, 0.975])
    return float(low), float(high)


class Covered(NamedTuple):
    """Answers of at least a probability: the share that is answered, by weight, how many, and their accuracy."""

    min_confidence: float
    coverage: float
    n: int
    accuracy: float


def coverage_curve(answers: Judged) -> list[Covered]:
    """What every threshold that makes a difference would answer, from the highest to the lowest one."""
    order = np.argsort(-answers.confidence, kind="stable")
    confidence, weights = answers.confidence[order], answers.weights[order]
    # answers of the same probability are answered together
    last = np.flatnonzero(np.r_[confidence[1:] != confidence[:-1], True])
    answered, right = np.cumsum(weights)[last], np.cumsum(weights * answers.accurate[order])[last]
    return [
        Covered(float(confidence[i]), float(share / answered[-1]), int(i) + 1, float(hits / share))
        for i, share, hits in zip(last, answered, right, strict=True)
    ]


def threshold_for(curve: Sequence[Covered], accuracy: float) -> Covered | None:
    """The threshold that answers most with at least this accuracy; None where none does."""
    return next((one for one in reversed(curve) if one.accuracy >= accuracy), None)


def fit_joint_temperature(parts: Sequence[tuple[np.ndarray, np.ndarray, np.ndarray]]) -> float:
    """`fit_temperature` for several questions, which may differ in their number of options.

    `parts`: of each question logits [n, n_options], targets of the same shape and weights [n].
    """
    widest = max(logits.shape[1] for logits, _, _ in parts)

    def padded(values: np.ndarray, fill: float) -> np.ndarray:
        return np.pad(values, ((0, 0), (0, widest - values.shape[1])), constant_values=fill)

    return fit_temperature(
        np.concatenate([padded(logits, -np.inf) for logits, _, _ in parts]),
        np.concatenate([padded(targets, 0.0) for _, targets, _ in parts]),
        np.concatenate([weights for _, _, weights in parts]),
    )
