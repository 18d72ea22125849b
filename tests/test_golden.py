"""skyinfer against what the Laya runtime was recorded to do: tokens, refusals, scores and answers.

The golden files hold every input of inputs.py; golden/README.md says how they are made.
"""

from __future__ import annotations

import dataclasses
import functools
import warnings
from typing import Any

import numpy as np
import pytest
import sequences
from golden.recipes import from_literal, painted, recorded, sample_of

import skyinfer
from skyinfer import RequestError
from skyinfer.core import border
from skyinfer.schema import QUESTION_TYPES

TEXT = recorded("text.json")["cases"]
ANSWERS = recorded("answers.json")["cases"]
# What the issue allows against the runtime, whose own float32 rounding is most of it.
LOGIT_BOUND, PROBABILITY_BOUND = 1e-4, 1e-5
ACTIVATION_BOUND = 4e-5  # of an activation's root mean square


FORWARD = {forward["checkpoint"]: forward for forward in recorded("forward.json")["checkpoints"]}
ISAS = [name for name in border.isa_names() if border.isa_supported(name)]


@functools.cache
def _model(name: str, isa: str | None = None) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the clamped temperatures are meant
        return skyinfer.load(painted(name), isa=isa)


def _named(cases: list[dict[str, Any]]) -> list[Any]:
    return [pytest.param(case, id=f"{case['checkpoint']}: {case['name']}") for case in cases]


@pytest.mark.filterwarnings("ignore:question .* ignored:RuntimeWarning")  # the runtime ignores them without a word
@pytest.mark.parametrize("case", _named([case for case in TEXT if "sequences" in case]))
def test_tokens_are_the_runtimes(case: dict[str, Any]) -> None:
    request = from_literal(case["request"])
    sequences = _model(case["checkpoint"]).encode(request["state"], request["questions"])
    assert list(sequences) == list(request["questions"])
    for sequence, expected in zip(sequences.values(), case["sequences"], strict=True):
        # nothing grows where nobody asks for it (test_grown.py), and in s1 no option has a sequence of its own
        assert expected.keys() | {"grown_past", "option_ids"} == {field.name for field in dataclasses.fields(sequence)}
        assert sequence.grown_past is None
        assert {key: getattr(sequence, key) for key in expected} == expected
        assert sequence.truncated == (expected["state_tokens_used"] < expected["state_tokens"])


@pytest.mark.parametrize("case", _named([case for case in TEXT if "refused" in case]))
def test_what_the_runtime_refuses_is_refused(case: dict[str, Any]) -> None:
    request = from_literal(case["request"])
    with pytest.raises(RequestError) as caught:
        _model(case["checkpoint"]).encode(request["state"], request["questions"])
    assert len(caught.value.message) > 10
    assert caught.value.loc[0] in ("state", "questions")


@pytest.mark.parametrize("case", _named(ANSWERS))
def test_answers_are_the_runtimes(case: dict[str, Any]) -> None:
    model, request = _model(case["checkpoint"]), from_literal(case["request"])
    state, questions = request["state"], request["questions"]
    laya = from_literal(case["envelope"])
    envelope = model.decide(state, questions)
    logits = model.logits(state, questions)

    assert envelope["usage"]["input_tokens"] == laya["usage"]["input_tokens"]
    assert envelope["usage"]["output_tokens"] == 0
    assert list(envelope["answers"]) == list(laya["answers"]) == list(logits) == list(questions)
    for question_id, detail in zip(questions, case["details"], strict=True):
        ours, theirs = envelope["answers"][question_id], laya["answers"][question_id]
        assert logits[question_id].dtype == np.float32
        _close(logits[question_id], detail["logits"], LOGIT_BOUND)
        p = detail["probabilities"]
        if theirs["type"] == "noul":
            _close(ours["noul"], p[1], PROBABILITY_BOUND)
            _close(ours["noul"], theirs["noul"], 1e-4)
            continue
        # as written, since 1, 1.0 and True are equal
        assert repr(list(ours["probabilities"])) == repr(list(theirs["probabilities"]))
        assert all(type(value) is float for value in ours["probabilities"].values())
        assert sum(ours["probabilities"].values()) == pytest.approx(1.0, abs=1e-12)
        _close(list(ours["probabilities"].values()), p, PROBABILITY_BOUND)
        _close(list(ours["probabilities"].values()), list(theirs["probabilities"].values()), 1e-4)
        if theirs["type"] == "choice":
            assert repr(ours["choice"]) == repr(theirs["choice"])
            _close(ours["confidence"], _choice_confidence(p), 4 * PROBABILITY_BOUND)
        else:
            assert ours["legend"] == theirs["legend"]
            _close(ours["score"], theirs["score"], 1e-4 * len(p))
            _close(ours["confidence"], _score_confidence(p), 4 * PROBABILITY_BOUND * len(p))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", FORWARD)
def test_scores_of_ready_sequences(name: str, isa: str) -> None:
    """Lengths on both sides of the window's edge, alone and packed with others: the runtime's scores, and
    the same bits either way."""
    cases = FORWARD[name]["cases"]
    alone = [_run(name, isa, [case])[0] for case in cases]
    for case, scores in zip(cases, alone, strict=True):
        _close(scores, case["logits"], LOGIT_BOUND)
    for batch in (batch["cases"] for batch in FORWARD[name]["batches"]):
        for index, scores in zip(batch, _run(name, isa, [cases[i] for i in batch]), strict=True):
            assert scores.tobytes() == alone[index].tobytes(), (batch, index)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", FORWARD)
def test_activations_are_the_runtimes(name: str, isa: str) -> None:
    recorded_here = FORWARD[name]["activations"]
    case = FORWARD[name]["cases"][recorded_here["case"]]
    ours: dict[str, np.ndarray] = {}
    _run(name, isa, [case], ours)
    assert recorded_here["values"].keys() - ours.keys() == {"output_norm"}  # one step with "typed"
    last = f"head.{_model(name).config.n_decision_blocks - 1}."
    for activation, value in recorded_here["values"].items():
        a = ours.get(activation)
        if a is None:
            continue
        if activation.startswith(last) and activation != f"{last}attn_norm":
            assert len(a) == len(case["markers"])  # there the runtime has every row
            continue
        assert list(a.shape) == value["shape"], activation
        sample = a[np.ix_(*sample_of(a.shape))].ravel()
        bound = ACTIVATION_BOUND * value["rms"]
        np.testing.assert_allclose(sample, value["sample"], rtol=0, atol=bound, err_msg=activation)


def _run(name: str, isa: str, cases: list[dict[str, Any]], trace: dict[str, Any] | None = None) -> list[np.ndarray]:
    model = _model(name, isa)
    work = [(case["ids"], case["markers"], QUESTION_TYPES.index(case["type"])) for case in cases]
    return sequences.run(model, work, trace)


def _close(ours: Any, theirs: Any, bound: float) -> None:
    np.testing.assert_allclose(np.asarray(ours), np.asarray(theirs), rtol=0, atol=bound)


def _choice_confidence(p: list[float]) -> float:
    """TypeSafe's: how far the most probable option stands above chance."""
    n = len(p)
    return 1.0 if n == 1 else max(0.0, (max(p) - 1 / n) / (1 - 1 / n))


def _score_confidence(p: list[float]) -> float:
    """TypeSafe's: the mean distance from the mode, against that of equal probabilities."""
    n, mode = len(p), p.index(max(p))
    if n == 1:
        return 1.0
    spread = sum(abs(i - (n - 1) / 2) for i in range(n)) / n
    return max(0.0, 1.0 - sum(value * abs(i - mode) for i, value in enumerate(p)) / spread)


def test_every_input_of_the_list_is_recorded() -> None:
    """Both tokenizers see the same inputs, and some are refused in each of the two ways."""
    names = {kind: {c["name"] for c in TEXT if c["checkpoint"].startswith(kind)} for kind in ("byte", "metaspace")}
    assert names["byte"] == names["metaspace"]
    assert len(names["byte"]) > 200
    assert {c["refused"]["error"] for c in TEXT if "refused" in c} == {"ValueError", "TypeError"}
