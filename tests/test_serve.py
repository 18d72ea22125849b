"""`skyinfer serve` for correct clients: the answers of the model in the shapes that clients expect, models by name."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from serving import DRONE, PAINTED, Client, Serving, serving

import skyinfer
from skyinfer.errors import SkyinferError
from skyinfer.serve import scheduling
from skyinfer.serve.catalog import Catalog
from skyinfer.serve.options import Limits

KEY = "a-key-of-32-characters-0123456789"
MANY = {f"Queue {i:03d}": f"case {i}" for i in range(255)}
NOUL = {"type": "noul", "instructions": "Is it late?"}


@pytest.fixture(scope="module")
def model() -> skyinfer.Model:
    return skyinfer.load(PAINTED, grow=True)


@pytest.fixture(scope="module")
def server() -> Iterator[Serving]:
    with serving() as running:
        yield running


@pytest.fixture
def client(server: Serving) -> Iterator[Client]:
    with server.client() as client:
        yield client


# ---- answers


def test_an_answer_is_the_models(client: Client, model: skyinfer.Model) -> None:
    answer = client.post(DRONE)
    assert answer.status == 200
    assert answer.headers["content-type"] == "application/json"
    assert answer.json == model.decide(DRONE["state"], DRONE["questions"])
    assert list(answer.json["answers"]) == list(DRONE["questions"])


STATES: list[Any] = [
    "", "text", {"a": [1, 2.5, -0.0, 1e22, None, True]}, ["turn one", "turn two"], 42, 0.1, True,
    {"big": 2**70, "é": "日本 🎯", "escaped": "\u2028\"\\/"}, "word " * 400, ["word " * 400, "last"],
]  # fmt: skip


@pytest.mark.parametrize("ascii_only", [True, False])
def test_states_of_every_kind(client: Client, model: skyinfer.Model, ascii_only: bool) -> None:
    for state in STATES:
        body = json.dumps({"state": state, "questions": DRONE["questions"]}, ensure_ascii=ascii_only).encode()
        assert client.post(body).json == model.decide(state, DRONE["questions"])


def test_ids_neighbours_and_order_change_nothing(client: Client) -> None:
    alone = {qid: client.post({"state": "x", "questions": {qid: q}}).json for qid, q in DRONE["questions"].items()}
    together = client.post({"state": "x", "questions": DRONE["questions"]}).json["answers"]
    backwards = client.post({"state": "x", "questions": dict(reversed(DRONE["questions"].items()))}).json["answers"]
    renamed = client.post({"state": "x", "questions": {f"🎯 {q}.1": DRONE["questions"][q] for q in alone}}).json
    for qid, response in alone.items():
        assert response["answers"][qid] == together[qid] == backwards[qid] == renamed["answers"][f"🎯 {qid}.1"]
    assert list(backwards) == list(reversed(together))


def test_names_come_back_byte_for_byte(client: Client) -> None:
    names = [
        "cafe\u0301",
        "caf\u00e9",
        " leading",
        "tab\t",
        "\u0000",
        "🙂",
        "a\u200bb",
        '"quoted\\',
        "\ufeff",
        "\u2028",
    ]
    body = {"state": "x", "questions": {"q": {"type": "choice", "instructions": "?", "criteria": dict.fromkeys(names)}}}
    answer = client.post(body).json["answers"]["q"]
    assert list(answer["probabilities"]) == names
    assert answer["choice"] in names


def test_probabilities_are_json_floats(client: Client) -> None:
    body = {"state": "x", "questions": {"q": {"type": "choice", "instructions": "?", "criteria": ["only"]}}}
    raw = client.post(body).body
    assert b'"only":1.0' in raw
    assert b'"confidence":1.0' in raw


def test_labels_are_names_in_json(client: Client, model: skyinfer.Model) -> None:
    def ask(criteria: list[Any]) -> Any:
        question = {"type": "choice", "instructions": "?", "criteria": criteria}
        return question, client.post({"state": "x", "questions": {"q": question}})

    question, answer = ask([1, 2.5, False, "one"])
    given = answer.json["answers"]["q"]
    assert list(given["probabilities"]) == ["1", "2.5", "false", "one"]
    expected = model.decide("x", {"q": question})["answers"]["q"]
    assert list(given["probabilities"].values()) == list(expected["probabilities"].values())
    assert given["choice"] == json.dumps(expected["choice"]).strip('"')
    for colliding, loc in [([1, "1"], 1), (["true", True], 1), (["a", "1.5", 1.5], 2)]:
        _, answer = ask(colliding)
        assert answer.status == 422
        assert answer.json["detail"][0]["loc"] == ["body", "questions", "q", "criteria", loc]


@pytest.mark.parametrize("kind", ["noul", "choice", "score"])
def test_instructions_may_be_missing(client: Client, kind: str) -> None:
    criteria = {"noul": {"true": "yes"}, "choice": ["a", "b"], "score": ["a", "b"]}[kind]
    question = {"type": kind, "criteria": criteria}
    answers = [
        client.post({"state": "x", "questions": {"q": {**question, **instructions}}}).json
        for instructions in ({}, {"instructions": None}, {"instructions": ""})
    ]
    assert answers[0] == answers[1] == answers[2]
    assert answers[0]["answers"]["q"]["type"] == kind
    assert answers[0] != client.post({"state": "x", "questions": {"q": {**question, "instructions": "Other?"}}}).json


def test_255_options(client: Client, model: skyinfer.Model) -> None:
    question = {"type": "choice", "instructions": "Which queue?", "criteria": MANY}
    answer = client.post({"state": "x", "questions": {"q": question}}).json["answers"]["q"]
    assert answer == model.decide("x", {"q": question})["answers"]["q"]
    assert answer["x_grown"]["tokens"] > answer["x_grown"]["max_tokens"] == 256


def test_truncation_is_reported(client: Client) -> None:
    answer = client.post({"state": "word " * 500, "questions": {"q": NOUL}}).json["answers"]["q"]
    cut = answer["x_truncated"]
    assert cut["state_tokens"] > cut["state_tokens_used"] > 100


def test_a_batch_is_one_request_for_each_state(client: Client) -> None:
    states = ["a", {"b": 1}, ["c"], "word " * 300]
    answer = client.post({"states": states, "questions": DRONE["questions"]}, "/v1/systemone/batch").json
    assert answer.keys() == {"model", "results", "usage"}
    singles = [client.post({"state": state, "questions": DRONE["questions"]}).json for state in states]
    assert answer["results"] == [{"answers": one["answers"], "usage": one["usage"]} for one in singles]
    assert answer["usage"]["input_tokens"] == sum(one["usage"]["input_tokens"] for one in singles)
    assert client.post({"states": [], "questions": DRONE["questions"]}, "/v1/systemone/batch").json["results"] == []


def test_a_faulty_state_of_a_batch_is_named(client: Client) -> None:
    answer = client.post({"states": ["a", None], "questions": DRONE["questions"]}, "/v1/systemone/batch")
    assert answer.status == 422
    assert answer.json["detail"][0]["loc"] == ["body", "states", 1]
    for states in ("text", {"a": 1}, None):
        answer = client.post({"states": states, "questions": DRONE["questions"]}, "/v1/systemone/batch")
        assert answer.json["detail"][0]["loc"] == ["body", "states"]


def test_images_are_refused_and_not_ignored(client: Client) -> None:
    answer = client.post(b"--x\r\n", content_type="multipart/form-data; boundary=x")
    assert answer.status == 415
    assert answer.json["detail"]["error_type"] == "unsupported_media_type"


# ---- many clients at once


@pytest.mark.parametrize("inline", [True, False])
def test_many_clients_get_their_own_answers(
    monkeypatch: pytest.MonkeyPatch, model: skyinfer.Model, inline: bool
) -> None:
    monkeypatch.setattr(scheduling, "INLINE_SECONDS", 10.0 if inline else 0.0)
    states = [f"vy {i} dx {3 * i} " + "up 9 " * (7 * i) for i in range(12)]
    asked = [
        {"state": s, "questions": dict(list(DRONE["questions"].items())[: 1 + i % 3])} for i, s in enumerate(states)
    ]
    expected = [model.decide(one["state"], one["questions"]) for one in asked]
    wrong: list[Any] = []

    def talk(port: int, offset: int) -> None:
        client = Client(port)
        for i in range(24):
            number = (i + offset) % len(asked)
            answer = client.post(asked[number])
            if answer.status != 200 or answer.json != expected[number]:
                wrong.append(answer)
        client.close()

    with serving() as running:
        threads = [threading.Thread(target=talk, args=(running.port, i)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert running.app.admission.waiting == 0
    assert not wrong


def test_a_body_that_is_not_small_is_read_off_the_loop(client: Client, model: skyinfer.Model) -> None:
    body = {"state": ["turn of words " * 4000, "last"], "questions": DRONE["questions"]}
    assert client.post(body).json == model.decide(body["state"], DRONE["questions"])


# ---- models


# what public clients send unless their user sets a name: TypeSafe's SDKs, OpenRouter, Vercel, clients of laya-serve
CLIENTS_NAMES = [
    "jev-latest", "jev-preview", "jev-1", "jev-1.13", "jev-1.13.0", "Jev", "typesafe/jev-1.13-20260917",
    "~typesafe/jev-latest", "typesafe-ai/jev", "jev:latest", "laya", "Laya", "laya-multilingual",
    "laya-typed-decisions", "convaiinnovations/laya", "laya:convaiinnovations/laya", "laya-rl-agent", "english",
    "multilingual",
    "typed-decisions", "default", "auto",
]  # fmt: skip


@pytest.mark.parametrize("name", [None, "painted", *CLIENTS_NAMES])
def test_names_of_the_model(client: Client, name: str | None) -> None:
    assert client.post({**DRONE, "model": name}).json["model"] == "painted"


def test_names_that_clients_send_can_be_refused() -> None:
    with serving(strict_models=True) as running, running.client() as client:
        for name in CLIENTS_NAMES:
            answer = client.post({**DRONE, "model": name})
            assert answer.status == 404
            assert "painted" in answer.json["detail"]["message"]
        for known in (None, "painted"):
            assert client.post({**DRONE, "model": known}).json["model"] == "painted"
        assert client.get("/v1/models").json["data"][0]["aliases"] == []
    with serving((f"laya={PAINTED}",), strict_models=True) as running, running.client() as client:
        assert client.post({**DRONE, "model": "laya"}).status == 200


def test_a_batch_that_is_too_large_tells_how_many_states_fit() -> None:
    limits = Limits(tokens=1000)
    with serving(limits=limits) as running, running.client() as client:
        batch = {"states": [f"{i} up 9 dn 7" for i in range(50)], "questions": {"q": NOUL}}
        answer = client.post(batch, "/v1/systemone/batch")
        assert answer.status == 413
        (fit,) = re.findall(r"the first (\d+) states fit", answer.json["detail"]["message"])
        assert client.post({**batch, "states": batch["states"][: int(fit)]}, "/v1/systemone/batch").status == 200
        assert client.post({**batch, "states": batch["states"][: int(fit) + 1]}, "/v1/systemone/batch").status == 413
        questions = {f"q{i}": NOUL for i in range(100)}
        for body, path in [
            ({"state": "x", "questions": questions}, "/v1/systemone"),
            ({"states": ["x"], "questions": questions}, "/v1/systemone/batch"),
        ]:
            answer = client.post(body, path)
            assert answer.status == 413
            assert "fewer" in answer.json["detail"]["message"]


def test_a_path_is_no_name(client: Client) -> None:
    names = [str(PAINTED), "examples/painted", "../painted", "/etc/passwd", "", "Painted", "gpt-5", "jevons", "../laya"]
    for name in [*names, "laya/../../etc", "~/laya", "./jev", "jev\n", "jev-" + "x" * 300, "LAYA\0"]:
        answer = client.post({**DRONE, "model": name})
        assert answer.status == 404
        assert answer.json["detail"]["error_type"] == "not_found_error"
        assert "painted" in answer.json["detail"]["message"]
    assert client.post({**DRONE, "model": 7}).json["detail"][0]["loc"] == ["body", "model"]


def test_several_models_by_name(model: skyinfer.Model) -> None:
    with serving((f"first={PAINTED}", str(PAINTED)), temperature_clamp=True) as running, running.client() as client:
        for name, answers_as in [(None, "first"), ("first", "first"), ("painted", "painted")]:
            response = client.post({**DRONE, "model": name}).json
            assert response["model"] == answers_as
            assert response["answers"] == model.decide(DRONE["state"], DRONE["questions"])["answers"]
        for unknown in ("second", "jev-1.13.0", "laya", "default"):
            answer = client.post({**DRONE, "model": unknown})
            assert answer.status == 404
            assert answer.json["detail"]["message"].endswith("there are first, painted")
        assert client.post({**DRONE, "model": "jev-latest"}).json["model"] == "first"
        listed = client.get("/v1/models").json
        assert (
            [one["name"] for one in listed["models"]] == [one["id"] for one in listed["data"]] == ["first", "painted"]
        )
    with serving((f"first={PAINTED}", f"jev-latest={PAINTED}")) as running, running.client() as client:
        assert client.post(DRONE).json["model"] == "jev-latest"
        assert [one["aliases"] for one in client.get("/v1/models").json["data"]] == [[], []]
    with pytest.raises(SkyinferError, match="another model is called 'painted'"):
        Catalog.load([str(PAINTED), str(PAINTED)], threads=None, temperature_clamp=True)
    with pytest.raises(SkyinferError, match="NAME=MODEL"):
        Catalog.load(["=x"], threads=None, temperature_clamp=True)


def test_the_models_are_listed_for_both_kinds_of_clients(client: Client) -> None:
    listed = client.get("/v1/models").json
    (entry,), (data,) = listed["models"], listed["data"]
    assert entry["name"] == "painted"
    assert "jev-latest" in entry["aliases"]
    assert len(entry["release_date"]) == len("2026-09-15")
    assert isinstance(entry["description"], str)
    assert (listed["object"], data["object"], data["id"]) == ("list", "model", "painted")
    assert data["meta"]["n_params"] == 243393


# ---- clients that people use


@pytest.mark.parametrize("key", [None, KEY])
def test_jevcompat(key: str | None) -> None:
    from jevcompat import runner

    with serving(api_key=key) as running:
        report = runner.run(running.address, key=key, timeout=60)
    failed = {result.id: result.findings for result in report.results if result.status == "fail"}
    assert not failed
    assert report.verdict == "conformant"
    # of two requirements on keys one applies; two more can be tested only where there is a key
    assert report.count("MUST", "pass") == 32
    assert report.count("SHOULD", "pass") == (13 if key is None else 15)


def test_the_official_client() -> None:
    from typesafe_sdk import Choice, Noul, Score, TypeSafeClient, TypeSafeUnprocessableEntityError

    with serving(api_key=KEY) as running, TypeSafeClient(api_key=KEY, base_url=running.address) as client:
        (listed,) = client.models.list().models
        assert listed.name == "painted"
        response = client.system_one(
            state={"document": "I was charged twice. " * 80},  # long enough to be compressed where zstd is there
            questions={
                "team": Choice(instructions="Which team?", criteria={"billing": "invoices", "technical": None}),
                "angry": Score(instructions="How angry?", criteria=["calm", {"label": "angry"}]),
                "refund": Noul(criteria={"true": "wants money back"}),
            },
        )
        assert response.choices["team"].choice in ("billing", "technical")
        assert sum(response.scores["angry"].probabilities.values()) == pytest.approx(1)
        assert 0 < response.nouls["refund"].noul < 1
        assert response.model == "painted"
        with pytest.raises(TypeSafeUnprocessableEntityError, match="team") as caught:
            client.system_one(state="x", questions={"team": Choice(instructions="?", criteria={**MANY, "more": None})})
        assert caught.value.request_id
