"""Evaluation against scikit-learn's numbers, its intervals against drawing by hand, and the command."""

from __future__ import annotations

import csv
import json
import math
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import Run
from sklearn import calibration
from sklearn import metrics as oracle

import skyinfer
from skyinfer import evaluation, metrics
from skyinfer.errors import SkyinferError
from skyinfer.evaluation import evaluate
from skyinfer.evaluation.labelled import read_labelled
from skyinfer.train.rows import RowsError

EXAMPLES = Path(__file__).parents[1] / "examples"
PAINTED = EXAMPLES / "painted"
MODEL, OTHER = skyinfer.load(PAINTED), skyinfer.load("s1-pico")
PICO_FILE = OTHER.path
QUESTIONS: dict[str, Any] = {
    "action": {"type": "choice", "instructions": "Which?", "criteria": {"thrust": "fire", "glide": None, "wait": None}},
    "pair": {"type": "choice", "instructions": "Left or right?", "criteria": ["left", "right"]},
    "danger": {"type": "noul", "instructions": "Will it crash?"},
    "margin": {"type": "score", "instructions": "How much room?", "criteria": ["none", "tight", "a lot", "all"]},
}  # fmt: skip
N = 90


def _rows() -> list[dict[str, Any]]:
    draw = np.random.default_rng(4)
    rows = []
    for i in range(N):
        answers: dict[str, Any] = {
            "action": str(draw.choice(["thrust", "glide", "wait"], p=[0.5, 0.3, 0.2])),
            "pair": str(draw.choice(["left", "right"])),
            "danger": bool(draw.random() < 0.4),
            "margin": int(draw.integers(0, 4)),
        }
        if i % 9 == 0:
            del answers["margin"]
        state = f"vy {i % 7} dx {i % 41} up 9"  # some states come again, with other answers
        rows.append({"state": state, "questions": QUESTIONS, "answers": answers, "x_side": "ab"[i % 3 == 0]})
    return rows


ROWS = _rows()


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("rows") / "labelled.jsonl"
    out.write_text("".join(json.dumps(row) + "\n" for row in ROWS), "utf-8")
    return out


@pytest.fixture(scope="module")
def report(path: Path) -> dict[str, Any]:
    return evaluate(path, MODEL, OTHER, by="x_side", samples=200).report


def _answered(model: Any, name: str) -> tuple[np.ndarray, np.ndarray]:
    """What was right and what `decide` says: numbers of options [n], probabilities [n, n_options]."""
    right, said = [], []
    options = list(QUESTIONS[name].get("criteria", ["false", "true"]))
    for row in ROWS:
        if name in row["answers"]:
            answer = model.decide(row["state"], QUESTIONS)["answers"][name]
            p = [1 - answer["noul"], answer["noul"]] if name == "danger" else list(answer["probabilities"].values())
            label = row["answers"][name]
            right.append(label if isinstance(label, (bool, int)) else options.index(label))
            said.append(p)
    return np.array(right, int), np.array(said)


@pytest.mark.parametrize("name", QUESTIONS)
@pytest.mark.parametrize("which", [0, 1])
def test_numbers_are_scikit_learns(report: dict[str, Any], name: str, which: int) -> None:
    right, p = _answered([MODEL, OTHER][which], name)
    found = report["models"][which]["questions"][name]
    labels = list(range(p.shape[1]))
    assert found["n"] == len(right) == (N if name != "margin" else N - 10)
    assert found["accuracy"]["value"] == pytest.approx(oracle.accuracy_score(right, p.argmax(1)))
    assert found["log_loss"]["value"] == pytest.approx(oracle.log_loss(right, p, labels=labels))
    brier = oracle.brier_score_loss(right, p[:, 1] if len(labels) == 2 else p, labels=labels)
    assert found["brier"]["value"] == pytest.approx(brier)
    assert found["confusion"] == oracle.confusion_matrix(right, p.argmax(1), labels=labels).tolist()
    assert found["confidence"] == pytest.approx(p.max(1).mean())
    if name == "danger":
        assert found["auc"] == pytest.approx(oracle.roc_auc_score(right, p[:, 1]))
    if name == "margin":
        assert found["mean_error"] == pytest.approx(oracle.mean_absolute_error(right, p @ np.arange(4)))
    was, said = (right, p[:, 1]) if name == "danger" else (right == p.argmax(1), p.max(1))
    share, mean = calibration.calibration_curve(was, said, n_bins=metrics.N_BINS)
    table = found["reliability"]
    assert [row["found"] for row in table] == pytest.approx(share.tolist())
    assert [row["said"] for row in table] == pytest.approx(mean.tolist())
    n = np.array([row["n"] for row in table])
    assert found["ece"]["value"] == pytest.approx((n * abs(share - mean)).sum() / n.sum())


def test_numbers_of_all_answers_are_those_of_the_questions_together(report: dict[str, Any]) -> None:
    for model in report["models"]:
        n = np.array([one["n"] for one in model["questions"].values()])
        for name in ("accuracy", "log_loss", "brier"):
            values = [one[name]["value"] for one in model["questions"].values()]
            assert model["all"][name]["value"] == pytest.approx(np.average(values, weights=n))
        slices = model["slices"]
        assert list(slices) == ["a", "b"]  # the larger one first
        assert sum(one["n"] for one in slices.values()) == n.sum() == model["all"]["n"] == report["n_answers"]
        hits = sum(one["accuracy"]["value"] * one["n"] for one in slices.values())
        assert hits / n.sum() == pytest.approx(model["all"]["accuracy"]["value"])


def test_slices_are_the_rows_alone(report: dict[str, Any], tmp_path: Path) -> None:
    for side in "ab":
        out = tmp_path / f"{side}.jsonl"
        out.write_text("".join(json.dumps(row) + "\n" for row in ROWS if row["x_side"] == side), "utf-8")
        alone = evaluate(out, MODEL, samples=0).report["models"][0]["all"]
        found = report["models"][0]["slices"][side]
        assert {name: found[name]["value"] for name in metrics.SUMMARY} == pytest.approx(
            {name: alone[name]["value"] for name in metrics.SUMMARY}
        )


def test_intervals_are_those_of_drawn_rows() -> None:
    """Against the standard deviation of a mean; and a pair of models is compared on the same draws."""
    draw = np.random.default_rng(0)
    n = 400
    right = draw.integers(0, 2, n)
    p = np.clip(draw.random((n, 1)), 0.01, 0.99)
    one = metrics.judged("noul", np.hstack([1 - p, p]), np.eye(2)[right], np.ones(n))
    worse = one._replace(accurate=one.accurate * (draw.random(n) < 0.9))
    samples = metrics.bootstrap([one, worse], np.arange(n), 2000, 1)
    assert samples.shape == (2, 2000, 4)
    for i, values in enumerate((one.accurate, one.loss, one.brier)):
        assert samples[0, :, i].std() == pytest.approx(values.std() / math.sqrt(n), rel=0.1)
        assert samples[0, :, i].mean() == pytest.approx(values.mean(), abs=4 * values.std() / math.sqrt(n * 2000))
    difference = samples[1, :, 0] - samples[0, :, 0]
    assert difference.std() == pytest.approx((worse.accurate - one.accurate).std() / math.sqrt(n), rel=0.1)
    assert (difference <= 0).all()
    assert metrics.interval(np.arange(1001.0)) == (25.0, 975.0)
    # answers of one row are drawn together
    grouped = metrics.bootstrap([one], np.zeros(n, int), 50, 1)
    assert np.ptp(grouped, axis=1) == pytest.approx(np.zeros((1, 4)), abs=1e-12)
    # weights count as rows that come again
    weighted = metrics.summary(metrics.judged("noul", np.hstack([1 - p, p]), np.eye(2)[right], 1.0 + right))
    twice = np.repeat(np.arange(n), 1 + right)
    assert weighted == pytest.approx(metrics.summary(metrics.Judged(*(column[twice] for column in one))))


def test_the_difference_has_the_two_models_numbers(report: dict[str, Any]) -> None:
    first, second = report["models"]
    for name in metrics.SUMMARY:
        found = report["difference"]["all"][name]
        assert found["value"] == pytest.approx(second["all"][name]["value"] - first["all"][name]["value"])
        assert found["low"] <= found["value"] <= found["high"]
    same = evaluate(read_labelled(Path(report["rows"])), MODEL, MODEL, samples=20).report["difference"]
    for numbers in (same["all"], *same["questions"].values()):
        assert all(number == {"value": 0, "low": 0, "high": 0} for number in numbers.values())


def test_the_threshold_answers_most_with_the_wanted_accuracy(path: Path) -> None:
    for wanted in (0.2, 0.45, 0.6, 1.0):
        found = evaluate(path, MODEL, wanted_accuracy=wanted, samples=0).report["models"][0]["questions"]
        for name in QUESTIONS:
            right, p = _answered(MODEL, name)
            confidence, hit = p.max(1), p.argmax(1) == right
            fits = [t for t in confidence if hit[confidence >= t].mean() >= wanted]
            threshold = found[name]["threshold"]
            if not fits:
                assert threshold is None
                continue
            least = min(fits)
            assert threshold["min_confidence"] == pytest.approx(least)
            assert threshold["n"] == (confidence >= least).sum()
            assert threshold["accuracy"] == pytest.approx(hit[confidence >= least].mean())
            assert found[name]["coverage"][-1]["coverage"] == pytest.approx(1.0)
            assert found[name]["coverage"][-1]["accuracy"] == pytest.approx(hit.mean())


def test_the_threshold_is_met_by_as_many_answers_of_decide(path: Path) -> None:
    found = evaluate(path, MODEL, wanted_accuracy=0.4, samples=0).report["models"][0]["questions"]["danger"]
    least = found["threshold"]["min_confidence"]
    answers = MODEL.decide_many([row["state"] for row in ROWS], QUESTIONS, min_confidence=least)
    kept = sum("x_abstained" not in one["answers"]["danger"] for one in answers)
    assert kept == found["threshold"]["n"]


def test_targets_that_are_distributions() -> None:
    p = np.array([[0.7, 0.3], [0.2, 0.8]])
    targets = np.array([[0.5, 0.5], [0.1, 0.9]])
    one = metrics.judged("choice", p, targets, np.ones(2))
    assert one.accurate.tolist() == [1, 1]  # none of two equal ones is wrong
    assert one.loss == pytest.approx(-(targets * np.log(p)).sum(1))
    assert one.brier == pytest.approx(((p - targets) ** 2).sum(1) / 2)
    assert one.found.tolist() == [0.5, 0.9]


@pytest.mark.parametrize(
    ("rows", "error"),
    [
        ([], "there are no rows"),
        ([{"state": "a"}], "1 of 1 rows is faulty"),
        ([{"state": "a", "questions": QUESTIONS, "answers": {"pair": "up"}}], "answers.pair"),
        ([{"state": "a", "questions": QUESTIONS, "answers": {"pair": "left"}}], "no row has 'x_side'"),
    ],
)
def test_rows_that_cannot_be_measured(rows: list[Any], error: str, tmp_path: Path) -> None:
    out = tmp_path / "rows.jsonl"
    out.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    with pytest.raises(SkyinferError, match=error) as caught:
        read_labelled(out, "x_side")
    assert isinstance(caught.value, RowsError) == ("state" in str(rows) and "x_side" not in error)


# ------------------------------------------------------------------------------------------ the command


class _Reader(HTMLParser):
    """What a page refers to, and whether its elements are closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.refers: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.refers += [str(value) for name, value in attrs if name in ("src", "href")]
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_command_prints_and_writes_reports(run: Run, path: Path, tmp_path: Path) -> None:
    out, web = tmp_path / "report.json", tmp_path / "report.html"
    found = run("evaluate", path, "-m", PAINTED, "-m", "s1-pico", "--by", "x_side", "--samples", "50", "-o", out)
    assert (found.code, found.err) == (0, "")
    for text in ("accuracy", "log loss", "s1-pico less painted", "by x_side", "min_confidence"):
        assert text in found.out
    report = json.loads(out.read_text("utf-8"))
    again = run(
        "evaluate", path, "-m", PAINTED, "-m", "s1-pico", "--by", "x_side", "--samples", "50", "--json", "-o", web
    )
    assert json.loads(again.out) == report  # the same seed, the same numbers
    page = web.read_text("utf-8")
    reader = _Reader()
    reader.feed(page)
    assert (reader.open, reader.refers) == ([], [])
    assert page.count("<svg") == 2 * 2 * len(QUESTIONS)
    assert run("evaluate", path, "-o", out).code == 1  # it is there already
    assert run("evaluate", path, "-o", out, "--force", "--samples", "0").code == 0


def test_a_report_says_how_each_model_ran(run: Run, path: Path, tmp_path: Path) -> None:
    """One model in two precisions has the numbers of two runs, and is told apart in every form of the report."""
    out, web = tmp_path / "report.json", tmp_path / "report.html"
    common = ["evaluate", path, "--samples", "20"]
    isa = skyinfer.info()["isa"]["selected"]
    alone = {}
    for precision in ("exact", "int8"):
        found = run(*common, "-m", "s1-pico", "--precision", precision, "--json")
        (alone[precision],) = json.loads(found.out)["models"]
        assert (alone[precision]["precision"], alone[precision]["isa"]) == (precision, isa)
    assert alone["exact"]["all"]["log_loss"] != alone["int8"]["all"]["log_loss"]
    both = [*common, "-m", "s1-pico", "-m", "s1-pico"]
    found = run(*both, "--precision", "int8", "--precision", "exact", "-o", out)
    assert json.loads(out.read_text("utf-8"))["models"] == [alone["int8"], alone["exact"]]
    heads = [f"s1-pico (int8 on {isa})", f"s1-pico (exact on {isa})", "s1-pico (exact) less s1-pico (int8)"]
    for text in heads:
        assert found.out.count(text) == 1
    assert run(*both, "--precision", "int8", "--precision", "exact", "-o", web).code == 0
    page = web.read_text("utf-8")
    for text in heads:
        assert f"<h2>{text}</h2>" in page
    for given in ([], ["--precision", "exact"], ["--precision", "int8"]):
        models = json.loads(run(*both, *given, "--json").out)["models"]
        assert models == 2 * [alone[given[-1] if given else "exact"]]


def test_models_of_one_name_are_told_apart_by_their_paths(run: Run, path: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.gguf"
    copy.write_bytes(PICO_FILE.read_bytes())
    found = run("evaluate", path, "-m", PICO_FILE, "-m", copy, "--samples", "0")
    assert f"s1-pico ({copy}) less s1-pico ({PICO_FILE})" in found.out


def test_a_picture_says_how_the_model_ran(report: dict[str, Any]) -> None:
    pytest.importorskip("matplotlib")
    from skyinfer.evaluation.picture import picture

    model = report["models"][0]
    drawn = [picture({**report, "models": [{**model, **how}]}) for how in ({}, {"precision": "int8"}, {"isa": "other"})]
    assert len(set(drawn)) == 3


def test_a_page_takes_text_as_text(run: Run, tmp_path: Path) -> None:
    path, web = tmp_path / "<b>.jsonl", tmp_path / "page.html"
    evil = "<script>alert(1)</script>"
    question = {"type": "choice", "instructions": "?", "criteria": [evil, "b"]}
    row = {"state": {"k": evil}, "questions": {evil: question}, "answers": {evil: "b"}, "weight": 2.5}
    path.write_text(json.dumps(row) + "\n", "utf-8")
    assert run("evaluate", path, "-m", PAINTED, "--by", "state.k", "-o", web).code == 0
    assert "<script" not in web.read_text("utf-8")


def test_a_picture_is_drawn(run: Run, path: Path, tmp_path: Path) -> None:
    image = pytest.importorskip("matplotlib.image")
    one, two = tmp_path / "one.png", tmp_path / "two.png"
    arguments = ["evaluate", path, "-m", PAINTED, "--samples", "0"]
    found = run(*arguments, "-o", one)
    assert (found.code, found.err) == (0, "")
    assert run(*arguments, "-m", "s1-pico", "-o", two).code == 0
    pixels, both = image.imread(one), image.imread(two)
    assert (pixels != pixels[0, 0]).any(axis=2).mean() > 0.05  # it is not empty
    assert both.shape[0] == 2 * pixels.shape[0]  # a line of diagrams for each question of each model
    before = one.read_bytes()
    assert run(*arguments, "-o", one).fault() == f"{one}: exists already; --force replaces it"
    assert run(*arguments, "-o", one, "--force").code == 0
    assert one.read_bytes() == before


def test_a_picture_takes_any_text(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path, odd = tmp_path / "rows.jsonl", "$\\frac$ \u6c34\x1b[2J"
    criteria = {odd: None, **{f"option {i} {'x' * 300}": None for i in range(50)}}
    row = {"state": "s", "questions": {odd: {"type": "choice", "instructions": "?", "criteria": criteria}}}
    path.write_text(json.dumps({**row, "answers": {odd: odd}}) + "\n", "utf-8")
    found = run("evaluate", path, "--samples", "0", "-o", tmp_path / "picture.png")
    assert (found.code, found.err) == (0, "")


def test_without_matplotlib_it_is_said_before_anything_is_measured(
    run: Run, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.setattr(evaluation, "evaluate", None)
    said = run("evaluate", path, "-o", tmp_path / "report.png").fault()
    assert said == "plots need matplotlib: pip install 'skyinfer[plot]', or write .html, which needs nothing"


def test_a_table_and_questions_of_a_file_are_the_same_rows(
    run: Run, path: Path, report: dict[str, Any], tmp_path: Path
) -> None:
    questions, table, bare = (tmp_path / name for name in ("questions.json", "rows.csv", "bare.jsonl"))
    questions.write_text(json.dumps({"state": "", "questions": QUESTIONS}), "utf-8")
    with table.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["state", "x_side", *(f"answers.{name}" for name in QUESTIONS)])
        for row in ROWS:
            answers = [row["answers"].get(name, "") for name in QUESTIONS]
            writer.writerow([row["state"], row["x_side"], *(str(a) if isinstance(a, int) else a for a in answers)])
    without = ({name: row[name] for name in ("state", "answers", "x_side")} for row in ROWS)
    bare.write_text("".join(json.dumps(row) + "\n" for row in without), "utf-8")
    for rows in (table, bare):
        found = run("evaluate", rows, "-q", questions, "-m", PAINTED, "--by", "x_side", "--samples", "200", "--json")
        assert found.code == 0, found.err
        assert json.loads(found.out)["models"][0] == report["models"][0]
    assert "--questions" in run("evaluate", table, "-m", PAINTED).err
    questions.write_text("[]", "utf-8")
    assert run("evaluate", table, "-q", questions).fault().startswith(f"{questions}: ")


def test_limits_decide_the_exit_code(run: Run, path: Path, report: dict[str, Any]) -> None:
    accuracy = report["models"][0]["all"]["accuracy"]["value"]
    arguments = ["evaluate", path, "-m", PAINTED, "--samples", "0"]
    assert run(*arguments, "--fail-under", f"accuracy={accuracy:.17g}", "--fail-over", "ece=1").code == 0
    found = run(*arguments, "--fail-under", f"accuracy={accuracy + 1e-9:.17g}", "--fail-over", "danger.ece=0")
    assert found.code == 1
    assert found.out  # the table all the same
    assert "accuracy is" in found.err
    assert "danger.ece is" in found.err
    assert run(*arguments, "--fail-under", "danger.auc=0.0").code == 0
    assert run(*arguments, "--fail-under", "nobody.accuracy=0").code == 1
    assert run(*arguments, "--fail-under", "auc=0.5").code == 1  # there is none of all questions
    for wrong in ("accuracy", "accuracy=", "speed=3", "accuracy=nan", "=1", "accuracy=2", "a.auc=1.01", "ece=-1"):
        assert run(*arguments, "--fail-under", wrong).code == 2


@pytest.mark.parametrize(
    "arguments",
    [
        ["-m", "a", "-m", "b", "-m", "c"],
        ["-o", "x.pdf"],
        ["--wanted-accuracy", "0"],
        ["--samples", "-1"],
        ["--precision", "int4"],
        ["--precision", "exact", "--precision", "int8"],
        ["-m", "s1-pico", "--precision", "exact", "--precision", "int8"],
        ["-m", "s1-pico", "-m", "s2-pico", *3 * ["--precision", "int8"]],
    ],
)
def test_faulty_command_lines(run: Run, path: Path, arguments: list[str]) -> None:
    assert run("evaluate", path, *arguments).code == 2


def test_faulty_rows_are_told_by_line(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(ROWS[0]) + '\n{"state": 1}\n', "utf-8")
    found = run("evaluate", path)
    assert found.code == 1
    assert "line 2" in found.err
    assert found.err.endswith(f"{path}: 1 of 2 rows is faulty\n")
    assert run("evaluate", tmp_path / "missing.jsonl").code == 1
