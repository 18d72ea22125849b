"""A server of an s2 model: the answers of the library, and options that are encoded apart from the event loop."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from checkpoints import SIZES, paint
from serving import DRONE, Client, serving

import skyinfer
from skyinfer.serve.catalog import Catalog
from skyinfer.serve.options import Limits
from skyinfer.serve.parsing import RequestParser, TakesLong
from skyinfer.serve.refusals import Refusal

STATES = [DRONE["state"], "up 1 dn 2", {"vy": 3}, ["one", "two"]]
WIDE = {"type": "choice", "instructions": "Which one?", "criteria": [f"option number {i}" for i in range(100)]}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return paint(tmp_path_factory.mktemp("s2") / "sky", **SIZES["pico"], architecture="s2", temperature_by_options={})


@pytest.fixture(scope="module")
def model(directory: Path) -> skyinfer.Model:
    return skyinfer.load(directory)


def test_answers_are_the_librarys(directory: Path, model: skyinfer.Model) -> None:
    with serving((str(directory),)) as running, running.client() as client:
        for state in STATES:
            expected = model.decide(state, DRONE["questions"])
            found = client.post({**DRONE, "state": state}).json
            assert (found["answers"], found["usage"]) == (expected["answers"], expected["usage"])
        batch = client.post({"states": STATES, "questions": DRONE["questions"]}, "/v1/systemone/batch").json
        expected_many = model.decide_many(STATES, DRONE["questions"])
        assert [one["answers"] for one in batch["results"]] == [one["answers"] for one in expected_many]
        assert batch["usage"]["input_tokens"] == sum(one["usage"]["input_tokens"] for one in expected_many)
        metrics = client.get("/metrics").body.decode()
        total = 2 * batch["usage"]["input_tokens"]
        assert f'skyinfer_input_tokens_total{{model="{model.name}"}} {float(total)}' in metrics


def test_merged_passes_give_the_same_answers(directory: Path, model: skyinfer.Model) -> None:
    requests = [
        {"state": [f"turn {i}"] * (i % 7), "questions": {**DRONE["questions"], "wide": WIDE}} for i in range(60)
    ]
    with serving((str(directory),)) as running:

        def ask(request: dict[str, Any]) -> Any:
            client = Client(running.port)
            try:
                return client.post(request).json["answers"]
            finally:
                client.close()

        with ThreadPoolExecutor(16) as pool:
            found = list(pool.map(ask, requests))
    assert found == [model.decide(one["state"], one["questions"])["answers"] for one in requests]


@pytest.fixture
def parser(directory: Path) -> RequestParser:
    catalog = Catalog.load([str(directory)], threads=None, temperature_clamp=True)
    return RequestParser(catalog, Limits(tokens=1500), strict_length=False)


def test_unseen_options_are_not_encoded_in_the_event_loop(parser: RequestParser) -> None:
    body = json.dumps(DRONE).encode()
    asked: list[int] = []

    def seconds_of(model: str, n_tokens: int) -> float:
        asked.append(n_tokens)
        return n_tokens / 1000

    with pytest.raises(TakesLong) as caught:
        parser.single(body, seconds_of)
    (n_tokens,) = asked
    assert caught.value.seconds == n_tokens / 1000
    made = parser.single(body)  # in another thread
    assert made.input_tokens == n_tokens + len(made.states[0].ids) + 2
    assert parser.single(body, seconds_of).prepared is made.prepared  # kept: nothing is left to encode
    assert asked == [n_tokens]


def test_options_of_more_tokens_than_a_request_may_take_are_refused(parser: RequestParser) -> None:
    body = json.dumps({"state": "x", "questions": {"wide": WIDE}}).encode()
    with pytest.raises(Refusal, match="the options of these questions take") as caught:
        parser.single(body)
    assert caught.value.status == 413
    with pytest.raises(Refusal):
        parser.batch(json.dumps({"states": ["x"], "questions": {"wide": WIDE}}).encode())
