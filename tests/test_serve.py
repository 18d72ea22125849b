"""`skyinfer serve` for clients that mean well: the answers of the model, the shapes that they expect, keys, ids."""

from __future__ import annotations

import contextlib
import gzip
import json
import re
import socket
import sys
import threading
import time
import zlib
from collections.abc import Iterator
from typing import Any

import pytest
from serving import DRONE, PAINTED, ROOT, Client, Process, Serving, serving

import skyinfer
from skyinfer.errors import SkyinferError
from skyinfer.serve import deciding
from skyinfer.serve.catalog import Catalog
from skyinfer.serve.options import _LIMIT_FLAGS, Limits

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


@pytest.fixture(scope="module")
def locked() -> Iterator[Serving]:
    with serving(api_key=KEY, openapi=True, error_style="llama", cors=("https://pages.example",)) as running:
        yield running


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
        client.post({"state": "x", "questions": {"q": {**question, **said}}}).json
        for said in ({}, {"instructions": None}, {"instructions": ""})
    ]
    assert answers[0] == answers[1] == answers[2]
    assert answers[0]["answers"]["q"]["type"] == kind
    assert answers[0] != client.post({"state": "x", "questions": {"q": {**question, "instructions": "Other?"}}}).json


def test_255_options(client: Client, model: skyinfer.Model) -> None:
    question = {"type": "choice", "instructions": "Which queue?", "criteria": MANY}
    answer = client.post({"state": "x", "questions": {"q": question}}).json["answers"]["q"]
    assert answer == model.decide("x", {"q": question})["answers"]["q"]
    assert answer["x_grown"]["tokens"] > answer["x_grown"]["max_tokens"] == 256


def test_what_was_cut_is_said(client: Client) -> None:
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


@pytest.mark.parametrize("coding", ["gzip", "deflate", "zstd", "identity", "GZIP"])
def test_compressed_bodies(client: Client, coding: str) -> None:
    if coding == "zstd":
        zstd = pytest.importorskip("compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd")
        pack: Any = zstd.compress
    else:
        pack = {"gzip": gzip.compress, "deflate": zlib.compress, "identity": bytes}[coding.lower()]
    plain = client.post(DRONE)
    answer = client.post(pack(json.dumps(DRONE).encode()), content_encoding=coding)
    assert answer.json == plain.json
    if coding != "identity":
        broken = client.post(pack(json.dumps(DRONE).encode())[:-9], content_encoding=coding)
        assert broken.status == 422
        more = client.post(pack(json.dumps(DRONE).encode()) + b"junk", content_encoding=coding)
        assert more.status == 422
        assert more.json["detail"][0]["type"] == "encoding_invalid"
        bomb = client.post(pack(b" " * (20 << 20)), content_encoding=coding)
        assert bomb.status == 413
    assert client.post(DRONE, content_encoding="br").status == 415


def test_images_are_refused_and_not_ignored(client: Client) -> None:
    answer = client.post(b"--x\r\n", content_type="multipart/form-data; boundary=x")
    assert answer.status == 415
    assert answer.json["detail"]["error_type"] == "unsupported_media_type"


# ---- in a thread, with neighbours


@pytest.mark.parametrize("inline", [True, False])
def test_many_clients_get_their_own_answers(
    monkeypatch: pytest.MonkeyPatch, model: skyinfer.Model, inline: bool
) -> None:
    monkeypatch.setattr(deciding, "INLINE_SECONDS", 10.0 if inline else 0.0)
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
        assert running.app.line.waiting == 0
    assert not wrong


def test_a_body_that_is_not_small_is_read_off_the_loop(client: Client, model: skyinfer.Model) -> None:
    body = {"state": ["turn of words " * 4000, "last"], "questions": DRONE["questions"]}
    assert client.post(body).json == model.decide(body["state"], DRONE["questions"])


# ---- models


@pytest.mark.parametrize("name", [None, "jev-latest", "painted"])
def test_names_of_the_model(client: Client, name: str | None) -> None:
    assert client.post({**DRONE, "model": name}).json["model"] == "painted"


def test_a_path_is_no_name(client: Client) -> None:
    for name in [str(PAINTED), "examples/painted", "../painted", "/etc/passwd", "", "Painted"]:
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
        assert client.post({**DRONE, "model": "second"}).json["detail"]["message"].endswith("there are first, painted")
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


# ---- keys


def test_a_key_is_asked_for_everywhere_but_at_health(locked: Serving) -> None:
    with locked.client() as client:
        for path in [
            "/v1/systemone",
            "/v1/systemone/batch",
            "/v1/models",
            "/metrics",
            "/openapi.json",
            "/nothing",
            "/",
        ]:
            for headers in [
                {},
                {"authorization": "Bearer wrong"},
                {"authorization": "Bearer"},
                {"authorization": KEY},
                {"authorization": f"Basic {KEY}"},
                {"authorization": f"Bearer {KEY}x"},
                {"authorization": "Bearer \xff"},
                {"x-api-key": "wrong"},
            ]:
                answer = client.ask("POST", path, b"{}", headers)
                assert answer.status == 401
                assert answer.json["error"]["type"] == "authentication_error"
                assert answer.headers["www-authenticate"] == "Bearer"
        assert client.get("/health").json == {"status": "ok"}
        for headers in [{"authorization": f"Bearer {KEY}"}, {"authorization": f"bearer {KEY}"}, {"x-api-key": KEY},
                        {"x-api-key": KEY, "authorization": "Basic cHJveHk6eA=="}]:  # fmt: skip
            assert client.ask("POST", "/v1/systemone", DRONE, headers).status == 200
            assert client.ask("GET", "/openapi.json", None, headers).status == 200


def test_a_key_that_nobody_asked_for_is_accepted(client: Client) -> None:
    assert client.post(DRONE, authorization="Bearer anything").status == 200
    assert client.post(DRONE, x_api_key="anything").status == 200


# ---- errors, ids, pages


def test_errors_in_the_style_of_llama_server(locked: Serving) -> None:
    with locked.client() as client:
        for body, code, kind, message in [
            (b"{", 400, "invalid_request_error", "truncated"),
            ({"state": "x"}, 400, "invalid_request_error", "questions: is missing"),
            (
                {"state": "x", "questions": {"q": {"type": "?"}}},
                400,
                "invalid_request_error",
                "questions.q.type: must be",
            ),
            ({**DRONE, "model": "none"}, 404, "not_found_error", "there is no model"),
        ]:
            answer = client.post(body, authorization=f"Bearer {KEY}")
            assert answer.status == answer.json["error"]["code"] == code
            assert answer.json["error"]["type"] == kind
            assert message in answer.json["error"]["message"]
            assert answer.json.keys() == {"error"}


def test_paths_and_methods(client: Client) -> None:
    for method, path, status in [
        ("GET", "/", 404), ("POST", "/v1/systemon", 404), ("GET", "/v1/systemone", 405), ("PUT", "/v1/systemone", 405),
        ("POST", "/health", 405), ("GET", "/openapi.json", 404), ("GET", "/docs", 404),
        ("OPTIONS", "/v1/systemone", 405), ("GET", "/v1/../health", 404), ("GET", "/%2e%2e/etc/passwd", 404),
    ]:  # fmt: skip
        answer = client.ask(method, path)
        assert answer.status == status, path
        assert answer.json["detail"]["error_type"] == {404: "not_found_error", 405: "method_not_allowed"}[status]
        if status == 405:
            assert answer.headers["allow"] in ("GET", "POST")
    assert client.ask("HEAD", "/health").status == 200
    assert client.get("/health").json == {"status": "ok"}


def test_request_ids(client: Client) -> None:
    assert client.post(DRONE, x_request_id="mine-1.2:3").headers["x-request-id"] == "mine-1.2:3"
    seen = set()
    for bad in ["", "with space", "x" * 129, "é"]:
        headers = client.ask("POST", "/v1/systemone", DRONE, {"x-request-id": bad}).headers
        assert headers["x-request-id"] not in ("", bad)
        assert headers["x-typesafe-request-id"] == headers["x-request-id"]
        seen.add(headers["x-request-id"])
    assert len(seen) == 4


def test_pages_of_other_origins(client: Client, locked: Serving) -> None:
    answer = client.post(DRONE, origin="https://pages.example")
    assert not [name for name in answer.headers if name.startswith("access-control")]
    with locked.client() as other:
        key = {"authorization": f"Bearer {KEY}"}
        for origin, allowed in [("https://pages.example", True), ("https://evil.example", False), ("null", False)]:
            answer = other.ask("POST", "/v1/systemone", DRONE, {**key, "origin": origin})
            assert (answer.headers.get("access-control-allow-origin") == origin) is allowed
            asked = other.ask("OPTIONS", "/v1/systemone", None, {"origin": origin})
            assert asked.status == 200
            assert (asked.headers.get("access-control-allow-origin") == origin) is allowed
            assert "authorization" in asked.headers["access-control-allow-headers"]


def test_the_description(locked: Serving) -> None:
    with locked.client() as client:
        described = client.get("/openapi.json", authorization=f"Bearer {KEY}").json
    assert described["openapi"].startswith("3.1")
    assert set(described["paths"]) == {"/v1/systemone", "/v1/systemone/batch", "/v1/models", "/health", "/metrics"}
    assert described["security"] == [{"key": []}]
    assert described["components"]["schemas"]["Choice"]["properties"]["criteria"]["oneOf"][0]["maxProperties"] == 255
    names = set(described["components"]["schemas"])
    for reference in json.dumps(described).split('"$ref": "#/components/schemas/')[1:]:
        assert reference.partition('"')[0] in names


# ---- the connection


def test_a_kept_connection_never_stalls(server: Serving) -> None:
    sockets: list[socket.socket] = []
    with server.client() as client:
        client.post(DRONE)
        for protocol in server.server.server_state.connections:
            sockets.append(protocol.transport.get_extra_info("socket"))
        assert sockets
        taken = []
        for _ in range(30):
            start = time.perf_counter()
            client.post(DRONE)
            taken.append(time.perf_counter() - start)
        assert sorted(taken)[15] < 0.03  # Nagle's algorithm and a delayed ACK make it 0.04
        assert all(one.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) for one in sockets)


def test_two_requests_in_one_packet(server: Serving) -> None:
    body = json.dumps(DRONE).encode()
    request = b"POST /v1/systemone HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)
    with contextlib.closing(socket.create_connection(("127.0.0.1", server.port), timeout=10)) as connection:
        connection.sendall(request + request.replace(b"host: x", b"host: x\r\nconnection: close"))
        data = b""
        while part := connection.recv(65536):
            data += part
    assert data.count(b"HTTP/1.1 200") == 2


# ---- numbers and lines


def test_metrics(model: skyinfer.Model) -> None:
    with serving() as running, running.client() as client:
        for _ in range(3):
            client.post(DRONE)
        client.post(b"{")
        client.get("/what/ever")
        answer = client.get("/metrics")
        text = answer.body.decode()
    assert answer.headers["content-type"].startswith("text/plain")
    lines = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert float(lines['skyinfer_requests_total{route="/v1/systemone",status="200"}']) == 3
    assert float(lines['skyinfer_requests_total{route="/v1/systemone",status="422"}']) == 1
    assert float(lines['skyinfer_requests_total{route="other",status="404"}']) == 1
    assert float(lines['skyinfer_request_seconds_count{route="/v1/systemone"}']) == 4
    tokens = model.decide(DRONE["state"], DRONE["questions"])["usage"]["input_tokens"]
    assert float(lines['skyinfer_input_tokens_total{model="painted"}']) == 3 * tokens
    assert float(lines["skyinfer_queue_depth"]) == 0
    assert float(lines["skyinfer_connections"]) == 1
    assert 0 < float(lines['skyinfer_model_load_seconds{model="painted"}']) < 60


def test_one_line_a_request_and_no_state_in_it() -> None:
    with Process("-m", str(PAINTED)) as process:
        client = Client(process.port)
        client.post({**DRONE, "state": "SECRET"}, x_request_id="mine", authorization="Bearer HIDDEN")
        client.post({"state": "SECRET", "questions": {"SECRET": {"type": "SECRET"}}})
        client.post({"states": ["SECRET", "SECRET"], "questions": DRONE["questions"]}, "/v1/systemone/batch?SECRET")
        client.close()
        assert process.stop() == 0
    first, second, third = process.requests()
    assert first["id"] == "mine"
    assert (first["method"], first["path"], first["status"], first["model"]) == (
        "POST",
        "/v1/systemone",
        200,
        "painted",
    )
    assert first["tokens"] > 100
    assert first["client"] == "127.0.0.1"
    assert first["ms"] > 0
    assert second["status"] == 422
    assert third["states"] == 2
    assert "SECRET" not in "".join(process.text)
    assert "HIDDEN" not in "".join(process.text)
    listening = process.event("listening")
    assert listening is not None
    assert listening["models"]["painted"]["parameters"] == 243393
    assert process.address in listening["message"]


def test_states_in_the_log_where_they_are_asked_for() -> None:
    with Process("-m", str(PAINTED), "--log", "states") as process:
        client = Client(process.port)
        client.post({**DRONE, "state": {"said": "hello"}})
        client.close()
        process.stop()
    assert process.requests()[0]["state"] == '{"said":"hello"}'


def test_a_failure_is_told_to_the_log_alone(capfd: pytest.CaptureFixture[str]) -> None:
    with serving() as running, running.client() as client:

        def fail(body: bytes) -> Any:
            raise RuntimeError("a secret path /home/someone")

        running.app._asker.single = fail  # type: ignore[method-assign]
        answer = client.post(DRONE)
        assert answer.status == 500
        assert answer.json == {
            "detail": {"error_type": "internal_error", "message": "the server failed; its log says more"}
        }
        assert client.get("/health").status == 200
    assert "/home/someone" in capfd.readouterr().err


def test_strict_length() -> None:
    with serving(strict_length=True) as running, running.client() as client:
        assert client.post(DRONE).status == 200
        answer = client.post({"state": "word " * 500, "questions": {"q": NOUL}})
        assert answer.status == 413
        assert (
            "the state has 1001 tokens" in answer.json["detail"]["message"]
            or "tokens" in answer.json["detail"]["message"]
        )
        batch = {"states": ["short", "word " * 500], "questions": {"q": NOUL}}
        assert client.post(batch, "/v1/systemone/batch").status == 413


def test_limits_are_the_flags() -> None:
    from skyinfer.command.main import _parser
    from skyinfer.serve.options import Options, from_arguments

    def options(*arguments: str, **environment: str) -> Options:
        return from_arguments(_parser().parse_args(["serve", *arguments]), environment)

    assert options() == Options()
    assert options("--max-body", "77", "--head-seconds", "0.5").limits == Limits(body_bytes=77, head_seconds=0.5)
    assert options("--api-key-env", "K", K=f" {KEY}\n").api_key == KEY
    for bad in ["", "  ", "with space", "é"]:
        with pytest.raises(ValueError, match="api-key-env"):
            options("--api-key-env", "K", K=bad)
    origins = ["*", "null", "https://pages.example", "http://localhost:3000", "http://[::1]:80", "app://-"]
    assert options(*[f"--cors={origin}" for origin in origins]).cors == tuple(origins)
    never = ["x", "", "pages.example", "localhost:3000", "https://", "https://a.example/", "https://A.example"]
    bad_origins = [("--cors", one) for one in never]
    for flags in [
        ("--max-options", "1"),
        ("--port", "65536"),
        ("--max-levels", "x"),
        ("--head-seconds", "nan"),
        *bad_origins,
    ]:
        with pytest.raises(SystemExit):
            options(*flags)


# ---- what docs/serving.md shows


def test_the_documented_clients(capsys: pytest.CaptureFixture[str]) -> None:
    text = (ROOT / "docs" / "serving.md").read_text("utf-8")
    (curl,) = re.findall(r"^    curl http://127.0.0.1:8080/v1/systemone -d '(.*?)'$", text, re.MULTILINE | re.DOTALL)
    (python,) = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    with serving() as running, running.client() as client:
        answer = client.post(curl.encode(), content_type="application/x-www-form-urlencoded")  # as curl -d sends it
        assert answer.json["answers"]["human"]["type"] == "noul"
        exec(compile(python.replace("http://127.0.0.1:8080", running.address), "serving.md", "exec"), {})
    assert re.fullmatch(r"(refund|apologize) 0\.\d+\n", capsys.readouterr().out)


def test_the_documented_limits() -> None:
    text = (ROOT / "docs" / "serving.md").read_text("utf-8")
    shown = dict(re.findall(r"^\| `(--[a-z-]+)` \| (\d+)", text, re.MULTILINE))
    assert len(shown) >= 8
    for flag, field, *_ in _LIMIT_FLAGS:
        assert f"`{flag}`" in text
        if flag in shown:
            assert int(shown[flag]) == getattr(Limits(), field)
