"""Temperatures fitted anew on labelled rows, judged on rows that were held out, written into a copy of the model."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import SkyinferError, warn
from ..files.recalibration import ModelCopy
from ..files.temperatures import BUCKETS, at_limit, bucket
from ..metrics import SUMMARY, Judged, bootstrap, fit_joint_temperature, interval, joined, judged, log_softmax, summary
from ..model import Model
from ..schema import QUESTION_TYPES
from ..terminal import printable
from .labelled import LabelledRows, read_labelled
from .said import identity, said_as
from .scoring import Scored, scores_of

# A temperature is fitted to no fewer answers, and judged on no fewer.
LEAST_ANSWERS = 30
_SAMPLES = 1000
_GRAIN = 1024  # a temperature is a whole number of these parts, which float32 holds exactly


@dataclass(frozen=True)
class Calibration:
    """What a calibration came to.

    Attributes:
        report: what `skyinfer calibrate --json` prints; docs/evaluation.md has its fields.
    """

    report: dict[str, Any]

    def as_text(self) -> str:
        """The tables that the command prints."""
        return "\n".join(_lines(self.report))

    def __str__(self) -> str:
        return self.as_text()


def calibrate(
    rows: str | os.PathLike[str] | LabelledRows,
    model: Model,
    out: str | os.PathLike[str],
    *,
    held_out: float = 0.3,
    seed: int = 0,
    force: bool = False,
    progress: Callable[[str, int, int], None] | None = None,
) -> Calibration:
    """Fit a model's temperatures to labelled rows and write a copy of the model that has them.

    A temperature belongs to a question type, or to a type and a bucket of option numbers (2, 3-5, 6-10, 11 and more);
    those with fewer than 30 answers to learn from keep the value that the model has. The numbers before and after are
    of rows that were held out, of whose states none was learned from.

    Args:
        rows: a file of JSON Lines, or what `labelled.read_labelled` gave.
        model: as `skyinfer.load` gives it.
        out: a GGUF file where the model is one, else a directory that does not exist.
        held_out: share of the states, in (0, 1).
        seed: of the draw of held-out states, and of the bootstrap.
        force: replace a GGUF file.
        progress: as for `evaluate`.

    Raises:
        RowsError: rows are faulty.
        SkyinferError: too few answers to learn from or to hold out.
        ValueError: `held_out` is not in (0, 1).
        OSError: `rows` cannot be read, or `out` exists already or cannot be written.
    """
    if not 0 < held_out < 1:
        raise ValueError(f"held_out: expected a number between 0 and 1, got {held_out!r}")
    copy = ModelCopy(model.path, out, replace=force)
    read = rows if isinstance(rows, LabelledRows) else read_labelled(rows)
    scored = scores_of(model, read, progress)
    is_out = _drawn(len(read.states), held_out, seed)
    learned = [_part(one, ~is_out[one.states]) for one in scored]
    judged_on = [_part(one, is_out[one.states]) for one in scored]
    n_learned, n_out = (sum(len(one.weights) for one in some) for some in (learned, judged_on))
    if n_out < LEAST_ANSWERS:
        raise SkyinferError(
            f"{read.source}: {n_out} answers are held out of {n_out + n_learned}, fewer than {LEAST_ANSWERS}; nothing "
            "was written"
        )
    kinds = [(question.type, bucket(len(question.options))) for question in read.questions]
    fitted, kept = _fitted(kinds, learned)
    if not fitted:
        raise SkyinferError(
            f"{read.source}: no question type has {LEAST_ANSWERS} answers to learn from, of {n_learned} in all; "
            "nothing was written"
        )
    after = [_after(kind, fitted, one.temperature, model) for kind, one in zip(kinds, scored, strict=True)]
    numbers = _numbers(read, judged_on, after, seed)
    copy.write(fitted)
    if numbers["all"]["difference"]["log_loss"]["value"] > 0:
        warn("the log loss on held-out rows is no better than before; more rows may help")
    names = {f"{kind}.{name}": f"{kind}:{shown}" for kind in QUESTION_TYPES for name, shown in BUCKETS.items()}
    temperatures = {names.get(name, name): value for name, value in fitted.items()}
    for caution in at_limit(temperatures):
        warn(caution)
    return Calibration(
        {
            "rows": read.source, **identity(model), "path": os.fspath(out), "n_answers": n_learned + n_out,
            "n_learned": n_learned, "n_held_out": n_out, "seed": seed,
            "temperatures": temperatures,
            "kept": {names.get(name, name): n for name, n in kept.items()},
            "held_out": numbers,
        }
    )  # fmt: skip


def _drawn(n_states: int, share: float, seed: int) -> np.ndarray:
    """bool [n_states]: which are held out."""
    out = np.zeros(n_states, bool)
    out[np.random.Generator(np.random.PCG64(seed)).permutation(n_states)[: round(n_states * share)]] = True
    return out


def _part(scored: Scored, there: np.ndarray) -> Scored:
    return scored._replace(
        logits=scored.logits[there], p=scored.p[there], targets=scored.targets[there], weights=scored.weights[there],
        rows=scored.rows[there], states=scored.states[there], slices=[],
    )  # fmt: skip


def _fitted(kinds: Sequence[tuple[str, str]], learned: Sequence[Scored]) -> tuple[dict[str, float], dict[str, int]]:
    """Temperatures by name ("choice", "choice.3_5"), and for those with too few answers how many those are."""
    groups: dict[str, list[Scored]] = {}
    for (kind, name), one in zip(kinds, learned, strict=True):
        groups.setdefault(kind, []).append(one)
        groups.setdefault(f"{kind}.{name}", []).append(one)
    fitted, kept = {}, {}
    for name, some in groups.items():
        n = sum(len(one.weights) for one in some)
        if n < LEAST_ANSWERS:
            kept[name] = n
            continue
        value = fit_joint_temperature([(one.logits, one.targets, one.weights) for one in some if len(one.weights)])
        fitted[name] = round(value * _GRAIN) / _GRAIN
    return fitted, kept


def _after(kind: tuple[str, str], fitted: Mapping[str, float], before: float, model: Model) -> float:
    """The temperature of a question in the copy."""
    own = ".".join(kind)
    if own in fitted:
        return fitted[own]
    # the file's own of that bucket goes before the type's
    return before if own in model.config.temperatures else fitted.get(kind[0], before)


def _numbers(read: LabelledRows, scored: Sequence[Scored], after: Sequence[float], seed: int) -> dict[str, Any]:
    """Before, after and their difference on the same draws, of all held-out answers and by type."""
    found: dict[str, Any] = {}
    pairs = []
    for question, one, temperature in zip(read.questions, scored, after, strict=True):
        new = np.exp(log_softmax(one.logits / temperature)) if len(one.weights) else one.p
        pairs.append([judged(question.type, p, one.targets, one.weights) for p in (one.p, new)])
    for name in ("all", *QUESTION_TYPES):
        mine = [
            i for i, question in enumerate(read.questions) if name in ("all", question.type) and len(scored[i].weights)
        ]
        if not mine:
            continue
        both: list[Judged] = [joined([pairs[i][which] for i in mine]) for which in (0, 1)]
        drawn = bootstrap(both, np.concatenate([scored[i].rows for i in mine]), _SAMPLES, seed)
        before, now = map(summary, both)
        difference = {}
        for i, metric in enumerate(SUMMARY):
            low, high = interval(drawn[1, :, i] - drawn[0, :, i])
            difference[metric] = {"value": now[metric] - before[metric], "low": low, "high": high}
        found[name] = {"n": len(both[0].weights), "before": before, "after": now, "difference": difference}
    return found


def _lines(report: Mapping[str, Any]) -> list[str]:
    lines = [
        f"{printable(report['path'])}: {printable(said_as(report))}, temperatures from {report['n_learned']:,} answers",
        "  " + ", ".join(f"{name} {value:.4f}" for name, value in report["temperatures"].items()),
    ]
    if report["kept"]:
        few = ", ".join(f"{name} ({n})" for name, n in report["kept"].items())
        lines.append(f"  left as they were, having fewer than {LEAST_ANSWERS} answers: {few}")
    lines += ["", f"  {'held out':<8}  {'n':>7}            {'before':>8}  {'after':>8}  difference, 95 % interval"]
    titles = {"accuracy": "accuracy", "log_loss": "log loss", "brier": "Brier", "ece": "ECE"}
    for name, numbers in report["held_out"].items():
        for i, metric in enumerate(SUMMARY):
            change = numbers["difference"][metric]
            head = f"  {name:<8}  {numbers['n']:>7,}" if i == 0 else " " * 19
            lines.append(
                f"{head}  {titles[metric]:<8}  {numbers['before'][metric]:8.4f}  {numbers['after'][metric]:8.4f}  "
                f"{change['value']:+.4f} ({change['low']:+.4f}, {change['high']:+.4f})"
            )
    return lines
