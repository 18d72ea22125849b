"""How good probabilities are, and the temperature that makes them best: plain float64 mathematics on numpy arrays.

Logits of one bucket come as [n, n_options], targets as distributions of the same shape, weights as [n].
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from .files.temperatures import CLAMP

N_BINS = 15


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Over the last axis; -inf stays what it is."""
    z: np.ndarray = np.asarray(logits, np.float64)
    z = z - z.max(-1, keepdims=True)
    z -= np.log(np.exp(z).sum(-1, keepdims=True))
    return z


def log_loss(logits: np.ndarray, targets: np.ndarray, weights: np.ndarray, temperature: float = 1.0) -> float:
    """Mean cross entropy in nats against the targets."""
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


def measure(
    kind: str, logits: np.ndarray, targets: np.ndarray, weights: np.ndarray, temperature: float
) -> dict[str, Any]:
    """What a report says of one question: accuracy, log loss, ECE, its table, and what belongs to the type alone.

    An answer is accurate where the target gives no other option more. Reliability is that of the probability of true
    for a noul, else of the option that was answered.
    """
    p = np.exp(log_softmax(logits / temperature))
    answered = p.argmax(-1)
    rows = np.arange(len(p))
    accurate = targets[rows, answered] >= targets.max(-1)
    total = weights.sum()
    said, found = (p[:, 1], targets[:, 1]) if kind == "noul" else (p[rows, answered], targets[rows, answered])
    table = reliability(said, found, weights)
    mean = (weights[:, None] * targets).sum(0) / total
    result: dict[str, Any] = {
        "accuracy": float((weights * accurate).sum() / total),
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
