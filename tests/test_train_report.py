"""What a report says: tables, files, intervals, and what it warns of. No torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from skyinfer.errors import FormatError
from skyinfer.metrics import measure
from skyinfer.train import cautions, trials
from skyinfer.train.report import Evaluation, QuestionReport, Report, Trial
from skyinfer.train.rows import Dataset, gather
from skyinfer.train.variants import canonical


def question_report(right: int, n: int, share: float = 0.5, sure: float = 4.0) -> QuestionReport:
    """A noul whose first `right` of `n` answers are right, said with `sure` as the difference of the logits."""
    true = np.arange(n) < share * n
    said = np.where(np.arange(n) < right, true, ~true)
    logits = np.stack([np.zeros(n), np.where(said, sure, -sure)], 1)
    numbers = measure("noul", logits, np.stack([1.0 - true, 1.0 * true], 1), np.ones(n), 1.0)
    return QuestionReport("noul", 2, n, 1.25, **numbers)


def report_of(questions: dict[str, QuestionReport], **changes: Any) -> Report:
    arguments: dict[str, Any] = {
        "path": "out", "size": "pico", "parameters": 1000, "vocab_size": 300, "seed": 0, "rows": 10, "states": 8,
        "examples": 8, "held_out_states": 2, "epochs": 3.0, "steps": 30, "final_loss": 0.5, "seconds": 1.0,
        "threads": 2, "torch": "2.13", "augmentation": ["keys"], "temperatures": {"noul": 1.25}, "questions": questions,
    }  # fmt: skip
    return Report(**arguments | changes)


def test_a_report_can_be_read(tmp_path: Path) -> None:
    questions = {"safe\x1b[2J": question_report(90, 100)}
    tried = [Trial("keys shuffled", "safe\x1b[2J", 90, 0.4, 0.9, 0.99)]
    report = report_of(questions, trials=tried, evaluation=Evaluation("mine.jsonl", 5, 4, 1, questions), warnings=["w"])
    text = str(report)
    assert "0.9000  0.8256-0.9448" in text  # Wilson's interval of 90 in 100
    assert "keys shuffled" in text
    assert "mine.jsonl: 5 rows, 4 states, 1 of them learned from" in text
    assert "\x1b" not in text
    assert "warning: w" in text
    (tmp_path / "training_report.json").write_text(report.as_json(), "utf-8")
    assert json.loads(report.as_json())["trials"][0]["accuracy"] == 0.4
    assert Report.read(tmp_path) == Report.read(tmp_path / "training_report.json") == report


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"questions": {}}', '{"questions": {"a": {}}}'])
def test_what_is_no_report_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "training_report.json").write_text(content, "utf-8")
    with pytest.raises(FormatError, match="not a report of a training"):
        Report.read(tmp_path)
    with pytest.raises(FileNotFoundError):
        Report.read(tmp_path / "none")


@pytest.mark.parametrize(
    ("question", "told"),
    [
        (question_report(970, 1000), None),
        (question_report(400, 1000), "accuracy 0.400 is below the 0.500 of always giving the most frequent"),
        # right more often than not, but far too sure
        (
            question_report(600, 1000, sure=20.0),
            "log loss 8.000 is no better than the 0.693 of always saying how often",
        ),
        (question_report(28, 30), "only 30 held-out answers; its accuracy lies between 0.787 and 0.982 (95 %, Wilson)"),
        # every answer is the same, and is given
        (question_report(1000, 1000, share=1.0), None),
    ],
)
def test_doubtful_numbers_are_told(question: QuestionReport, told: str | None) -> None:
    found = list(cautions.about_answers({"q": question}, {"noul": 1.0}))
    assert len(found) == (told is not None)
    assert told is None or told in found[0]


def test_a_temperature_at_its_limit_is_told() -> None:
    found = list(cautions.about_answers({}, {"choice": 0.5, "score": 1.0, "noul": 5.0, "choice:2": 0.51}))
    assert [caution.split(":")[0] for caution in found] == ["temperature of choice", "temperature of noul"]


def test_drops_of_more_than_five_points_are_told() -> None:
    tried = [
        Trial(trials.OPTIONS_REVERSED, "q", 100, 0.16, 1.0, 0.999),
        Trial(trials.KEYS_SHUFFLED, "q", 100, 0.90, 1.0, 0.99),
        Trial(trials.NUMBERS_RESPELT, "q", 100, 0.96, 1.0, 0.99),
        Trial(trials.BEYOND, "q", 100, 0.01, 1.0, 0.99),
    ]
    found = list(cautions.about_trials(tried, ["keys"]))
    assert [caution.split(": ")[0] for caution in found] == [
        "question 'q', options reversed", "question 'q', keys shuffled", "question 'q', numbers beyond",
    ]  # fmt: skip
    assert (
        "accuracy 0.160 in place of 1.000, at a mean confidence of 0.999; augment has 'options' against it" in found[0]
    )
    assert "augment" not in found[1]


# ---------------------------------------------------------------------------------------------------- rows


QUESTIONS = {"act": {"type": "choice", "instructions": "What now?", "criteria": ["go", "stop"]},
             "safe": {"type": "noul", "instructions": "Is it safe?"}}  # fmt: skip


def contradicted(*rows: tuple[Any, dict[str, Any]]) -> dict[str, tuple[int, str]]:
    data: Dataset = gather(
        ((f"line {i}", {"state": state, "questions": QUESTIONS, "answers": answers})
         for i, (state, answers) in enumerate(rows, 1)), "rows")  # fmt: skip
    found = cautions.contradicted(data, [canonical(state) for state in data.states])
    return {data.questions[number].id: told for number, told in found.items()}


def test_labels_that_contradict_each_other_are_told() -> None:
    go, stop = {"act": "go"}, {"act": "stop"}
    assert contradicted(("a", go), ("b", stop), ("a", go)) == {}
    assert contradicted(("a", go), ("b", stop), ("a", stop), ("b", go), ("b", stop)) == {"act": (2, "line 3")}
    # probabilities may differ from one time to the next, and have a mean
    assert contradicted(("a", {"act": {"go": 0.6, "stop": 0.4}}), ("a", {"act": {"go": 0.4, "stop": 0.6}})) == {}
    assert contradicted(("a", {"safe": 0.9}), ("a", {"safe": True})) == {}
    assert contradicted(("a", {"safe": True} | go), ("a", {"safe": False} | go)) == {"safe": (1, "line 2")}
    # the same state, written in another way
    assert set(contradicted(({"x": 1, "y": 2}, go), ({"y": 2.0, "x": 1}, stop))) == {"act"}
    assert contradicted(({"x": 1, "y": 2}, go), ({"y": 1, "x": 2}, stop)) == {}
