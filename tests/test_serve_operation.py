"""`skyinfer serve` apart from its answers: keys, errors, ids, CORS, connections, metrics, the log, flags."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest
from serving import DRONE, PAINTED, Client, Process, Serving, serving

import skyinfer
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


@pytest.fixture(scope="module")
def locked() -> Iterator[Serving]:
    with serving(api_key=KEY, openapi=True, error_style="llama", cors=("https://pages.example",)) as running:
        yield running


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
            assert answer.headers["allow"] in ("GET, HEAD", "POST")
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
            assert "origin" in answer.headers["vary"]
            asked = other.ask("OPTIONS", "/v1/systemone", None, {"origin": origin})
            assert asked.status == 200
            assert (asked.headers.get("access-control-allow-origin") == origin) is allowed
            assert ("access-control-allow-headers" in asked.headers) is allowed


# what browsers ask for when pages use TypeSafe's JavaScript SDK, clients of OpenAI, or fetch with headers of their own
PREFLIGHTS = [
    "authorization,content-type,x-typesafe-runtime,x-typesafe-sdk",
    "authorization,content-encoding,content-type,x-stainless-arch,x-stainless-lang,x-stainless-retry-count",
    "x-api-key, X-Request-Id ,traceparent",
]


@pytest.mark.parametrize("origin", ["https://pages.example", "*"])
@pytest.mark.parametrize("names", PREFLIGHTS)
def test_an_allowed_origin_sends_the_headers_of_its_client(origin: str, names: str) -> None:
    with serving(cors=(origin,), api_key=KEY) as running, running.client() as client:
        asked = {
            "origin": "https://pages.example",
            "access-control-request-method": "POST",
            "access-control-request-headers": names,
        }
        for path in ("/v1/systemone", "/v1/systemone/batch", "/v1/models"):
            answer = client.ask("OPTIONS", path, None, asked)
            assert answer.status == 200
            assert answer.headers["access-control-allow-origin"] == origin
            allowed = {name.strip().lower() for name in answer.headers["access-control-allow-headers"].split(",")}
            assert allowed == {name.strip().lower() for name in names.split(",")}
            assert "POST" in answer.headers["access-control-allow-methods"]
        private = client.ask(
            "OPTIONS", "/v1/systemone", None, {**asked, "access-control-request-private-network": "true"}
        )
        assert private.headers["access-control-allow-private-network"] == "true"
        answer = client.ask("POST", "/v1/systemone", DRONE, {"origin": "https://pages.example", "x-api-key": KEY})
        assert "x-request-id" in answer.headers["access-control-expose-headers"]
        for bad in ('"quoted"', "a b", "a,,b"):
            refused = client.ask("OPTIONS", "/v1/systemone", None, {**asked, "access-control-request-headers": bad})
            assert "access-control-allow-headers" not in refused.headers
        evil = client.ask("OPTIONS", "/v1/systemone", None, {**asked, "origin": "https://evil.example"})
        assert ("access-control-allow-headers" in evil.headers) is (origin == "*")


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


# ---- metrics and the log


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
    assert listening["models"]["painted"]["precision"] == "exact"
    assert process.address in listening["message"]


@pytest.mark.parametrize("precision", ["exact", "int8"])
def test_the_precision_of_each_model_is_said(precision: str) -> None:
    """In the log and over HTTP; and it is the one that answers."""
    with Process("-m", "s1-pico", "-m", str(PAINTED), "--precision", precision) as process:
        client = Client(process.port)
        listing, answered = client.get("/v1/models").json, client.post(DRONE).json
        client.close()
        process.stop()
    listening = process.event("listening")
    assert listening is not None
    expected = {"painted": precision, "s1-pico": precision}
    assert {name: facts["precision"] for name, facts in listening["models"].items()} == expected
    assert {one["name"]: one["x_precision"] for one in listing["models"]} == expected
    assert {one["id"]: one["meta"]["x_precision"] for one in listing["data"]} == expected
    own = skyinfer.load(precision=precision).decide(DRONE["state"], DRONE["questions"])
    assert answered["answers"] == json.loads(json.dumps(own["answers"]))


def test_states_in_the_log_where_they_are_asked_for() -> None:
    with Process("-m", str(PAINTED), "--log", "states") as process:
        client = Client(process.port)
        client.post({**DRONE, "state": {"text": "hello"}})
        client.close()
        process.stop()
    assert process.requests()[0]["state"] == '{"text":"hello"}'


def test_a_failure_is_described_in_the_log_only(capfd: pytest.CaptureFixture[str]) -> None:
    with serving() as running, running.client() as client:

        def fail(*arguments: Any) -> Any:
            raise RuntimeError("a secret path /home/someone")

        running.app._parser.single = fail  # type: ignore[method-assign]
        answer = client.post(DRONE)
        assert answer.status == 500
        assert answer.json == {
            "detail": {"error_type": "internal_error", "message": "internal error; the server's log has the details"}
        }
        assert client.get("/health").status == 200
    assert "/home/someone" in capfd.readouterr().err


def test_strict_length() -> None:
    with serving(strict_length=True) as running, running.client() as client:
        assert client.post(DRONE).status == 200
        answer = client.post({"state": "word " * 500, "questions": {"q": NOUL}})
        assert answer.status == 413
        assert re.search(r"the state has \d+ tokens", answer.json["detail"]["message"])
        batch = {"states": ["short", "word " * 500], "questions": {"q": NOUL}}
        answer = client.post(batch, "/v1/systemone/batch")
        assert answer.status == 413
        assert answer.json["detail"]["message"].startswith("state 1 has")


def test_limits_are_the_flags() -> None:
    from skyinfer.command.main import parser
    from skyinfer.serve.options import Options, from_arguments

    def options(*arguments: str, **environment: str) -> Options:
        return from_arguments(parser().parse_args(["serve", *arguments]), environment)

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
