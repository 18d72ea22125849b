"""Temperatures, probabilities, TypeSafe's confidence and the envelope."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence as SequenceOf
from typing import Any

import numpy as np
import pytest

from skyinfer.core.border import CoreQuestions
from skyinfer.errors import FormatError
from skyinfer.files.temperatures import Temperatures, bucket
from skyinfer.runtime.answers import (
    answer,
    choice_confidence,
    response,
    score_confidence,
)
from skyinfer.schema import Question, parse_questions
from skyinfer.text.sequence import Sequence


def question(**fields: Any) -> Question:
    return parse_questions({"q": {"instructions": "Why?"} | fields})[0]


def sequence(n: int, **changes: Any) -> Sequence:
    fields = {"ids": [0] * 10, "markers": list(range(n)), "state_tokens": 3, "state_tokens_used": 3,
              "options": n, "options_distinct": n, "tokens_per_option": None}  # fmt: skip
    return Sequence(**(fields | changes))


# ------------------------------------------------------------------------------ temperatures


@pytest.mark.parametrize(
    ("n", "name"),
    [(1, "2"), (2, "2"), (3, "3_5"), (5, "3_5"), (6, "6_10"), (10, "6_10"), (11, "11"), (255, "11")],
)
def test_bucket(n: int, name: str) -> None:
    assert bucket(n) == name


def test_the_bucket_wins_over_the_type() -> None:
    temperatures = Temperatures({"choice": 2.0, "choice.3_5": 3.0, "noul": 4.0})
    assert temperatures.of("choice", 2) == 2.0
    assert temperatures.of("choice", 4) == 3.0
    assert temperatures.of("noul", 2) == 4.0
    assert temperatures.of("score", 3) == 1.0


@pytest.mark.parametrize(
    ("raw", "clamped"),
    [
        (1.637, 1.637), (0.1006, 0.5), (0.0, 0.5), (-3, 0.5), (7, 5.0), (math.nan, 1.0),
        (math.inf, 1.0), (-math.inf, 1.0), (True, 1.0), (False, 1.0), (None, 1.0), ("x", 1.0),
        ("2.5", 2.5), (10**400, 1.0),
    ],
)  # fmt: skip
def test_clamp(raw: Any, clamped: float) -> None:
    assert Temperatures({"score": raw}).of("score", 2) == clamped


def test_without_the_clamp_values_are_taken_as_they_are() -> None:
    temperatures = Temperatures({"choice": 0.1006, "score": 7.0}, clamp=False)
    assert temperatures.of("choice", 2) == 0.1006
    assert temperatures.of("score", 2) == 7.0
    for raw in (0.0, -1.0, math.nan, math.inf, True, "x"):
        with pytest.raises(FormatError, match="temperature"):
            Temperatures({"choice": raw}, clamp=False)


# ------------------------------------------------------------------------------ probabilities


def probabilities(logits: SequenceOf[float], temperature: float, order: list[int] | None = None) -> list[float] | None:
    """Of one question, by the core. `order`: the option of each score."""
    n = len(logits)
    core = CoreQuestions(None, [([0] * n, list(range(n)), 0, n)], [order or list(range(n))], sep_id=0)
    found = core.probabilities(np.array(logits, np.float32), np.array([temperature]))
    rounded, numbers = np.zeros((1, n), np.float32), np.zeros((2, 1, 1), np.float32)
    n_done = core.write_answers(
        np.array([logits], np.float32),
        np.zeros(1, np.int64),
        np.array([temperature]),
        rounded,
        np.zeros((1, 1), np.int32),
        *numbers,
        np.zeros((1, 1), np.uint8),
    )
    assert n_done == (found is not None)
    if found is None:
        return None
    assert rounded[0].tolist() == np.array(found[0], np.float32).tolist()
    return found[0]


def exact_softmax(logits: SequenceOf[float], temperature: float) -> list[float]:
    """Its sum rounded once."""
    exps = [math.exp((z - max(logits)) / temperature) for z in np.array(logits, np.float32).tolist()]
    return [e / math.fsum(exps) for e in exps]


def test_softmax() -> None:
    p = probabilities([1.0, 2.0, 4.0], 2.0)
    assert p is not None
    exps = [math.exp(z / 2) for z in (1, 2, 4)]
    assert p == pytest.approx([e / sum(exps) for e in exps], abs=1e-15)
    assert math.fsum(p) == pytest.approx(1, abs=1e-15)
    assert all(type(value) is float for value in p)
    assert probabilities([3.0], 0.5) == [1.0]
    assert probabilities([3e38, -3e38], 0.5) == [1.0, 0.0]
    assert probabilities([-1e30] * 4, 5.0) == [0.25] * 4


def test_softmax_has_the_bits_of_an_exact_sum() -> None:
    rng = np.random.default_rng(0)
    for n in (2, 3, 7, 40, 255):
        for _ in range(200):
            logits = (rng.normal(size=n) * rng.choice([0.01, 1.0, 20.0])).astype(np.float32).tolist()
            temperature = float(rng.uniform(0.1, 5))
            assert probabilities(logits, temperature) == exact_softmax(logits, temperature)


def test_probabilities_come_in_the_order_of_the_options() -> None:
    expected = exact_softmax([1.0, 2.0, 3.0], 1.0)  # markers show options 2, 0, 1
    assert probabilities([3.0, 1.0, 2.0], 1.0, [2, 0, 1]) == expected
    for order in ([0, 1], [0, 1, 3], [0, 1, -1]):
        with pytest.raises(ValueError, match="option"):
            probabilities([3.0, 1.0, 2.0], 1.0, order)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_scores_that_are_not_finite(bad: float, place: int) -> None:
    logits = [0.0, 1.0, 2.0]
    logits[place] = bad
    assert probabilities(logits, 1.0) is None


def test_confidence() -> None:
    assert choice_confidence([1.0]) == 1.0 == score_confidence([1.0])
    assert choice_confidence([1.0, 0.0]) == 1.0 == score_confidence([0.0, 1.0])
    assert choice_confidence([0.5, 0.5]) == 0.0
    assert choice_confidence([0.7, 0.2, 0.1]) == pytest.approx((0.7 - 1 / 3) / (2 / 3))
    assert choice_confidence([1 / 3 - 1e-17] * 3) == 0.0
    # mode 1, distances 1, 0, 1, 2; D = (1.5 + 0.5 + 0.5 + 1.5) / 4
    assert score_confidence([0.1, 0.6, 0.2, 0.1]) == pytest.approx(1 - 0.5 / 1.0)
    assert score_confidence([0.5, 0.0, 0.5]) == 0.0  # further from the mode than chance
    assert score_confidence([0.25] * 4) == 0.0


# ------------------------------------------------------------------------------ answers


def test_choice() -> None:
    q = question(type="choice", criteria={"a": "x", "b": None, "c": "y"})
    p = [0.125, 0.5, 0.375]
    found = answer(q, sequence(3), p)
    assert found == {
        "type": "choice",
        "choice": "b",
        "probabilities": dict(zip("abc", p, strict=True)),
        "confidence": choice_confidence(p),
    }
    assert list(found["probabilities"]) == ["a", "b", "c"]  # type: ignore[typeddict-item]


def test_choice_gives_the_callers_own_label() -> None:
    q = question(type="choice", criteria=[7, 2.5, "x", True])
    for i, label in enumerate([7, 2.5, "x", True]):
        p = [0.125] * 4
        p[i] = 0.625
        found: Any = answer(q, None, p)
        assert found["choice"] is q.options[i].key
        assert found["choice"] == label
        assert type(found["choice"]) is type(label)
    assert answer(q, None, [0.25] * 4)["choice"] == 7  # type: ignore[typeddict-item]


def test_score() -> None:
    q = question(type="score", criteria=["low", {"a": 1.0}, 3])
    p = [0.125, 0.5, 0.375]
    found = answer(q, sequence(3), p)
    assert found == {
        "type": "score",
        "score": p[1] + 2 * p[2],
        "legend": {"0": "low", "1": '{"a": 1.0}', "2": "3"},
        "probabilities": {"0": p[0], "1": p[1], "2": p[2]},
        "confidence": score_confidence(p),
    }


def test_noul_is_the_probability_of_true() -> None:
    assert answer(question(type="noul"), sequence(2), [0.25, 0.75]) == {"type": "noul", "noul": 0.75}


def test_extra_fields_say_what_was_lost() -> None:
    q = question(type="noul")
    cut = sequence(2, state_tokens=90, state_tokens_used=7, options_distinct=1)
    found: Any = answer(q, cut, [0.25, 0.75])
    assert found["x_truncated"] == {"state_tokens": 90, "state_tokens_used": 7}
    assert found["x_options"] == {"options": 2, "distinct": 1}


def test_envelope() -> None:
    questions = parse_questions(
        {
            "z": {"type": "noul", "instructions": "?"},
            "a": {"type": "choice", "instructions": "?", "criteria": ["only"]},
        }
    )
    found = response("name", questions, [sequence(2), sequence(1)], [[0.5, 0.5], [1.0]], input_tokens=20)
    assert found["model"] == "name"
    assert list(found["answers"]) == ["z", "a"]
    assert found["usage"] == {"input_tokens": 20, "output_tokens": 0}
    assert json.loads(json.dumps(found))["answers"]["a"] == {
        "type": "choice", "choice": "only", "probabilities": {"only": 1.0}, "confidence": 1.0,
    }  # fmt: skip
    assert '"only": 1.0' in json.dumps(found)
    empty = response("name", [], [], [], input_tokens=0)
    assert (empty["answers"], empty["usage"]["input_tokens"]) == ({}, 0)
