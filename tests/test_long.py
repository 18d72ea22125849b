"""States in windows and answers below a threshold, against what the Laya runtime was recorded to do, and over HTTP."""

from __future__ import annotations

import functools
import json
import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import Run
from golden.recipes import from_literal, painted, recorded

import skyinfer
from skyinfer import RequestError

RECORDED = recorded("long.json")
EXAMPLES = Path(__file__).parents[1] / "examples"
PAINTED = EXAMPLES / "painted"
DRONE: dict[str, Any] = json.loads((EXAMPLES / "request.json").read_text("utf-8"))
# the runtime rounds to four decimals
ROUNDED = 6e-5


@functools.cache
def _model(name: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the clamped temperatures are meant
        return skyinfer.load(painted(name))


@pytest.mark.filterwarnings("ignore:a window of:RuntimeWarning")
@pytest.mark.parametrize("case", [pytest.param(case, id=case["name"]) for case in RECORDED["long"]])
def test_windows_are_the_runtimes(case: dict[str, Any]) -> None:
    model, asked = _model(case["checkpoint"]), from_literal(case["asked"])
    state, questions = asked["state"], asked["questions"]
    ask = functools.partial(model.decide_long, state, questions, asked["window"], asked["stride"])
    if "refused" in case:
        with pytest.raises(RequestError):
            ask()
        return
    found, laya = ask(), from_literal(case["envelope"])
    assert found["usage"]["x_windows"] == laya["usage"]["windows"]
    assert found["usage"]["input_tokens"] == laya["usage"]["input_tokens"]
    for name, theirs in laya["answers"].items():
        ours = found["answers"][name]
        if ours["type"] == "noul":
            assert ours["noul"] == pytest.approx(theirs["noul"], abs=ROUNDED)
        else:
            assert list(ours["probabilities"].values()) == pytest.approx(
                list(theirs["probabilities"].values()), abs=ROUNDED
            )
        assert ours.get("x_window") == theirs.get("window"), name


@pytest.mark.parametrize("case", RECORDED["thresholds"], ids=lambda case: case["min_confidence"])
def test_thresholds_are_the_runtimes(case: dict[str, Any]) -> None:
    model, least = _model("byte"), from_literal(case["min_confidence"])
    if "refused" in case:
        with pytest.raises(RequestError, match="min_confidence"):
            model.decide("a state", DRONE["questions"], min_confidence=least)
        return
    asked = from_literal(case["asked"])
    plain = model.decide(asked["state"], asked["questions"])["answers"]
    found = model.decide(asked["state"], asked["questions"], min_confidence=least)["answers"]
    for name, theirs in from_literal(case["answers"]).items():
        marks = {"x_min_confidence": theirs["abstention_threshold"]}
        if theirs["abstention"] == "abstained":
            marks["x_abstained"] = True
        assert found[name] == plain[name] | marks  # the answer stays


def test_a_threshold_that_is_met_exactly_is_met() -> None:
    model = _model("byte")
    for name, answer in model.decide(DRONE["state"], DRONE["questions"])["answers"].items():
        top = max(answer["noul"], 1 - answer["noul"]) if "noul" in answer else max(answer["probabilities"].values())
        asked = {name: DRONE["questions"][name]}
        for least, abstains in ((top, False), (np.float64(top), False), (math.nextafter(top, 1), True)):
            found = model.decide(DRONE["state"], asked, min_confidence=least)["answers"][name]
            assert ("x_abstained" in found) == abstains


def test_every_way_to_ask_marks_the_same() -> None:
    model, least = _model("byte"), {"choice:2": 0.6, "default": 0.55}
    once = model.decide(DRONE["state"], DRONE["questions"], min_confidence=least)
    compiled = model.compile(DRONE["questions"])
    assert compiled(DRONE["state"], min_confidence=least) == once
    assert compiled.many([DRONE["state"]] * 2, min_confidence=least) == [once] * 2
    assert model.decide_many([DRONE["state"]], DRONE["questions"], min_confidence=least) == [once]
    assert compiled.many([], min_confidence=least) == []
    with pytest.raises(RequestError, match="min_confidence"):
        compiled.many([], min_confidence=2)


def test_a_state_that_fits_is_read_as_decide_reads_it() -> None:
    model = _model("byte")
    for state in ("short", [1, 2], {"a": 1}, "", 0):
        expected = model.decide(state, DRONE["questions"])
        expected["usage"]["x_windows"] = 1
        assert model.decide_long(state, DRONE["questions"]) == expected
    timed = model.decide_long("short", DRONE["questions"], timing=True)
    assert timed["micros"] > 0
    assert model.decide_long("short", {})["answers"] == {}
    with pytest.raises(RequestError, match="state: must not be null"):
        model.decide_long(None, DRONE["questions"])


@pytest.mark.parametrize(
    ("window", "stride", "loc"),
    [(0, None, "window"), (-5, None, "window"), (True, None, "window"), (1.5, None, "window"), ("9", None, "window"),
     (20, 21, "stride"), (20, 0, "stride"), (None, 10**9, "stride"), (None, [], "stride")],
)  # fmt: skip
def test_windows_that_would_skip_tokens_are_refused(window: Any, stride: Any, loc: str) -> None:
    with pytest.raises(RequestError) as caught:
        _model("byte").decide_long("a b c " * 300, DRONE["questions"], window, stride)
    assert caught.value.loc == (loc,)


def test_a_window_wider_than_its_room_is_shortened_with_a_warning() -> None:
    model = _model("byte")
    with pytest.warns(RuntimeWarning, match="a window of 4000 tokens does not fit"):
        found = model.decide_long("a b c " * 300, DRONE["questions"], 4000)
    for answer in found["answers"].values():
        assert "x_truncated" not in answer
        assert answer["x_window"]["count"] == found["usage"]["x_windows"] > 1


# ------------------------------------------------------------------------------------------ the command


def test_the_command_reads_windows_and_marks_answers(run: Run, tmp_path: Path) -> None:
    model = skyinfer.load(PAINTED)
    path = tmp_path / "request.json"

    def said(*arguments: str, **fields: Any) -> Any:
        path.write_text(json.dumps({**DRONE, "state": "a b c " * 300, **fields}), "utf-8")
        result = run("decide", path, "-m", PAINTED, *arguments)
        assert result.code == 0, result.err
        return json.loads(result.out)

    expected = model.decide_long("a b c " * 300, DRONE["questions"], 30, 10)
    assert said("--long", "--window", "30", "--stride", "10") == expected
    assert said(x_long={"window": 30, "stride": 10}) == expected
    assert said(x_long=False) == said(x_long=None) == said()
    marked = model.decide("a b c " * 300, DRONE["questions"], min_confidence=0.9)
    assert said("--min-confidence", "0.9") == said(x_min_confidence=0.9) == marked
    assert said("--min-confidence", "0.9", x_min_confidence=0.1) == marked

    for arguments in (["--window", "3"], ["--long", "--stride", "0"], ["--min-confidence", "nan"]):
        assert run("decide", path, *arguments).code == 2
    path.write_text(json.dumps(DRONE), "utf-8")
    # against each other, or a window that the model would take: the command line is at fault, not the request
    for arguments, named in (
        (["--long", "--min-confidence", "0.9"], "--min-confidence does not go with --long"),
        (["--long", "--window", "5", "--stride", "9"], "--stride 9 is longer than --window 5"),
        (["--long", "--stride", "9000"], "--stride: is 9000 for windows of"),
        (["--min-confidence", "choice:2=0.9"], "one number only"),
    ):
        result = run("decide", path, *arguments)
        assert (result.code, result.out) == (2, "")
        assert named in result.err
    for fields in ({"x_long": 3}, {"x_long": {"size": 3}}, {"x_min_confidence": 2},
                   {"x_long": True, "x_min_confidence": 0.5}):  # fmt: skip
        path.write_text(json.dumps(DRONE | fields), "utf-8")
        result = run("decide", path)
        assert (result.code, result.out) == (1, "")
        assert next(iter(reversed(fields))) in result.err
