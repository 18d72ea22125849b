"""An evaluation as one HTML page that needs nothing else: tables, reliability diagrams and confusion, drawn as SVG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from ..metrics import SUMMARY
from .said import said_as, told_apart

_SIDE = 220  # of a diagram, in pixels
# Labels of a confusion table that are shown; the JSON has all.
_MOST_LABELS = 40
_TITLES = {"accuracy": "accuracy", "log_loss": "log loss", "brier": "Brier score", "ece": "ECE"}

_STYLE = """
:root { color-scheme: light dark; --ink: #1a1a1a; --soft: #777; --line: #bbb; --bar: #dde3ea; --mark: #1565c0;
  --paper: #fff; }
@media (prefers-color-scheme: dark) { :root { --ink: #eee; --soft: #aaa; --line: #555; --bar: #333a44;
  --mark: #64b5f6; --paper: #16181c; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 2rem auto;
  max-width: 68rem; padding: 0 1rem; }
table { border-collapse: collapse; margin: .5rem 0; font-variant-numeric: tabular-nums; }
th, td { padding: .2rem .7rem; text-align: right; border-bottom: 1px solid var(--line); }
th:first-child { text-align: left; }
td small { color: var(--soft); }
.row { display: flex; flex-wrap: wrap; gap: 2rem; align-items: flex-start; }
.wide { overflow-x: auto; }
figure { margin: 0; } figcaption { color: var(--soft); }
text { font-size: 11px; fill: var(--soft); }
"""


def page(report: Mapping[str, Any]) -> str:
    """The page of `Evaluation.report`. All text of the rows and models is escaped."""
    parts = [
        f"<h1>{escape(report['rows'])}</h1>",
        f"<p>{report['n_rows']:,} rows, {report['n_states']:,} states, {report['n_answers']:,} answers. Intervals hold "
        "95 % of bootstrap samples of the rows.</p>",
    ]
    for model in report["models"]:
        parts += [f"<h2>{escape(said_as(model))}</h2>", _table({"all": model["all"], **model["questions"]})]
        if "slices" in model:
            parts += [f"<h3>by {escape(report['by'])}</h3>", _table(model["slices"])]
        for name, numbers in model["questions"].items():
            parts.append(_question(name, numbers, report["wanted_accuracy"]))
    if "difference" in report:
        first, second = map(escape, told_apart(report["models"]))
        found = report["difference"]
        parts += [
            f"<h2>{second} less {first}</h2><p>Both on the same draws.</p>",
            _table({"all": found["all"], **found["questions"]}),
        ]
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>skyinfer evaluate</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{_STYLE}</style></head>\n<body>\n" + "\n".join(parts) + "\n</body></html>\n"
    )


def _table(rows: Mapping[str, Mapping[str, Any]]) -> str:
    lines = ["<div class=wide><table><tr><th></th><th>n</th>"]
    lines += [f"<th>{_TITLES[name]}</th>" for name in SUMMARY]
    lines.append("</tr>")
    for name, numbers in rows.items():
        n = f"{numbers['n']:,}" if "n" in numbers else ""
        lines.append(f"<tr><th>{escape(name)}</th><td>{n}</td>")
        for metric in SUMMARY:
            number = numbers[metric]
            bounds = "" if number["low"] is None else f" <small>{number['low']:.4f} to {number['high']:.4f}</small>"
            lines.append(f"<td>{number['value']:.4f}{bounds}</td>")
        lines.append("</tr>")
    return "".join([*lines, "</table></div>"])


def _question(name: str, numbers: Mapping[str, Any], wanted: float) -> str:
    found = numbers["threshold"]
    threshold = (
        f"No threshold on the probability reaches accuracy {wanted:g}."
        if found is None
        else f"<code>min_confidence={found['min_confidence']!r}</code> answers {100 * found['coverage']:.1f} % with "
        f"accuracy {found['accuracy']:.4f}, for {wanted:g}."
    )
    said = "probability of true" if numbers["type"] == "noul" else "probability of the answer"
    more = "".join(
        f" {title} {numbers[key]:.4f}."
        for key, title in (("auc", "AUC"), ("mean_error", "Mean error of the score"))
        if numbers.get(key) is not None
    )
    return (
        f"<h3>{escape(name)} <small>({numbers['type']})</small></h3><p>{threshold}{more}</p><div class=row>"
        f"<figure>{_reliability(numbers['reliability'])}<figcaption>said: {said}; found: how often it was so"
        "</figcaption></figure>"
        f"<figure>{_coverage(numbers['coverage'])}<figcaption>accuracy of the most certain share</figcaption></figure>"
        f"{_confusion(numbers)}</div>"
    )


def _frame(inner: str, across: str, up: str) -> str:
    ticks = "".join(
        f'<text x="{_x(t):.1f}" y="{_SIDE + 44}" text-anchor="middle">{t:g}</text>'
        f'<text x="32" y="{_y(t) + 4:.1f}" text-anchor="end">{t:g}</text>'
        for t in (0, 0.25, 0.5, 0.75, 1)
    )
    return (
        f'<svg width="{_SIDE + 60}" height="{_SIDE + 66}" role="img" aria-label="{up} against {across}">'
        f'<rect x="{_x(0)}" y="{_y(1)}" width="{_SIDE}" height="{_SIDE}" fill="none" stroke="var(--line)"/>'
        f'{inner}{ticks}<text x="{_x(0.5)}" y="{_SIDE + 62}" text-anchor="middle">{across}</text>'
        f'<text x="{_x(0)}" y="20">{up}</text></svg>'
    )


def _x(value: float) -> float:
    return 40 + _SIDE * value


def _y(value: float) -> float:
    return 28 + _SIDE * (1 - value)


def _line(points: Sequence[tuple[float, float]]) -> str:
    path = " ".join(f"{_x(x):.1f},{_y(y):.1f}" for x, y in points)
    return f'<polyline points="{path}" fill="none" stroke="var(--mark)" stroke-width="2"/>'


def _reliability(rows: Sequence[Mapping[str, float]]) -> str:
    largest = max(row["n"] for row in rows)
    bars = "".join(
        f'<rect x="{_x(row["low"]):.1f}" y="{_y(row["n"] / largest):.1f}" '
        f'width="{_SIDE * (row["high"] - row["low"]):.1f}" height="{_SIDE * row["n"] / largest:.1f}" '
        'fill="var(--bar)"/>'
        for row in rows
    )
    marks = "".join(
        f'<circle cx="{_x(row["said"]):.1f}" cy="{_y(row["found"]):.1f}" r="4" fill="var(--mark)"><title>'
        f"{row['low']:.3f} to {row['high']:.3f}: n {row['n']:g}, said {row['said']:.4f}, found {row['found']:.4f}"
        "</title></circle>"
        for row in rows
    )
    even = f'<line x1="{_x(0)}" y1="{_y(0)}" x2="{_x(1)}" y2="{_y(1)}" stroke="var(--soft)" stroke-dasharray="4"/>'
    return _frame(bars + even + _line([(row["said"], row["found"]) for row in rows]) + marks, "said", "found")


def _coverage(curve: Sequence[Mapping[str, float]]) -> str:
    return _frame(_line([(one["coverage"], one["accuracy"]) for one in curve]), "coverage", "accuracy")


def _confusion(numbers: Mapping[str, Any]) -> str:
    options, counts = numbers["options"][:_MOST_LABELS], numbers["confusion"]
    lines = ["<figure class=wide><table><tr><th></th>", *(f"<th>{escape(name)}</th>" for name in options), "</tr>"]
    for name, row in zip(options, counts, strict=False):
        total = sum(row) or 1.0
        lines.append(f"<tr><th>{escape(name)}</th>")
        for count in row[:_MOST_LABELS]:
            share = 100 * count / total
            shade = f"background: color-mix(in srgb, var(--mark) {share * 0.6:.0f}%, transparent)"
            lines.append(f'<td style="{shade}">{count:g}</td>')
        lines.append("</tr>")
    rest = len(numbers["options"]) - len(options)
    more = f"; {rest} more are in the JSON" if rest else ""
    return "".join([*lines, f"</table><figcaption>rows: what was right; columns: answered{more}</figcaption></figure>"])
