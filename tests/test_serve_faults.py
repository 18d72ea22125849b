"""`skyinfer serve` for clients that mean harm or are broken: what each fault costs them, and that it costs nobody else.

The quick suite sends a few hundred malformed bodies. This sends ten thousand, in two minutes:

    SKYINFER_MALFORMED=10000 pytest tests/test_serve_faults.py -k malformed
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from malformed import bodies
from serving import (
    DRONE,
    PAINTED,
    SECONDS,
    Answer,
    Client,
    Process,
    Serving,
    connect,
    head,
    is_quiet,
    read_all,
    serving,
    until,
)

import skyinfer
from skyinfer.serve import exchange, listener, scheduling
from skyinfer.serve.openapi import description
from skyinfer.serve.options import Limits, Options

LINUX = sys.platform == "linux"
NOUL = {"type": "noul", "instructions": "Is it late?"}
N_MALFORMED = int(os.environ.get("SKYINFER_MALFORMED", "200"))


@pytest.fixture(scope="module")
def expected() -> dict[str, Any]:
    answers: dict[str, Any] = skyinfer.load(PAINTED).decide(DRONE["state"], DRONE["questions"])["answers"]
    return answers


@pytest.fixture(scope="module")
def server() -> Iterator[Serving]:
    with serving() as running:
        yield running


@pytest.fixture
def client(server: Serving, expected: dict[str, Any]) -> Iterator[Client]:
    """A client; whatever a test did, the server answers rightly after it."""
    with server.client() as client:
        yield client
    check(server.port, expected)
    until(lambda: server.app.connections == 0, "connections to be closed")
    assert server.app.admission.waiting == 0


def check(port: int, expected: dict[str, Any]) -> None:
    client = Client(port)
    answer = client.post(DRONE)
    client.close()
    assert answer.status == 200
    assert answer.json["answers"] == expected


def fault(answer: Answer, status: int = 422) -> dict[str, Any]:
    """The only fault of an answer in TypeSafe's shape."""
    assert answer.status == status
    if status != 422:
        detail: dict[str, Any] = answer.json["detail"]
        assert detail.keys() == {"error_type", "message"}
        return detail
    (found,) = answer.json["detail"]
    assert found["loc"][0] == "body"
    return dict(found)


# ---- bodies


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"", "json_invalid"),
        (b" \n ", "json_invalid"),
        (b"{", "json_invalid"),
        (b"[]", "dict_type"),
        (b'"text"', "dict_type"),
        (b"null", "dict_type"),
        (b"\xef\xbb\xbf{}", "json_invalid"),
        (b'{"state": NaN, "questions": {}}', "json_invalid"),
        (b'{"state": [Infinity, -Infinity], "questions": {}}', "json_invalid"),
        (b'{"state": 1e999, "questions": {}}', "json_invalid"),
        (b'{"state": "\\ud800", "questions": {}}', "json_invalid"),
        (b'{"state": "x", "questions": {"\\udfff": {"type": "noul"}}}', "json_invalid"),
        (b'{"state": "\xed\xa0\x80", "questions": {}}', "json_invalid"),
        (b'{"state": "\xff", "questions": {}}', "json_invalid"),
        (b'{"state": ' + b"9" * 5000 + b', "questions": {}}', "json_invalid"),
        (b'{"state": "x", "questions": {"q": {"type": "noul"}}} x', "json_invalid"),
        (b"[" * 3000 + b"]" * 3000, "json_too_deep"),
        (b"[" * 3000, "json_too_deep"),
        (b'{"a":' * 3000 + b"1" + b"}" * 3000, "json_too_deep"),
        (b'{"state": ' + b"[" * 3000 + b"]" * 3000 + b', "questions": {"q": {"type": "noul"}}}', "json_too_deep"),
        (b'{"state": "x", "unknown": ' + b"[" * 3000 + b"]" * 3000 + b"}", "json_too_deep"),
        (b"{}", "missing"),
        (b'{"state": "x"}', "missing"),
        (b'{"questions": {"q": {"type": "noul"}}}', "missing"),
        (b'{"state": null, "questions": {"q": {"type": "noul"}}}', "value_error"),
        (b'{"state": "x", "questions": {}}', "value_error"),
        (b'{"state": "x", "questions": []}', "value_error"),
        (b'{"state": "x", "questions": {"": {"type": "noul"}}}', "value_error"),
        (b'{"state": "x", "questions": {"q": {"type": "box"}}}', "value_error"),
        (b'{"state": "x", "questions": {"q": {"type": "score", "criteria": {"0": "a", "1": "b"}}}}', "value_error"),
        (b'{"state": "x", "questions": {"q": {"type": "score", "criteria": ["a", null]}}}', "value_error"),
    ],
)
def test_faulty_bodies(client: Client, body: bytes, kind: str) -> None:
    assert fault(client.post(body))["type"] == kind


def test_brackets_in_text_are_no_nesting(client: Client) -> None:
    for state in ["[" * 3000, '"' + "{" * 500 + '\\"' * 300, "\\" * 999]:
        assert client.post({**DRONE, "state": state}).status == 200
    many = [{"a": [1]}] * 300  # three levels, many of them
    assert client.post({**DRONE, "state": many}).status == 200
    assert client.post(b'{"a": "' + b'\\"' * 200_000).status == 422  # in no more than linear time


def test_of_repeated_names_the_last_counts(client: Client) -> None:
    question = json.dumps(NOUL)
    twice = f'{{"state": "a", "state": "b", "questions": {{"q": {{"type": "?"}}, "q": {question}}}}}'.encode()
    once = client.post({"state": "b", "questions": {"q": NOUL}})
    assert client.post(twice).json == once.json
    labels = b'{"state": "x", "questions": {"q": {"type": "choice", "criteria": {"a": "1", "b": null, "a": "2"}}}}'
    expected = {"state": "x", "questions": {"q": {"type": "choice", "criteria": {"a": "2", "b": None}}}}
    assert client.post(labels).json == client.post(expected).json


def test_long_names_are_not_sent_back(client: Client) -> None:
    for body in [{"state": "x", "questions": {"x" * 100_000: {"type": "?"}}}, {**DRONE, "model": "x" * 100_000}]:
        assert len(client.post(body).body) < 2000


@settings(max_examples=N_MALFORMED, deadline=None, suppress_health_check=list(HealthCheck), database=None)
@given(st.data())
def test_malformed_bodies(malformed: Client, data: st.DataObject) -> None:
    name, path = data.draw(st.sampled_from([("Request", "/v1/systemone"), ("BatchRequest", "/v1/systemone/batch")]))
    body = data.draw(bodies(description(Options()), name))
    answer = malformed.post(body, path)
    assert answer.status in (200, 404, 413, 422), (answer, body)
    if answer.status == 200:
        assert answer.json.keys() in ({"model", "answers", "usage"}, {"model", "results", "usage"})
        assert b"NaN" not in answer.body.replace(b'"NaN"', b"")
    elif answer.status == 422:
        fault(answer)
    else:
        fault(answer, answer.status)


@pytest.fixture
def malformed(server: Serving, expected: dict[str, Any]) -> Iterator[Client]:
    with server.client() as client:
        yield client
    check(server.port, expected)


# ---- limits


def test_limits_of_a_request(expected: dict[str, Any]) -> None:
    limits = Limits(body_bytes=4000, questions=3, options=5, levels=3, states=2, tokens=300, depth=8)
    with serving(limits=limits) as running, running.client() as client:
        check(running.port, expected)

        def ask(question: dict[str, Any]) -> Answer:
            return client.post({"state": "x", "questions": {"q": {"instructions": "?", **question}}})

        assert ask({"type": "choice", "criteria": list("abcde")}).status == 200
        assert "at most 5" in fault(ask({"type": "choice", "criteria": list("abcdef")}))["msg"]
        assert "at most 5" in fault(ask({"type": "choice", "criteria": dict.fromkeys("abcdef")}))["msg"]
        assert ask({"type": "score", "criteria": list("abc")}).status == 200
        assert "at most 3" in fault(ask({"type": "score", "criteria": list("abcd")}))["msg"]
        questions = {str(i): NOUL for i in range(4)}
        assert "at most 3" in fault(client.post({"state": "x", "questions": questions}))["msg"]
        states = {"states": ["x"] * 3, "questions": {"q": NOUL}}
        assert "at most 2" in fault(client.post(states, "/v1/systemone/batch"))["msg"]
        deep = {"state": [[[[[[[["x"]]]]]]]], "questions": {"q": NOUL}}
        assert fault(client.post(deep))["type"] == "json_too_deep"
        for body, path in [
            ({"state": "word " * 200, "questions": DRONE["questions"]}, "/v1/systemone"),
            ({"states": ["word " * 100] * 2, "questions": {"q": NOUL}}, "/v1/systemone/batch"),
        ]:
            assert "300" in fault(client.post(body, path), 413)["message"]
        assert "4000" in fault(client.post({"state": "x" * 4000, "questions": {"q": NOUL}}), 413)["message"]
        chunked = iter([b'{"state": "' + b"x" * 3000, b"x" * 3000])
        client.connection.request("POST", "/v1/systemone", chunked, encode_chunked=True)
        response = client.connection.getresponse()
        assert response.status == 413
        response.read()
        check(running.port, expected)


@pytest.mark.skipif(not LINUX, reason="reads memory from /proc")
def test_100_megabytes_take_no_memory(expected: dict[str, Any]) -> None:
    size, piece = 100 << 20, b"x" * (1 << 18)
    with Process("-m", str(PAINTED)) as process:
        check(process.port, expected)
        before = process.memory()
        for announced in (True, False):
            with contextlib.closing(connect(process.port)) as connection:
                connection.sendall(head(size) if announced else head(None, "transfer-encoding: chunked"))
                with contextlib.suppress(ConnectionError):  # it may hang up before everything is sent
                    for _ in range(size // len(piece)):
                        connection.sendall(piece if announced else b"%x\r\n%s\r\n" % (len(piece), piece))
                        if not is_quiet(connection, 0):
                            break
                assert connection.recv(100).startswith(b"HTTP/1.1 413")
            assert process.memory() - before < 20 << 20
        check(process.port, expected)
        assert process.stop() == 0


# ---- connections


def test_a_body_that_does_not_come(monkeypatch: pytest.MonkeyPatch, expected: dict[str, Any]) -> None:
    """100 uploads that stall at different places; meanwhile and after it the server answers others, at once."""
    monkeypatch.setattr(scheduling, "INLINE_SECONDS", 10.0)
    body = json.dumps(DRONE).encode()
    with serving(limits=Limits(body_seconds=1.0)) as running:
        stalled = [connect(running.port) for _ in range(100)]
        for i, connection in enumerate(stalled):
            connection.sendall(head(len(body)) + body[: i * 4])
        for _ in range(5):
            check(running.port, expected)
        until(lambda: running.app.connections == 100, "100 connections")
        for connection in stalled:
            received = read_all(connection)
            assert received.startswith(b"HTTP/1.1 408")
            assert b"the body was not received within 1 seconds" in received
            connection.close()
        until(lambda: running.app.connections == 0, "connections to be closed")
        assert not running.server.server_state.tasks
        check(running.port, expected)
        assert running.app._workers["painted"]._thread is None  # those who stalled were not counted as active
        assert running.app._uploads.n_bodies == running.app._uploads.n_bytes == 0


def test_bodies_that_come_all_at_once(monkeypatch: pytest.MonkeyPatch, expected: dict[str, Any]) -> None:
    monkeypatch.setattr(exchange, "_UPLOAD_BYTES", 1_000_000)
    with serving() as running:
        held = [connect(running.port) for _ in range(4)]
        for connection in held:
            connection.sendall(head(500_000) + b"x" * 300_000)
        until(lambda: any(not is_quiet(connection, 0) for connection in held), "one to be refused")
        refused = [connection.recv(100) for connection in held if not is_quiet(connection, 0.1)]
        assert 1 <= len(refused) < 4
        assert all(received.startswith(b"HTTP/1.1 503") for received in refused)
        check(running.port, expected)
        for connection in held:
            connection.close()


def test_heads_that_do_not_come(expected: dict[str, Any]) -> None:
    """Not even drop by drop; a connection that says nothing, or only empty lines, is closed without a word."""
    with serving(limits=Limits(head_seconds=0.7, idle_seconds=0.7)) as running:
        silent, lines, after = (connect(running.port) for _ in range(3))
        dripping = connect(running.port)
        after.sendall(head(2) + b"{}")
        assert after.recv(100).startswith(b"HTTP/1.1 422")
        after.sendall(b"\r\n")
        end = time.monotonic() + 5
        dripping.sendall(head(10, "x-long: y")[:-8])
        with contextlib.suppress(ConnectionError):
            while is_quiet(dripping, 0.1):
                assert time.monotonic() < end
                dripping.sendall(b"x")
                lines.sendall(b"\r\n")
        assert read_all(dripping).startswith(b"HTTP/1.1 408")
        read_all(after)
        assert read_all(silent) == read_all(lines) == b""
        for connection in (silent, lines, after, dripping):
            connection.close()
        check(running.port, expected)
        until(lambda: running.app.connections == 0, "connections to be closed")


def test_a_long_body_is_no_part_of_the_next_head(server: Serving) -> None:
    body = b" " * 100_000
    with connect(server.port) as stream:
        stream.sendall(head(len(body)) + body + head(2)[:30])  # of which a server may read all at once
        assert stream.recv(100).startswith(b"HTTP/1.1 422")


def test_heads_that_are_too_large_or_none(server: Serving, client: Client) -> None:
    for data, status in [
        (b"POST / HTTP/1.1\r\n" + b"x: y\r\n" * 400_000, b"431"),
        (b"GET / HTTP/1.1\r\nx: " + b"y" * (2 << 20), b"431"),
        (b"GET / HTTP/1.1\r\nhost: x\r\n" + b"x: y\r\n" * 20_000 + b"\r\n", b"431"),  # whole, and perhaps at once
        (b"\x16\x03\x01\x02\x00\x01\x00", b"400"),
        (b"FOO\r\n\r\n", b"400"),
        (b"FOO /v1/systemone HTTP/1.1\r\nhost: x\r\n\r\n", b"501"),
        (b"get /v1/systemone HTTP/1.1\r\nhost: x\r\n\r\n", b"501"),
        (b"GET /health HTTP/1.1\r\nconnection: close\r\n\r\n", b"400"),
        (b"GET /health HTTP/1.1\r\nhost: x\r\nhost: y\r\nconnection: close\r\n\r\n", b"400"),
        (b"GET /health HTTP/1.0\r\n\r\n", b"200"),
        (head(None, "transfer-encoding: gzip, chunked", "connection: close") + b"0\r\n\r\n", b"501"),
        (head(None, "transfer-encoding: gzip", "transfer-encoding: chunked", "connection: close"), b"501"),
        (b"POST /v1/systemone HTTP/1.1\r\ncontent-length: -1\r\n\r\n", b"400"),
        (b"POST /v1/systemone HTTP/1.1\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", b"400"),
    ]:
        with contextlib.closing(connect(server.port)) as connection:
            with contextlib.suppress(ConnectionError):
                connection.sendall(data)
            received, _, body = read_all(connection).partition(b"\r\n\r\n")
            line, *headers = received.decode().split("\r\n")
            assert line == f"HTTP/1.1 {int(status)} {http.HTTPStatus(int(status)).phrase}", data[:100]
            names = [header.partition(":")[0] for header in headers]
            assert len(names) == len(set(names))
            assert {"date", "content-type", "content-length", "x-request-id", "connection"} <= set(names)
            assert status == b"200" or json.loads(body)["detail"]["message"]


def test_what_was_no_request_is_logged() -> None:
    with Process("-m", str(PAINTED)) as process:
        with contextlib.closing(connect(process.port)) as connection:
            connection.sendall(b"nonsense\r\n\r\n")
            received = read_all(connection).decode()
        assert process.stop() == 0
    (line,) = process.requests()
    assert (line["status"], line["client"]) == (400, "127.0.0.1")
    assert f"x-request-id: {line['id']}\r\n" in received


def test_an_upload_that_is_cut(server: Serving, client: Client) -> None:
    body = json.dumps(DRONE).encode()
    for sent in (0, 1, len(body) // 2, len(body) - 1):
        connection = connect(server.port)
        connection.sendall(head(len(body)) + body[:sent])
        if sent % 2:
            connection.shutdown(socket.SHUT_WR)
            assert read_all(connection) == b""
        connection.close()
    until(lambda: not server.server.server_state.tasks, "requests to end")


def test_an_early_answer_does_not_cost_the_connection(client: Client) -> None:
    """A body that was refused by its length alone is read past, and the next request is answered."""
    assert client.post(b"x" * (3 << 20)).status == 413
    assert client.post(b"x" * (3 << 20), "/nothing").status == 404
    assert client.post(DRONE).status == 200


def test_a_client_that_sends_all_before_it_reads(server: Serving, client: Client) -> None:
    """Even where the connection ends with the answer, it comes: it is not closed under what is still being sent."""
    for announced in (True, False):
        for _ in range(3):
            data = b" " * 5_000_000 if announced else iter([b" " * 2_000_000] * 3)
            with pytest.raises(urllib.error.HTTPError) as caught:
                urllib.request.urlopen(f"{server.address}/v1/systemone", data, timeout=SECONDS)
            with caught.value as answer:
                assert answer.code == 413
                assert answer.headers["connection"] == "close"
                assert json.load(answer)["detail"]["error_type"] == "request_too_large"
    for garbage, status in [(b"no\r\n" * 1_000_000, b"400"), (b"GET / HTTP/1.1\r\nx: " + b"y" * 5_000_000, b"431")]:
        with contextlib.closing(connect(server.port)) as connection:
            connection.sendall(garbage)
            assert read_all(connection)[:12] == b"HTTP/1.1 " + status


def test_what_is_sent_after_the_answer_is_bounded(monkeypatch: pytest.MonkeyPatch, server: Serving) -> None:
    monkeypatch.setattr(listener, "_LINGER_SECONDS", 0.3)
    for n_bytes, pause in [(100 << 20, 0.0), (1 << 40, 0.01)]:
        with contextlib.closing(connect(server.port)) as connection:
            connection.sendall(head(n_bytes, "connection: close"))
            assert connection.recv(100).startswith(b"HTTP/1.1 413")
            sent, start = 0, time.monotonic()
            with contextlib.suppress(ConnectionError):
                while sent < 50 << 20 and time.monotonic() - start < 5:
                    sent += connection.send(b"x" * (1 << 16 if pause == 0 else 1))
                    time.sleep(pause)
            assert sent < 50 << 20
            assert time.monotonic() - start < 5
    with contextlib.closing(connect(server.port)) as connection:  # nor does one that is silent keep its place
        connection.sendall(head(2 << 20, "connection: close"))
        assert connection.recv(100).startswith(b"HTTP/1.1 413")
        until(lambda: server.app.connections == 0, "the connection to be closed", 5)


def test_too_many_connections(expected: dict[str, Any]) -> None:
    with serving(limits=Limits(connections=3)) as running:
        held = [connect(running.port) for _ in range(3)]
        until(lambda: running.app.connections == 3, "3 connections")
        with contextlib.closing(connect(running.port)) as fourth:
            received = read_all(fourth)
            assert received.startswith(b"HTTP/1.1 503")
            assert b"retry-after: 1" in received
        for connection in held:
            connection.close()
        until(lambda: running.app.connections == 0, "connections to be closed")
        check(running.port, expected)


def test_a_client_that_does_not_read(expected: dict[str, Any], capfd: pytest.CaptureFixture[str]) -> None:
    with serving(limits=Limits(send_seconds=0.5)) as running:
        request = b"GET /v1/models HTTP/1.1\r\nhost: x\r\n\r\n" * 200
        end = time.monotonic() + SECONDS
        with contextlib.closing(connect(running.port)) as connection, contextlib.suppress(ConnectionError):
            connection.settimeout(0.2)
            until(lambda: running.app.connections == 1, "the connection to be accepted")
            sent = 0
            # On and on, for the buffers of the system hold some megabytes of answers before the server has to wait.
            while running.app.connections and time.monotonic() < end:
                with contextlib.suppress(TimeoutError):
                    sent += connection.send(request[sent % len(request) :])
        until(lambda: running.app.connections == 0, "the connection to be cut", 1)
        check(running.port, expected)
    assert "traceback" not in capfd.readouterr().err


# ---- the limit of waiting requests


def test_more_wait_than_may(monkeypatch: pytest.MonkeyPatch, expected: dict[str, Any]) -> None:
    monkeypatch.setattr(scheduling, "INLINE_SECONDS", 0.0)
    with serving(limits=Limits(queue=4)) as running:
        engine = running.app._workers["painted"]._engine
        run, go = engine.run, threading.Event()

        def held(asks: Any) -> Any:
            assert go.wait(SECONDS)
            return run(asks)

        monkeypatch.setattr(engine, "run", held)
        answers: list[Answer] = []

        def ask() -> None:
            with running.client() as client:
                answers.append(client.post(DRONE))

        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        until(lambda: running.app.admission.waiting == 4, "4 to wait")
        with running.client() as client:
            refused = client.post(DRONE)
            assert fault(refused, 503)["error_type"] == "overloaded_error"
            assert int(refused.headers["retry-after"]) >= 1
            assert client.get("/health").status == 200
            assert b"skyinfer_queue_depth 4.0" in client.get("/metrics").body
        go.set()
        for thread in threads:
            thread.join()
        assert [answer.json["answers"] for answer in answers] == [expected] * 4
        assert running.app.admission.waiting == 0


def test_a_disconnected_client_waits_no_more(monkeypatch: pytest.MonkeyPatch, expected: dict[str, Any]) -> None:
    monkeypatch.setattr(scheduling, "INLINE_SECONDS", 0.0)
    body = json.dumps(DRONE).encode()
    with serving(limits=Limits(queue=50)) as running:
        worker = running.app._workers["painted"]
        run, go, sizes = worker._engine.run, threading.Event(), []

        def held(asks: Any) -> Any:
            assert go.wait(SECONDS)
            sizes.append(sum(n for _, _, n, _, _ in asks))
            return run(asks)

        monkeypatch.setattr(worker._engine, "run", held)
        leaving = [connect(running.port) for _ in range(20)]
        for connection in leaving:
            connection.sendall(head(len(body)) + body)
        until(lambda: running.app.admission.waiting == 20, "20 to wait")
        for connection in leaving:
            connection.close()
        until(lambda: running.app.admission.waiting == 0, "no request to wait")
        assert worker.pending_tokens == 0
        go.set()
        check(running.port, expected)
        assert sum(sizes) < 20 * 3  # most of what nobody waited for was never run


# ---- the end


@pytest.mark.skipif(sys.platform == "win32", reason="no such signals")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_under_load(number: signal.Signals, expected: dict[str, Any]) -> None:
    """Every request that was taken is answered, rightly; then the process ends, and says that it is fine."""
    with Process("-m", str(PAINTED)) as process:
        bad: list[Any] = []
        answered = [0] * 8

        def talk(number: int) -> None:
            client = Client(process.port)
            with contextlib.suppress(ConnectionError, http.client.RemoteDisconnected):  # between two requests
                while True:
                    answer = client.post(DRONE)
                    if answer.status != 200 or answer.json["answers"] != expected:
                        bad.append(answer)
                    answered[number] += 1
            client.close()

        threads = [threading.Thread(target=talk, args=(i,)) for i in range(8)]
        stalled = connect(process.port)  # an upload that never ends does not keep the server
        stalled.sendall(head(1000) + b"{")
        for thread in threads:
            thread.start()
        until(lambda: min(answered) > 3, "load")
        process.process.send_signal(number)
        assert process.process.wait(15) == 0
        for thread in threads:
            thread.join(SECONDS)
        stalled.close()
        assert not bad
    logged = [line["status"] for line in process.requests() if line["status"] != 499]
    assert logged == [200] * sum(answered)
    assert process.lines[-1]["event"] == "stopped"


@pytest.mark.skipif(sys.platform == "win32", reason="no such signals")
def test_a_second_signal_ends_it_at_once(tmp_path: Any) -> None:
    with Process("-m", str(PAINTED), "--idle-seconds", "60") as process:
        connection = connect(process.port)
        connection.sendall(head(1000) + b"{")
        time.sleep(0.1)
        process.process.send_signal(signal.SIGTERM)
        time.sleep(0.2)
        process.process.send_signal(signal.SIGTERM)
        assert process.process.wait(5) in (-signal.SIGTERM, 0)
        connection.close()


@pytest.mark.skipif(not LINUX, reason="reads memory and descriptors from /proc")
def test_faults_leak_nothing(expected: dict[str, Any]) -> None:
    body = json.dumps(DRONE).encode()

    def rounds(port: int, n: int) -> None:
        for i in range(n):
            client = Client(port)
            for k in range(10):
                client.post({**DRONE, "state": f"state {i} {k}"})
                client.post({"state": "x", "questions": {f"q{i} {k}": NOUL}})
                client.post(b"{" * (k + 1))
            client.close()
            with contextlib.closing(connect(port)) as connection:
                connection.sendall(head(len(body)) + body[: i * 3])

    with Process("-m", str(PAINTED), "--log", "none") as process:
        rounds(process.port, 25)
        time.sleep(0.2)
        memory, descriptors = process.memory(), process.descriptors()
        rounds(process.port, 35)
        check(process.port, expected)
        time.sleep(0.2)
        assert process.descriptors() <= descriptors
        assert process.memory() - memory < 4 << 20
        assert process.stop() == 0


def test_an_address_that_is_taken(server: Serving, capsys: pytest.CaptureFixture[str]) -> None:
    from skyinfer.command.main import main

    assert main(["serve", "-m", str(PAINTED), "--port", str(server.port)]) == 1
    received = capsys.readouterr().err
    assert f"127.0.0.1:{server.port}" in received
    assert "Traceback" not in received
