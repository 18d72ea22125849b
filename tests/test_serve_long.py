"""Over HTTP: states in windows (`x_long`) and answers below a threshold (`x_min_confidence`)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from serving import DRONE, PAINTED, Limits, Serving, serving

import skyinfer

TEXT = "vy 0 dx 36 up 9 dn 7 nxt 10 alt 32 and on " * 200
QUESTIONS = DRONE["questions"]
MODEL = skyinfer.load(PAINTED, grow=True)


@pytest.fixture(scope="module")
def server() -> Iterator[Serving]:
    with serving(limits=Limits(tokens=100_000), strict_length=True) as running:
        yield running


@pytest.mark.parametrize("asked", [True, {}, {"window": 40}, {"window": 40, "stride": 40}, {"stride": 60}])
def test_windows_over_http_are_those_of_decide_long(server: Serving, asked: Any) -> None:
    sizes = {} if asked is True else asked
    with server.client() as client:
        answer = client.post({"state": TEXT, "questions": QUESTIONS, "x_long": asked})
        assert answer.status == 200, answer.body
        expected = MODEL.decide_long(TEXT, QUESTIONS, **sizes)
        assert answer.json["answers"] == expected["answers"]
        assert answer.json["usage"] == expected["usage"]
        assert answer.json["usage"]["x_windows"] > 1
        short = client.post({"state": "vy 0", "questions": QUESTIONS, "x_long": asked})
        assert short.json["answers"] == MODEL.decide("vy 0", QUESTIONS)["answers"]
        assert client.post({"state": "vy 0", "questions": QUESTIONS, "x_long": None}).status == 200


@pytest.mark.parametrize("least", [0, 0.6, 1.0, {"default": 0.5, "noul:2": 0.99}])
def test_abstentions_over_http_are_those_of_decide(server: Serving, least: Any) -> None:
    with server.client() as client:
        answer = client.post({"state": DRONE["state"], "questions": QUESTIONS, "x_min_confidence": least})
        expected = MODEL.decide(DRONE["state"], QUESTIONS, min_confidence=least)["answers"]
        assert answer.json["answers"] == expected
        both = client.post(
            {"states": [DRONE["state"], "vy 1"], "questions": QUESTIONS, "x_min_confidence": least},
            "/v1/systemone/batch",
        )
        assert both.json["results"][0]["answers"] == expected


@pytest.mark.parametrize(
    ("fields", "loc"),
    [
        ({"x_min_confidence": 1.5}, ["x_min_confidence"]),
        ({"x_min_confidence": "high"}, ["x_min_confidence"]),
        ({"x_min_confidence": {}}, ["x_min_confidence"]),
        ({"x_min_confidence": {"choice:4": 0.5}}, ["x_min_confidence"]),
        ({"x_min_confidence": {"choice:2": -1}}, ["x_min_confidence", "choice:2"]),
        ({"x_min_confidence": True}, ["x_min_confidence"]),
        ({"x_long": 512}, ["x_long"]),
        ({"x_long": {"size": 3}}, ["x_long"]),
        ({"x_long": {"window": 0}}, ["x_long", "window"]),
        ({"x_long": {"window": 20, "stride": 30}}, ["x_long", "stride"]),
        ({"x_long": True, "x_min_confidence": 0.5}, ["x_min_confidence"]),
    ],
)
def test_what_is_faulty_is_refused_with_its_path(server: Serving, fields: Any, loc: list[str]) -> None:
    with server.client() as client:
        answer = client.post({"state": TEXT, "questions": QUESTIONS, **fields})
        assert answer.status == 422
        assert answer.json["detail"][0]["loc"] == ["body", *loc]


def test_windows_beyond_the_limit_of_tokens_and_of_a_batch_are_refused(server: Serving) -> None:
    with server.client() as client:
        many = client.post({"state": TEXT, "questions": QUESTIONS, "x_long": {"window": 1}})
        assert many.status == 413
        batch = client.post({"states": ["a"], "questions": QUESTIONS, "x_long": True}, "/v1/systemone/batch")
        assert batch.status == 422
        assert batch.json["detail"][0]["loc"] == ["body", "x_long"]
        # a whole state that is too long is refused where no windows are asked for
        assert client.post({"state": TEXT, "questions": QUESTIONS}).status == 413
