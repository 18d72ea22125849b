"""Fields of a question that mean nothing: accepted, named in the answer however it is asked, and warned of once."""

from __future__ import annotations

import json
import warnings
from typing import Any

import pytest
from commands import Run

import skyinfer

pytestmark = pytest.mark.usefixtures("plain_environment")

NOUL = {"type": "noul", "instructions": "Will it crash?"}
MISSPELT = {**NOUL, "critera": {"true": "it hits something"}}
QUESTIONS: Any = {"danger": MISSPELT, "calm": NOUL}


@pytest.fixture
def model() -> skyinfer.Model:
    return skyinfer.load()


def test_the_answer_names_them_and_is_otherwise_that_of_the_question_without(model: skyinfer.Model) -> None:
    expected = model.decide("s", {"danger": NOUL, "calm": NOUL})["answers"]  # type: ignore[dict-item]
    with pytest.warns(RuntimeWarning, match="'critera'"):
        found = model.decide("s", QUESTIONS)["answers"]
    assert found["danger"] == {**expected["danger"], "x_ignored": ["critera"]}
    assert found["calm"] == expected["calm"]
    assert json.loads(json.dumps(found)) == found


def test_python_warns_when_a_model_first_sees_questions(model: skyinfer.Model) -> None:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(3):
            model.decide("s", QUESTIONS)
            model.decide_many(["s", "t"], QUESTIONS)
            model.logits("s", QUESTIONS)
    assert [one.category for one in said] == [RuntimeWarning]
    assert str(said[0].message) == (
        "question 'danger': ignored, as no question has such a field: 'critera' (did you mean 'criteria'?)"
    )
    assert said[0].filename == __file__
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        compiled = skyinfer.load().compile(QUESTIONS)
        for state in ("s", "t"):
            assert compiled(state)["answers"]["danger"]["x_ignored"] == ["critera"]
            compiled.step(state)
    assert len(said) == 1
    assert said[0].filename == __file__


def test_all_of_them_are_named_in_order(model: skyinfer.Model) -> None:
    question: Any = {"b": 1, **NOUL, "option_ordr": [1, 0], "zzz": None, "criteria": {"TRUE": "a", "true": "b"}}
    with pytest.warns(
        RuntimeWarning, match=r"'b', 'option_ordr' \(did you mean 'option_order'\?\), 'zzz', 'criteria\.TRUE'"
    ):
        answer = model.decide("s", {"q": question})["answers"]["q"]
    assert answer["x_ignored"] == ["b", "option_ordr", "zzz", "criteria.TRUE"]


def test_fields_beside_the_questions_are_ignored_without_a_word(run: Run) -> None:
    body = {"state": "s", "questions": {"q": NOUL}, "temperature": 1, "critera": {}}
    result = run("decide", "-", stdin=json.dumps(body).encode())
    assert (result.code, result.err) == (0, "")
    assert "x_ignored" not in result.out


def test_fields_that_look_like_skyinfers_own_are_named(run: Run) -> None:
    body = {"x_min_confidnce": 0.5, "state": {"x_min": 1}, "questions": {"q": NOUL}, "x_other": None, "x_long": False}
    result = run("decide", "-", stdin=json.dumps(body).encode())
    assert result.code == 0
    assert json.loads(result.out)["x_ignored"] == ["x_min_confidnce", "x_other"]
    assert result.err == (
        "skyinfer: warning: ignored, as no request has such a field: 'x_min_confidnce' (did you mean "
        "'x_min_confidence'?), 'x_other'\n"
    )


def test_the_server_names_them_too() -> None:
    pytest.importorskip("uvicorn")
    from serving import serving

    with serving() as running, running.client() as client:
        body = {"state": {"x_a": "x_b"}, "questions": {"q": {**NOUL, "x_c": 1}}, "x_lng": True}
        found = [
            client.post(body).json,
            client.post({**body, "x_long": True}).json,
            client.post({**body, "states": ["s"]}, "/v1/systemone/batch").json,
        ]
        sound = client.post({"state": "x_a", "questions": {"q": NOUL}, "x_min_confidence": 0.5, "other": 1}).json
    assert [one["x_ignored"] for one in found] == [["x_lng"]] * 3
    assert "x_ignored" not in sound


def test_the_command_says_so(run: Run) -> None:
    result = run("decide", "-", stdin=json.dumps({"state": "s", "questions": QUESTIONS}).encode())
    assert result.code == 0
    assert json.loads(result.out)["answers"]["danger"]["x_ignored"] == ["critera"]
    assert result.err.startswith("skyinfer: warning: question 'danger': ignored")
    assert result.err.count("\n") == 1


def test_the_server_names_them_and_warns_of_nothing() -> None:
    pytest.importorskip("uvicorn")
    from serving import serving

    with warnings.catch_warnings(), serving() as running, running.client() as client:
        warnings.simplefilter("error")
        single = client.post({"state": "s", "questions": QUESTIONS}).json
        batch = client.post({"states": ["s", "t"], "questions": QUESTIONS}, "/v1/systemone/batch").json
    for found in (single, *batch["results"]):
        assert found["answers"]["danger"]["x_ignored"] == ["critera"]
        assert "x_ignored" not in found["answers"]["calm"]


def test_rows_of_training_warn_once_for_each_field() -> None:
    rows = pytest.importorskip("skyinfer.train.rows")
    row = {"state": "s", "questions": QUESTIONS, "answers": {"danger": True}}
    other = {"state": "s", "questions": {"q": {**MISSPELT, "weigth": 1}}, "answers": {"q": True}}
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        rows.gather([("line 1", row), ("line 2", row), ("line 3", other), ("line 4", other)], "rows")
    assert [str(one.message).split(": ignored")[0] for one in said] == [
        "line 1: question 'danger'",
        "line 3: question 'q'",
    ]
    assert "'weigth'" in str(said[1].message)
    assert "critera" not in str(said[1].message)
