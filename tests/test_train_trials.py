"""A rule learned with and without variation, and what the report finds out about both. Needs torch."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

# ruff: noqa: E402
import skyinfer
from skyinfer.train import RowsError, train, train_rows
from skyinfer.train.report import Report, Trial

pytestmark = pytest.mark.usefixtures("without_plots")

CRITERIA = {"attack": "go for the intruder", "flee": "run away", "hide": "stay out of sight"}
QUESTIONS: dict[str, Any] = {
    "act": {"type": "choice", "instructions": "What does the guard do?", "criteria": CRITERIA},
    "safe": {"type": "noul", "instructions": "Is the guard safe?"},
}


def rule(state: dict[str, Any]) -> dict[str, Any]:
    act = ("flee" if state["far"] < 15 else "hide") if state["hp"] < 30 else "attack" if state["far"] < 40 else "hide"
    return {"act": act, "safe": state["far"] >= 30}


def some_states(n: int, seed: int) -> list[dict[str, Any]]:
    draw = random.Random(seed)
    found = [{"hp": draw.randint(0, 100), "far": draw.randint(0, 60), "n": draw.randint(0, 9)} for _ in range(n)]
    return [dict(state) for state in dict.fromkeys(tuple(state.items()) for state in found)]


FAST: dict[str, Any] = {"epochs": 8, "held_out": 0.25, "batch_size": 32}


@pytest.fixture(scope="module")
def fixed(tmp_path_factory: pytest.TempPathFactory) -> Report:
    out = tmp_path_factory.mktemp("fixed") / "model"
    with pytest.MonkeyPatch.context() as patch:
        from skyinfer.train import training

        patch.setattr(training, "plot", lambda *_: None)
        return train(rule, QUESTIONS, some_states(500, 1), out, **FAST, augment=False)


def trial(report: Report, change: str, question: str = "act") -> Trial:
    (found,) = [one for one in report.trials if (one.change, one.question) == (change, question)]
    return found


def test_a_report_tells_what_a_model_does_not_hold(fixed: Report) -> None:
    """Learned in one order and one spelling, it is right about these alone; every drop has a warning."""
    assert fixed.questions["act"].accuracy > 0.8
    changes = {(one.change, one.question) for one in fixed.trials}
    assert changes == {("options reversed", "act")} | {
        (change, question)
        for change in ("keys shuffled", "57.0 for 57", "an extra key", "numbers beyond")
        for question in QUESTIONS
    }
    for change in ("options reversed", "keys shuffled"):
        one = trial(fixed, change)
        assert one.accuracy < one.accuracy_as_given - 0.05
        assert any(f"question 'act', {change}: accuracy" in warning for warning in fixed.warnings)
    assert trial(fixed, "options reversed").n == fixed.questions["act"].n
    assert trial(fixed, "options reversed").accuracy_as_given == pytest.approx(fixed.questions["act"].accuracy)


def test_a_trial_is_what_the_written_model_answers(fixed: Report) -> None:
    """Counted again with requests to the model, on the states that were held out."""
    from skyinfer.train.encoding import held_out_states
    from skyinfer.train.rows import gather
    from skyinfer.train.variants import canonical

    states = some_states(500, 1)
    data = gather(((str(i), {"state": state, "questions": QUESTIONS, "answers": rule(state)})
                   for i, state in enumerate(states)), "rows")  # fmt: skip
    held = held_out_states([canonical(state) for state in data.states], 0.25, 0)
    unseen = [json.loads(state.text) for state, is_held in zip(data.states, held, strict=True) if is_held]
    model = skyinfer.load(fixed.path)
    turned = {"act": QUESTIONS["act"] | {"criteria": dict(reversed(CRITERIA.items()))}}
    floats = [{key: float(value) for key, value in state.items()} for state in unseen]
    for one, asked, shown in (
        (trial(fixed, "options reversed"), turned, unseen),
        (trial(fixed, "57.0 for 57"), {"act": QUESTIONS["act"]}, floats),
    ):
        answers: list[Any] = [model.decide(state, asked)["answers"]["act"] for state in shown]
        right = [answer["choice"] == rule(state)["act"] for answer, state in zip(answers, unseen, strict=True)]
        assert one.n == len(right)
        assert one.accuracy == pytest.approx(sum(right) / len(right))
        sure = [max(answer["probabilities"].values()) for answer in answers]
        assert one.confidence == pytest.approx(sum(sure) / len(sure), abs=1e-4)


def test_a_teacher_is_asked_beyond_the_numbers_that_were_learned_from(tmp_path: Path) -> None:
    """Its answers there count; without one the outermost states are moved, and keep their answer."""
    asked: list[dict[str, Any]] = []

    def noting(state: dict[str, Any]) -> dict[str, Any]:
        asked.append(state)
        return rule(state)

    states = some_states(200, 3)
    report = train(noting, QUESTIONS, states, tmp_path / "taught", epochs=0.2, held_out=0.3)
    beyond = asked[len(states) :]
    assert len(beyond) == trial(report, "numbers beyond").n == report.held_out_states
    highest = {"hp": 100, "far": 60, "n": 9}
    for state in beyond:
        assert [key for key, value in state.items() if value > highest[key]]
        assert all(type(value) is int and value >= 0 for value in state.values())
    rows = [{"state": state, "questions": QUESTIONS, "answers": rule(state)} for state in states]
    moved = trial(train_rows(rows, tmp_path / "rows", epochs=0.2, held_out=0.3), "numbers beyond")
    assert 0 < moved.n < report.held_out_states


def test_a_teacher_that_fails_beyond_is_no_fault(tmp_path: Path) -> None:
    def strict(state: dict[str, Any]) -> dict[str, Any]:
        if state["hp"] > 100 or state["far"] > 60 or state["n"] > 9:
            raise ValueError("out of range")
        return rule(state)

    report = train(strict, QUESTIONS, some_states(100, 3), tmp_path / "model", epochs=0.2)
    assert "numbers beyond" not in {one.change for one in report.trials}


def test_temperatures_are_fitted_to_one_half_and_reported_on_the_other(fixed: Report) -> None:
    """Recomputed from the model's own logits: the loss that is told is that of the other half's temperature."""
    import numpy as np

    from skyinfer.metrics import fit_temperature, log_loss
    from skyinfer.train.encoding import halves, held_out_states
    from skyinfer.train.rows import gather
    from skyinfer.train.variants import canonical

    states = some_states(500, 1)
    data = gather(((str(i), {"state": state, "questions": QUESTIONS, "answers": rule(state)})
                   for i, state in enumerate(states)), "rows")  # fmt: skip
    texts = [canonical(state) for state in data.states]
    held, half = held_out_states(texts, 0.25, 0), halves(texts, 0)
    model = skyinfer.load(fixed.path)
    parts = []
    for part in (False, True):
        mine = [json.loads(data.states[i].text) for i in np.flatnonzero(held & (half == part))]
        logits = np.array([model.logits(state, QUESTIONS)["safe"] for state in mine], np.float64)
        targets = np.array([[1.0 - rule(state)["safe"], float(rule(state)["safe"])] for state in mine])
        parts.append((logits, targets, np.ones(len(mine))))
    total = 0.0
    for one, other in (parts, parts[::-1]):
        total += log_loss(*one, round(fit_temperature(*other) * 1024) / 1024) * len(one[0])
    assert fixed.questions["safe"].log_loss == pytest.approx(total / held.sum(), abs=1e-4)
    assert fixed.questions["safe"].n == held.sum()


def test_rows_of_ones_own_are_judged(tmp_path: Path) -> None:
    states = some_states(150, 5)
    rows = [{"state": state, "questions": QUESTIONS, "answers": rule(state)} for state in states]
    own = tmp_path / "own.jsonl"
    further = [{"hp": 1000 + i, "far": 1, "n": 0} for i in range(30)]
    mine = rows[:20] + [{"state": state, "questions": QUESTIONS, "answers": {"safe": False}} for state in further]
    own.write_text("".join(json.dumps(row) + "\n" for row in mine), "utf-8")
    report = train_rows(rows, tmp_path / "model", epochs=1, evaluate=own)
    found = report.evaluation
    assert found is not None
    assert (found.source, found.rows, found.states) == (str(own), 50, 50)
    assert 0 < found.known_states <= 20
    assert {name: q.n for name, q in found.questions.items()} == {"act": 20, "safe": 50}
    model = skyinfer.load(tmp_path / "model")
    answers: list[Any] = [model.decide(row["state"], QUESTIONS)["answers"]["safe"]["noul"] for row in mine]
    right = [(p > 0.5) == row["answers"]["safe"] for p, row in zip(answers, mine, strict=True)]
    assert found.questions["safe"].accuracy == pytest.approx(sum(right) / 50)
    assert Report.read(tmp_path / "model") == report

    # it has no part in what is learned, and is checked before anything is trained
    plain = train_rows(rows, tmp_path / "plain", epochs=1)
    assert plain.evaluation is None
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("model", "plain")]
    assert weights[0] == weights[1]
    with pytest.raises(RowsError, match="rows to evaluate: 1 of 1 rows is faulty"):
        train_rows(rows, tmp_path / "other", evaluate=[{}])
    assert not (tmp_path / "other").exists()
